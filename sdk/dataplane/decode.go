package dataplane

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"time"

	pb "github.com/patchbay-proxy/patchbay/sdk/proto/patchbay/dataplane/v1"
	"github.com/patchbay-proxy/patchbay/sdk/schema"
	"google.golang.org/protobuf/types/known/durationpb"
)

// From messages to the model. Everything that comes over the wire is checked
// here: what the contract doesn't allow is an error that says what and where.

const maxIDLength = 253

// checkID takes [A-Za-z0-9._-]{1,253}.
func checkID(id string) error {
	if id == "" || len(id) > maxIDLength {
		return fmt.Errorf("the id of a service has 1 to %d characters, not %d", maxIDLength, len(id))
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return fmt.Errorf("service %q: the id may hold A-Z, a-z, 0-9, '.', '_' and '-' only", id)
		}
	}
	return nil
}

// interner keeps one copy of each zone and node name, of which a full Apply
// holds hundreds of thousands. The last one comes again more often than not.
type interner struct {
	last  string
	names map[string]string
}

func (in *interner) intern(s string) string {
	if s == in.last {
		return in.last
	}
	kept, ok := in.names[s]
	if !ok {
		kept = s
		in.names[s] = s
	}
	in.last = kept
	return kept
}

// places interns the names of zones and those of nodes.
type places struct{ zones, nodes interner }

func newPlaces() *places {
	return &places{zones: interner{names: map[string]string{}}, nodes: interner{names: map[string]string{}}}
}

// decodeService checks everything but the endpoints' and frontends' being
// unique and the options, which [prepare] does.
func decodeService(m *pb.Service, names *places) (*Service, error) {
	s := &Service{ID: m.GetId(), Balance: m.GetBalance(), OptionsJSON: m.GetOptionsJson()}
	if err := checkID(s.ID); err != nil {
		return nil, err
	}
	var err error
	if s.Affinity, err = decodeDuration(m.GetAffinity()); err != nil {
		return nil, fmt.Errorf("service %s: affinity: %w", s.ID, err)
	}
	if err = s.decodePolicy(m); err != nil {
		return nil, fmt.Errorf("service %s: %w", s.ID, err)
	}
	for _, text := range m.GetAllow() {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("service %s: allowed source: %w", s.ID, err)
		}
		s.Allow = append(s.Allow, p.Masked())
	}
	if n := len(m.GetFrontends()); n > 0 {
		s.Frontends = make([]Frontend, n)
	}
	for i, f := range m.GetFrontends() {
		if s.Frontends[i], err = decodeFrontend(f); err != nil {
			return nil, fmt.Errorf("service %s: frontend %d: %w", s.ID, i, err)
		}
	}
	if s.Endpoints, err = decodeEndpoints(m, names); err != nil {
		return nil, err
	}
	return s, nil
}

// decodePolicy fills in what stands for unspecified: reject, auto and keep.
func (s *Service) decodePolicy(m *pb.Service) error {
	s.OnEmpty, s.Masquerade, s.OnDrainEnd = EmptyReject, MasqueradeAuto, DrainEndKeep
	if v := m.GetOnEmpty(); v != 0 {
		if s.OnEmpty = EmptyAction(v); !named(emptyActionNames, v) {
			return fmt.Errorf("unknown empty action %d", v)
		}
	}
	if v := m.GetMasquerade(); v != 0 {
		if s.Masquerade = Masquerade(v); !named(masqueradeNames, v) {
			return fmt.Errorf("unknown masquerade policy %d", v)
		}
	}
	if v := m.GetOnDrainEnd(); v != 0 {
		if s.OnDrainEnd = DrainEndAction(v); !named(drainEndActionNames, v) {
			return fmt.Errorf("unknown drain end action %d", v)
		}
	}
	return nil
}

// named tells whether a number is one of the enumeration.
func named[E ~int32 | ~uint8](names []string, v E) bool { return v > 0 && int(v) < len(names) }

func decodeFrontend(m *pb.Frontend) (Frontend, error) {
	address, err := decodeAddress(m.GetAddress())
	if err != nil {
		return Frontend{}, err
	}
	port, err := decodePort(m.GetPort())
	if err != nil {
		return Frontend{}, err
	}
	if !named(frontendKindNames, m.GetKind()) {
		return Frontend{}, fmt.Errorf("unknown kind %d", m.GetKind())
	}
	if !named(protocolNames, m.GetProtocol()) {
		return Frontend{}, fmt.Errorf("unknown protocol %d", m.GetProtocol())
	}
	return Frontend{
		Kind: FrontendKind(m.GetKind()), Address: address, Port: port, Protocol: Protocol(m.GetProtocol()),
	}, nil
}

