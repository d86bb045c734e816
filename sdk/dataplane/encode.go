package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
)

// From the model to messages. The enumerations of the model have the numbers
// of the contract.

// encodeService refuses what a plugin would: one wrong service must not spoil
// the Apply of all others.
func encodeService(s *Service) (*pb.Service, error) {
	if err := s.checkPolicy(); err != nil {
		return nil, err
	}
	if !utf8.ValidString(s.Balance) {
		return nil, fmt.Errorf("the balance method %q is no valid UTF-8", s.Balance)
	}
	out := &pb.Service{
		Id: s.ID, Balance: s.Balance, OptionsJson: s.OptionsJSON,
		OnEmpty: pb.EmptyAction(s.OnEmpty), Masquerade: pb.Masquerade(s.Masquerade), OnDrainEnd: pb.DrainEndAction(s.OnDrainEnd),
	}
	if s.Affinity > 0 {
		out.Affinity = durationpb.New(s.Affinity)
	}
	for _, p := range s.Allow {
		if !p.IsValid() {
			return nil, errors.New("an allowed source is no prefix")
		}
		out.Allow = append(out.Allow, p.Masked().String())
	}
	out.Frontends = make([]*pb.Frontend, len(s.Frontends))
	for i, f := range s.Frontends {
		address, err := appendAddress(nil, f.Address)
		if err != nil {
			return nil, fmt.Errorf("frontend %v: %w", f.Address, err)
		}
		if err := f.check(); err != nil {
			return nil, fmt.Errorf("frontend %v: %w", f.Address, err)
		}
		out.Frontends[i] = &pb.Frontend{
			Kind: pb.FrontendKind(f.Kind), Address: address, Port: uint32(f.Port), Protocol: pb.Protocol(f.Protocol),
		}
	}
	var err error
	out.Endpoints, err = encodeEndpoints(s.Endpoints)
	return out, err
}

// encodeEndpoints allocates by the service, not by the endpoint: there are
// hundreds of thousands in a full Apply.
func encodeEndpoints(endpoints []Endpoint) ([]*pb.Endpoint, error) {
	if len(endpoints) == 0 {
		return nil, nil
	}
	messages := make([]pb.Endpoint, len(endpoints))
	out := make([]*pb.Endpoint, len(endpoints))
	addresses := make([]byte, 0, 16*len(endpoints))
	for i := range endpoints {
		e, m := &endpoints[i], &messages[i]
		start := len(addresses)
		var err error
		if addresses, err = appendAddress(addresses, e.Address.Addr()); err != nil {
			return nil, fmt.Errorf("endpoint %v: %w", e.Address, err)
		}
		m.Address = addresses[start:len(addresses):len(addresses)]
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("endpoint %v: %w", e.Address, err)
		}
		m.Port, m.Weight, m.State = uint32(e.Address.Port()), e.Weight, pb.EndpointState(e.State)
		m.Zone, m.Node, m.Local = e.Zone, e.Node, e.Local
		if !e.DrainDeadline.IsZero() {
			m.DrainDeadline = timestamppb.New(e.DrainDeadline)
		}
		out[i] = m
	}
	return out, nil
}

var errNoPort = errors.New("a port is 1 to 65535, not 0")

// checkPolicy takes zero for unspecified.
func (s *Service) checkPolicy() error {
	if err := checkID(s.ID); err != nil {
		return err
	}
	switch {
	case s.OnEmpty != 0 && !named(emptyActionNames, s.OnEmpty):
		return fmt.Errorf("unknown empty action %v", s.OnEmpty)
	case s.Masquerade != 0 && !named(masqueradeNames, s.Masquerade):
		return fmt.Errorf("unknown masquerade policy %v", s.Masquerade)
	case s.OnDrainEnd != 0 && !named(drainEndActionNames, s.OnDrainEnd):
		return fmt.Errorf("unknown drain end action %v", s.OnDrainEnd)
	}
	return nil
}

func (f Frontend) check() error {
	switch {
	case f.Port == 0:
		return errNoPort
	case !named(frontendKindNames, f.Kind):
		return fmt.Errorf("unknown kind %v", f.Kind)
	case !named(protocolNames, f.Protocol):
		return fmt.Errorf("unknown protocol %v", f.Protocol)
	}
	return nil
}

// maxPlaceLength of a zone's or a node's name.
const maxPlaceLength = 1024

