package config

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/hcl/v2"
)

// Options of [Load]. The zero value reads the process's own surroundings.
type Options struct {
	// DataDir, PluginDir and Socket are the values of the flags of that name;
	// each overrides the file where it is not empty. A relative path is taken
	// from the working directory.
	DataDir, PluginDir, Socket string

	// CheckOnly is for who checks files and runs no agent: it needs no data_dir.
	CheckOnly bool

	// Places are the defaults; the zero value is [DefaultPlaces] of this
	// process.
	Places Places

	// LookupEnv is what the function env() asks; nil for os.LookupEnv.
	LookupEnv func(name string) (string, bool)

	// Networks gives the node's own networks, which no pool may overlap; nil
	// for [HostNetworks].
	Networks func() ([]Network, error)
}

// Places are where things are when nobody says otherwise.
type Places struct {
	// Config is the file or directory that is read.
	Config string
	// DataDir keeps the agent's state, PluginDir has the plugins.
	DataDir, PluginDir string
	// Socket of the admin API; empty for patchbay.sock in the data_dir.
	Socket string
}

// SocketName is the file name of the admin API's socket.
const SocketName = "patchbay.sock"

// DefaultPlaces gives the places for an effective user id: the system's for
// root, else the user's own state folder, and plugins beside the executable.
func DefaultPlaces(euid int) Places {
	if euid == 0 {
		return Places{
			Config:    "/etc/patchbay.d",
			DataDir:   "/var/lib/patchbay",
			PluginDir: "/usr/lib/patchbay/plugins",
			Socket:    "/run/patchbay/" + SocketName,
		}
	}
	var p Places
	home, _ := os.UserHomeDir()
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		p.Config = filepath.Join(dir, "patchbay.d")
	} else if home != "" {
		p.Config = filepath.Join(home, ".config", "patchbay.d")
	}
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		p.DataDir = filepath.Join(dir, "patchbay")
	} else if home != "" {
		p.DataDir = filepath.Join(home, ".local", "state", "patchbay")
	}
	if exe, err := os.Executable(); err == nil {
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		p.PluginDir = filepath.Join(filepath.Dir(exe), "plugins")
	}
	return p
}

// SocketPath is the admin socket's default path, for a client that has read no
// configuration.
func (p Places) SocketPath() string {
	if p.Socket != "" || p.DataDir == "" {
		return p.Socket
	}
	return filepath.Join(p.DataDir, SocketName)
}

// Network is a network that the node itself is in.
type Network struct {
	// Interface names the device, for messages.
	Interface string
	Prefix    netip.Prefix
}

// HostNetworks gives the networks of this host's interfaces, the loopback
// device's excepted.
func HostNetworks() ([]Network, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing the network interfaces: %w", err)
	}
	var networks []Network
	for _, dev := range devices {
		if dev.Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := dev.Addrs()
		if err != nil {
			continue // the device has just gone
		}
		for _, a := range addrs {
			ipnet, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			addr, ok := netip.AddrFromSlice(ipnet.IP)
			ones, _ := ipnet.Mask.Size()
			if !ok || addr.Unmap().IsLoopback() {
				continue
			}
			addr = addr.Unmap()
			if prefix, err := addr.Prefix(ones); err == nil {
				networks = append(networks, Network{Interface: dev.Name, Prefix: prefix})
			}
		}
	}
	return networks, nil
}

// Load reads the files at paths, each a file or a directory whose *.hcl and
// *.json are merged in lexical order. No paths means the default place.
//
// The Config is never nil: with errors it holds what could be read, good
// enough to go on to [Bind] and report what that finds too, and for nothing
// else. The Diagnostics are never nil either.
func Load(paths []string, opts Options) (*Config, *Diagnostics) {
	if opts.Places == (Places{}) {
		opts.Places = DefaultPlaces(os.Geteuid())
	}
	if opts.LookupEnv == nil {
		opts.LookupEnv = os.LookupEnv
	}
	if opts.Networks == nil {
		opts.Networks = HostNetworks
	}
	if len(paths) == 0 {
		paths = []string{opts.Places.Config}
	}

	src := newSources(opts.LookupEnv)
	l := &loader{
		opts:   opts,
		report: newReport(src),
		cfg: &Config{
			SyncInterval: 30 * time.Second,
			Agent:        Agent{LogLevel: "info", LogFormat: "text"},
			sources:      src,
		},
	}
	files := l.find(paths)
	var parts []*fileParts
	for _, f := range files {
		if p := l.read(f); p != nil {
			parts = append(parts, p)
		}
	}
	l.decode(parts)
	l.places()
	l.check()
	l.cfg.Files = src.withIncluded(l.cfg.Files)
	return l.cfg, l.report.finish()
}

// loader carries what one Load has found so far.
type loader struct {
	opts   Options
	report *report
	cfg    *Config

	services []*serviceBlock
	// spare are those that don't count, as Config.spare.
	spare []*serviceBlock
	// defined tells where a top-level argument or single block was given.
	defined   map[string]hcl.Range
	serviceAt map[string]hcl.Range
	// declared counts the blocks by type, those with mistakes too.
	declared map[string]int
	// incomplete is set when a file can't be read or parsed: then what seems
	// to be missing may be there.
	incomplete bool
	// pools by their ranges.
	pools poolIndex
	// networks of the node, read when the first pool asks.
	networks []Network
}

// places fills in the paths that neither the files nor the flags give.
func (l *loader) places() {
	override := func(value *string, flag, fallback string) {
		switch {
		case flag != "":
			if abs, err := filepath.Abs(flag); err == nil {
				flag = abs
			}
			*value = flag
		case *value == "":
			*value = fallback
		}
	}
	c, p := l.cfg, l.opts.Places
	override(&c.DataDir, l.opts.DataDir, p.DataDir)
	override(&c.PluginDir, l.opts.PluginDir, p.PluginDir)
	socket := p.Socket
	if socket == "" && c.DataDir != "" {
		socket = filepath.Join(c.DataDir, SocketName)
	}
	override(&c.Agent.Socket, l.opts.Socket, socket)

	need := func(value, argument, flag string) {
		if value == "" {
			l.report.errorf(nil, "No "+argument,
				"There is no default for %s here, because the home folder is not known. Set %s in the configuration, or give %s.", argument, argument, flag)
		}
	}
	if !l.opts.CheckOnly {
		need(c.DataDir, "data_dir", "-data-dir")
	}
	need(c.PluginDir, "plugin_dir", "-plugin-dir")
	if len(c.Agent.Socket) > maxSocketPath {
		l.report.errorf(rangeOf(l.defined, "agent.socket"), "Socket path too long",
			"The path of the admin socket is %d bytes long; the kernel takes %d at most. Set socket in the agent block, or give -socket.", len(c.Agent.Socket), maxSocketPath)
	}
}

// maxSocketPath is the length of sun_path less its final zero, see unix(7).
const maxSocketPath = 107

func rangeOf(m map[string]hcl.Range, key string) *hcl.Range {
	if r, ok := m[key]; ok {
		return &r
	}
	return nil
}