func decodeEndpoints(m *pb.Service, names *places) ([]Endpoint, error) {
	if len(m.GetEndpoints()) == 0 {
		return nil, nil
	}
	out := make([]Endpoint, len(m.GetEndpoints()))
	for i, e := range m.GetEndpoints() {
		if err := decodeEndpoint(&out[i], e, names); err != nil {
			return nil, fmt.Errorf("service %s: endpoint %d: %w", m.GetId(), i, err)
		}
	}
	return out, nil
}

func decodeEndpoint(into *Endpoint, m *pb.Endpoint, names *places) error {
	address, err := decodeAddress(m.GetAddress())
	if err != nil {
		return err
	}
	port, err := decodePort(m.GetPort())
	if err != nil {
		return err
	}
	if !named(endpointStateNames, m.GetState()) {
		return fmt.Errorf("unknown state %d", m.GetState())
	}
	if d := m.GetDrainDeadline(); d != nil {
		if !d.IsValid() {
			return errors.New("the drain deadline is no valid time")
		}
		into.DrainDeadline = d.AsTime()
	}
	into.Address, into.Weight, into.State = netip.AddrPortFrom(address, port), m.GetWeight(), EndpointState(m.GetState())
	into.Zone, into.Node, into.Local = names.zones.intern(m.GetZone()), names.nodes.intern(m.GetNode()), m.GetLocal()
	if len(into.Zone) > maxPlaceLength || len(into.Node) > maxPlaceLength {
		return fmt.Errorf("a zone or a node has a name of at most %d bytes", maxPlaceLength)
	}
	return nil
}

func decodeAddress(b []byte) (netip.Addr, error) {
	a, ok := netip.AddrFromSlice(b)
	switch {
	case !ok:
		return a, fmt.Errorf("an address has 4 or 16 bytes, not %d", len(b))
	case a.Is4In6():
		return a, fmt.Errorf("the IPv4 address %v must be sent with 4 bytes", a.Unmap())
	}
	return a, nil
}

func decodePort(n uint32) (uint16, error) {
	if n == 0 || n > 65535 {
		return 0, fmt.Errorf("a port is 1 to 65535, not %d", n)
	}
	return uint16(n), nil
}

// decodeDuration takes absent for zero.
func decodeDuration(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if !d.IsValid() {
		return 0, errors.New("it is out of range")
	}
	if d.AsDuration() < 0 {
		return 0, fmt.Errorf("%v is below zero", d.AsDuration())
	}
	return d.AsDuration(), nil
}

var (
	pluginNamePattern = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)
	versionPattern    = regexp.MustCompile(`^\d{1,9}\.\d{1,9}\.\d{1,9}(-[0-9A-Za-z.-]{1,64})?(\+[0-9A-Za-z.-]{1,64})?$`)
)

func checkDescription(name, version string, config *schema.Schema) error {
	var errs []error
	if !pluginNamePattern.MatchString(name) {
		errs = append(errs, fmt.Errorf("the name %q must match %v", name, pluginNamePattern))
	}
	if !versionPattern.MatchString(version) {
		errs = append(errs, fmt.Errorf("the version %q must be a semantic version such as 1.2.3", version))
	}
	if err := config.CheckReserved(); err != nil {
		errs = append(errs, fmt.Errorf("the dataplane block: %w", err))
	}
	return errors.Join(errs...)
}