func (e *Endpoint) check() error {
	if e.Address.Port() == 0 {
		return errNoPort
	}
	if !named(endpointStateNames, e.State) {
		return fmt.Errorf("unknown state %v", e.State)
	}
	for _, name := range []string{e.Zone, e.Node} {
		if len(name) > maxPlaceLength || !utf8.ValidString(name) {
			return fmt.Errorf("a zone or a node has a name of at most %d bytes of UTF-8", maxPlaceLength)
		}
	}
	return nil
}

func appendAddress(to []byte, a netip.Addr) ([]byte, error) {
	a = a.Unmap()
	switch {
	case a.Zone() != "":
		return to, errors.New("an address with a zone can't be sent to a dataplane")
	case a.Is4():
		b := a.As4()
		return append(to, b[:]...), nil
	case a.Is6():
		b := a.As16()
		return append(to, b[:]...), nil
	}
	return to, errors.New("no address")
}

func encodeDescription(d Description) (*pb.DescribeResponse, error) {
	configSchema, err := schema.Of(d.Config)
	if err != nil {
		return nil, fmt.Errorf("the dataplane block: %w", err)
	}
	optionsSchema, err := schema.Of(d.Options)
	if err != nil {
		return nil, fmt.Errorf("the options of a service: %w", err)
	}
	if err := checkDescription(d.Name, d.Version, configSchema); err != nil {
		return nil, err
	}
	c := d.Capabilities
	out := &pb.DescribeResponse{
		Name: d.Name, Version: d.Version, Protocol: ProtocolVersion,
		Capabilities: &pb.Capabilities{
			Balance: c.Balance, Affinity: c.Affinity, Weights: c.Weights, Draining: c.Draining, Statistics: c.Statistics,
			KeepsClientAddress: c.KeepsClientAddress, RefusesUnusedPorts: c.RefusesUnusedPorts, SourceFilter: c.SourceFilter,
			SurvivesProcess: c.SurvivesProcess, RepairsFlush: c.RepairsFlush, CleansHost: c.CleansHost,
		},
		Privileges:   &pb.Privileges{Capabilities: d.Privileges.Capabilities, Root: d.Privileges.Root},
		ConfigSchema: encodeSchema(configSchema), OptionsSchema: encodeSchema(optionsSchema),
	}
	for _, v := range c.Protocols {
		out.Capabilities.Protocols = append(out.Capabilities.Protocols, pb.Protocol(v))
	}
	for _, v := range c.Families {
		out.Capabilities.Families = append(out.Capabilities.Families, pb.Family(v))
	}
	for _, v := range c.FrontendKinds {
		out.Capabilities.FrontendKinds = append(out.Capabilities.FrontendKinds, pb.FrontendKind(v))
	}
	return out, nil
}

func encodeSchema(s *schema.Schema) *pb.Schema {
	if s == nil {
		return nil
	}
	out := &pb.Schema{Description: s.Description}
	for _, a := range s.Arguments {
		out.Arguments = append(out.Arguments, &pb.Argument{
			Name: a.Name, Type: pb.ArgumentType(a.Type), Element: pb.ArgumentType(a.Element), Object: encodeSchema(a.Object),
			Required: a.Required, DefaultJson: string(a.Default), Description: a.Description, Enum: a.Enum,
			Min: a.Min, Max: a.Max, Sensitive: a.Sensitive, Deprecated: a.Deprecated,
		})
	}
	return out
}

func encodeDiagnostic(d Diagnostic) *pb.Diagnostic {
	severity := pb.Severity_SEVERITY_ERROR
	if d.Warning {
		severity = pb.Severity_SEVERITY_WARNING
	}
	return &pb.Diagnostic{Severity: severity, Summary: d.Summary, Detail: d.Detail, Path: d.Path}
}

func encodeStatistics(s *ServiceStatistics) (*pb.ServiceStatistics, error) {
	out := &pb.ServiceStatistics{
		Id: s.ID, Connections: s.Connections, ActiveConnections: s.Active, BytesIn: s.BytesIn, BytesOut: s.BytesOut,
		FailedConnections: s.Failed, RefusedConnections: s.Refused,
	}
	for _, e := range s.Endpoints {
		address, err := appendAddress(nil, e.Address.Addr())
		if err != nil {
			return nil, fmt.Errorf("statistics of service %s, endpoint %v: %w", s.ID, e.Address, err)
		}
		out.Endpoints = append(out.Endpoints, &pb.EndpointStatistics{
			Address: address, Port: uint32(e.Address.Port()), Connections: e.Connections, ActiveConnections: e.Active,
			BytesIn: e.BytesIn, BytesOut: e.BytesOut, FailedConnections: e.Failed,
		})
	}
	return out, nil
}
