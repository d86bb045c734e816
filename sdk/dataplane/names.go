package dataplane

import "fmt"

// The enumerations have names, the words of configuration files and of the
// API; they encode to text and back.

func nameOf(names []string, kind string, v uint8) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("%s(%d)", kind, v)
}

func parseName(names []string, kind string, text []byte) (uint8, error) {
	for i, n := range names {
		if n != "" && n == string(text) {
			return uint8(i), nil
		}
	}
	return 0, fmt.Errorf("unknown %s %q: use one of %q", kind, text, names[1:])
}

var protocolNames = []string{TCP: "tcp", UDP: "udp", SCTP: "sctp"}

// String gives the name of the protocol.
func (v Protocol) String() string { return nameOf(protocolNames, "Protocol", uint8(v)) }

// MarshalText gives the name of the protocol.
func (v Protocol) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the protocol.
func (v *Protocol) UnmarshalText(text []byte) error {
	n, err := parseName(protocolNames, "protocol", text)
	*v = Protocol(n)
	return err
}

var familyNames = []string{IPv4: "ipv4", IPv6: "ipv6"}

// String gives the name of the family.
func (v Family) String() string { return nameOf(familyNames, "Family", uint8(v)) }

// MarshalText gives the name of the family.
func (v Family) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the family.
func (v *Family) UnmarshalText(text []byte) error {
	n, err := parseName(familyNames, "family", text)
	*v = Family(n)
	return err
}

var frontendKindNames = []string{Virtual: "virtual", Node: "node", External: "external"}

// String gives the name of the frontend kind.
func (v FrontendKind) String() string { return nameOf(frontendKindNames, "FrontendKind", uint8(v)) }

// MarshalText gives the name of the frontend kind.
func (v FrontendKind) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the frontend kind.
func (v *FrontendKind) UnmarshalText(text []byte) error {
	n, err := parseName(frontendKindNames, "frontend kind", text)
	*v = FrontendKind(n)
	return err
}

var endpointStateNames = []string{StateActive: "active", StateDraining: "draining"}

// String gives the name of the endpoint state.
func (v EndpointState) String() string { return nameOf(endpointStateNames, "EndpointState", uint8(v)) }

// MarshalText gives the name of the endpoint state.
func (v EndpointState) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the endpoint state.
func (v *EndpointState) UnmarshalText(text []byte) error {
	n, err := parseName(endpointStateNames, "endpoint state", text)
	*v = EndpointState(n)
	return err
}

var emptyActionNames = []string{EmptyReject: "reject", EmptyDrop: "drop"}

// String gives the name of the empty action.
func (v EmptyAction) String() string { return nameOf(emptyActionNames, "EmptyAction", uint8(v)) }

// MarshalText gives the name of the empty action.
func (v EmptyAction) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the empty action.
func (v *EmptyAction) UnmarshalText(text []byte) error {
	n, err := parseName(emptyActionNames, "empty action", text)
	*v = EmptyAction(n)
	return err
}

var drainEndActionNames = []string{DrainEndKeep: "keep", DrainEndReset: "reset"}

// String gives the name of the drain end action.
func (v DrainEndAction) String() string {
	return nameOf(drainEndActionNames, "DrainEndAction", uint8(v))
}

// MarshalText gives the name of the drain end action.
func (v DrainEndAction) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the drain end action.
func (v *DrainEndAction) UnmarshalText(text []byte) error {
	n, err := parseName(drainEndActionNames, "drain end action", text)
	*v = DrainEndAction(n)
	return err
}

var masqueradeNames = []string{MasqueradeAuto: "auto", MasqueradeAlways: "always", MasqueradeNever: "never"}

// String gives the name of the masquerade policy.
func (v Masquerade) String() string { return nameOf(masqueradeNames, "Masquerade", uint8(v)) }

// MarshalText gives the name of the masquerade policy.
func (v Masquerade) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// UnmarshalText takes the name of the masquerade policy.
func (v *Masquerade) UnmarshalText(text []byte) error {
	n, err := parseName(masqueradeNames, "masquerade policy", text)
	*v = Masquerade(n)
	return err
}