// decodeDescription leaves out values of enumerations that it doesn't know: a
// newer plugin may be able to do what this host can't ask for.
func decodeDescription(m *pb.DescribeResponse) (*HostDescription, error) {
	c := m.GetCapabilities()
	out := &HostDescription{Protocol: int(m.GetProtocol()), ConfigSchema: decodeSchema(m.GetConfigSchema(), 0),
		OptionsSchema: decodeSchema(m.GetOptionsSchema(), 0)}
	out.Name, out.Version = m.GetName(), m.GetVersion()
	out.Privileges = Privileges{Capabilities: m.GetPrivileges().GetCapabilities(), Root: m.GetPrivileges().GetRoot()}
	out.Capabilities = Capabilities{
		Balance: c.GetBalance(), Affinity: c.GetAffinity(), Weights: c.GetWeights(), Draining: c.GetDraining(),
		Statistics: c.GetStatistics(), KeepsClientAddress: c.GetKeepsClientAddress(), RefusesUnusedPorts: c.GetRefusesUnusedPorts(),
		SourceFilter: c.GetSourceFilter(), SurvivesProcess: c.GetSurvivesProcess(), RepairsFlush: c.GetRepairsFlush(),
		CleansHost: c.GetCleansHost(),
	}
	for _, v := range c.GetProtocols() {
		if named(protocolNames, v) {
			out.Capabilities.Protocols = append(out.Capabilities.Protocols, Protocol(v))
		}
	}
	for _, v := range c.GetFamilies() {
		if named(familyNames, v) {
			out.Capabilities.Families = append(out.Capabilities.Families, Family(v))
		}
	}
	for _, v := range c.GetFrontendKinds() {
		if named(frontendKindNames, v) {
			out.Capabilities.FrontendKinds = append(out.Capabilities.FrontendKinds, FrontendKind(v))
		}
	}
	if err := errors.Join(out.ConfigSchema.Validate(), out.OptionsSchema.Validate()); err != nil {
		return nil, fmt.Errorf("the plugin's schema is wrong: %w", err)
	}
	return out, checkDescription(out.Name, out.Version, out.ConfigSchema)
}

// decodeSchema goes one deeper than what [schema.Schema.Validate] lets pass.
func decodeSchema(m *pb.Schema, depth int) *schema.Schema {
	out := &schema.Schema{Description: m.GetDescription(), Arguments: []*schema.Argument{}}
	if depth > 20 {
		return out
	}
	for _, a := range m.GetArguments() {
		arg := &schema.Argument{
			Name: a.GetName(), Type: decodeType(a.GetType()), Element: decodeType(a.GetElement()), Required: a.GetRequired(),
			Description: a.GetDescription(), Enum: a.GetEnum(), Min: a.GetMin(), Max: a.GetMax(),
			Sensitive: a.GetSensitive(), Deprecated: a.GetDeprecated(),
		}
		if text := a.GetDefaultJson(); text != "" {
			arg.Default = []byte(text)
		}
		if a.GetObject() != nil {
			arg.Object = decodeSchema(a.GetObject(), depth+1)
		}
		out.Arguments = append(out.Arguments, arg)
	}
	return out
}

// decodeType gives 255, which no schema may have, for what it doesn't know.
func decodeType(t pb.ArgumentType) schema.Type {
	if t < 0 || t > 254 {
		return 255
	}
	return schema.Type(t)
}

func decodeStatistics(m *pb.ServiceStatistics) (ServiceStatistics, error) {
	out := ServiceStatistics{
		ID: m.GetId(), Refused: m.GetRefusedConnections(),
		Counters: Counters{
			Connections: m.GetConnections(), Active: m.GetActiveConnections(), BytesIn: m.GetBytesIn(), BytesOut: m.GetBytesOut(),
			Failed: m.GetFailedConnections(),
		},
	}
	if err := checkID(out.ID); err != nil {
		return out, fmt.Errorf("statistics: %w", err)
	}
	for _, e := range m.GetEndpoints() {
		address, err := decodeAddress(e.GetAddress())
		if err != nil {
			return out, fmt.Errorf("statistics of service %s: %w", out.ID, err)
		}
		port, err := decodePort(e.GetPort())
		if err != nil {
			return out, fmt.Errorf("statistics of service %s: %w", out.ID, err)
		}
		out.Endpoints = append(out.Endpoints, EndpointStatistics{
			Address: netip.AddrPortFrom(address, port),
			Counters: Counters{
				Connections: e.GetConnections(), Active: e.GetActiveConnections(), BytesIn: e.GetBytesIn(),
				BytesOut: e.GetBytesOut(), Failed: e.GetFailedConnections(),
			},
		})
	}
	return out, nil
}

func decodeDiagnostic(m *pb.Diagnostic) Diagnostic {
	return Diagnostic{
		Warning: m.GetSeverity() == pb.Severity_SEVERITY_WARNING, Summary: m.GetSummary(),
		Detail: m.GetDetail(), Path: m.GetPath(),
	}
}

func decodePrefixes(what string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func decodeAddresses(what string, texts []string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", what, err)
		}
		out = append(out, a.Unmap())
	}
	return out, nil
}
