// Command faulty is a dataplane plugin that misbehaves on demand, for tests of
// what hosts plugins. It takes its name and version from the name of its own
// file, so that a copy under another name is another plugin.
//
// A fault is a word, some with a value: "hang_apply", "slow_apply=100ms".
// Faults come from three places, and all of them count:
//
//   - the file's name, for one fault: the build part of the version, with
//     dashes and a dot, as in patchbay-dataplane-faulty_v1.0.0+slow-apply.100ms;
//   - a file beside it, one fault a line, called as the plugin's file with a dot
//     before and .faults behind: it is read again at each call, so that a test
//     can switch faults on and off while the plugin runs;
//   - the argument faults of the dataplane block.
//
// What it is told is written down, a line a call, in the file journal of its
// state folder.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/patchbay-proxy/patchbay/sdk/dataplane"
)

func main() {
	f, err := newFaulty()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	f.misbehaveAtStart()
	dataplane.Serve(f)
}

type config struct {
	_      struct{} `description:"Misbehaves on demand."`
	Faults []string `name:"faults" description:"What to do wrong, such as hang_apply or slow_apply=100ms."`
	Path   string   `name:"path" description:"A file to make, which only a cleanup removes."`
	Token  string   `name:"token" sensitive:"true" description:"Part of the file's name, as if it were a secret."`
}

type options struct {
	Comment string `name:"comment"`
}

type faulty struct {
	name, version string
	// builtIn comes from the file's name; faultsFile is the one beside it.
	builtIn    faults
	faultsFile string

	mu        sync.Mutex
	config    faults
	path      string // of the file that it has made; empty for none
	stateDir  string
	services  map[string]*dataplane.Service
	applies   int
	succeeded bool // the last Apply did
	spamming  bool
}

func newFaulty() (*faulty, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding the plugin's own file: %w", err)
	}
	path = strings.TrimSuffix(path, " (deleted)")
	f := &faulty{
		name: "faulty", version: "1.0.0", services: map[string]*dataplane.Service{},
		faultsFile: filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".faults"),
	}
	if rest, ok := strings.CutPrefix(filepath.Base(path), "patchbay-dataplane-"); ok {
		if name, version, ok := strings.Cut(rest, "_v"); ok {
			f.name, f.version = name, version
		}
	}
	if _, build, ok := strings.Cut(f.version, "+"); ok {
		word, value, hasValue := strings.Cut(build, ".")
		word = strings.ReplaceAll(word, "-", "_")
		if hasValue {
			word += "=" + value
		}
		if f.builtIn, err = parseFaults([]string{word}); err != nil {
			return nil, fmt.Errorf("the file's name: %w", err)
		}
	}
	return f, nil
}

// has looks for a fault in all three places.
func (f *faulty) has(word string) (string, bool) {
	f.mu.Lock()
	configured := f.config
	f.mu.Unlock()
	for _, fs := range []faults{f.builtIn, f.readFile(), configured} {
		if value, ok := fs[word]; ok {
			return value, true
		}
	}
	return "", false
}

// readFile gives the faults of the file beside the plugin; without the file,
// or with one that is just being written, there are none.
func (f *faulty) readFile() faults {
	data, err := os.ReadFile(f.faultsFile)
	if err != nil {
		return nil
	}
	fs, err := parseFaults(strings.Fields(string(data)))
	if err != nil {
		dataplane.Logger().Error("the file of faults", "error", err)
	}
	return fs
}

func (f *faulty) Describe() dataplane.Description {
	f.hangIf("hang_describe")
	f.spamIf()
	d := dataplane.Description{
		Name: f.name, Version: f.version, Config: &config{}, Options: &options{},
		Capabilities: dataplane.Capabilities{
			Protocols:     []dataplane.Protocol{dataplane.TCP, dataplane.UDP},
			Families:      []dataplane.Family{dataplane.IPv4, dataplane.IPv6},
			FrontendKinds: []dataplane.FrontendKind{dataplane.Virtual, dataplane.Node, dataplane.External},
			Balance:       []string{dataplane.BalanceRoundRobin, dataplane.BalanceRandom},
			Affinity:      true, Weights: true, Draining: true, SourceFilter: true, CleansHost: true,
		},
	}
	if _, ok := f.has("wrong_name"); ok {
		d.Name = "impostor"
	}
	if _, ok := f.has("wrong_version"); ok {
		d.Version = "9.9.9"
	}
	if _, ok := f.has("bad_schema"); ok {
		d.Config = &struct {
			Default string `name:"default"`
		}{}
	}
	return d
}

// Validate says which words of the block are no faults.
func (f *faulty) Validate(_ context.Context, c dataplane.Config) []dataplane.Diagnostic {
	if value, ok := f.has("slow_validate"); ok {
		time.Sleep(duration(value))
	}
	if _, err := parseFaults(c.Block.(*config).Faults); err != nil {
		return []dataplane.Diagnostic{{Summary: err.Error(), Path: []string{"faults"}}}
	}
	return nil
}

func (f *faulty) Configure(_ context.Context, c dataplane.Config) (dataplane.Adopted, error) {
	fs, err := parseFaults(c.Block.(*config).Faults)
	if err != nil {
		return dataplane.Adopted{}, err
	}
	f.mu.Lock()
	f.config, f.stateDir, f.succeeded = fs, c.StateDir, false
	f.path = ""
	if block := c.Block.(*config); block.Path != "" {
		f.path = block.Path + block.Token
	}
	f.mu.Unlock()
	f.journal("configure")
	f.hangIf("hang_configure")
	if _, ok := f.has("fail_configure"); ok {
		return dataplane.Adopted{}, errors.New("configuring fails, as asked")
	}
	if f.path != "" {
		if err := os.WriteFile(f.path, nil, 0o600); err != nil {
			return dataplane.Adopted{}, err
		}
	}
	f.crashLater()
	f.spamIf()
	var adopted dataplane.Adopted
	if value, ok := f.has("adopted"); ok {
		_, err = fmt.Sscan(value, &adopted.Services)
	}
	return adopted, err
}

func (f *faulty) Apply(ctx context.Context, u *dataplane.Update) error {
	f.journal("apply revision=%d services=%d upserted=%d removed=%d",
		u.Revision(), len(u.Services()), len(u.Upserted()), len(u.Removed()))
	f.mu.Lock()
	f.applies++
	afterSuccess := f.succeeded
	f.succeeded = false
	f.mu.Unlock()
	if err := f.misbehaveInApply(ctx, u, afterSuccess); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range u.Upserted() {
		f.services[s.ID] = s
	}
	for _, id := range u.Removed() {
		delete(f.services, id)
	}
	f.succeeded = true
	return nil
}

func (f *faulty) misbehaveInApply(ctx context.Context, u *dataplane.Update, afterSuccess bool) error {
	f.spamIf()
	f.hangIf("hang_apply")
	if value, ok := f.has("slow_apply"); ok {
		select {
		case <-time.After(duration(value)):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if _, ok := f.has("die_in_apply"); ok {
		os.Exit(9)
	}
	if _, ok := f.has("die_once_in_apply"); ok && f.firstTime("died") {
		os.Exit(9)
	}
	if _, ok := f.has("panic_in_apply"); ok {
		panic("as asked")
	}
	if _, ok := f.has("fail_apply"); ok {
		return errors.New("applying fails, as asked")
	}
	if _, ok := f.has("refuse_base"); ok && afterSuccess {
		return status.Error(codes.FailedPrecondition, "the base is unknown, as asked")
	}
	if ids, ok := f.has("fail_service"); ok {
		for id := range strings.SplitSeq(ids, ",") {
			u.Fail(id, errors.New("this service fails, as asked"))
		}
	}
	return nil
}

func (f *faulty) Close(_ context.Context, mode dataplane.CloseMode) error {
	f.journal("close %d", mode)
	f.hangIf("hang_close")
	if _, ok := f.has("fail_close"); ok {
		return errors.New("closing fails, as asked")
	}
	if mode == dataplane.CloseCleanup && f.path != "" {
		return os.RemoveAll(f.path)
	}
	return nil
}

// Inspect tells what was counted; it is one of the few that never fail.
func (f *faulty) Inspect(_ context.Context, id string) (string, any, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.services[id]
	if s == nil {
		return "", nil, dataplane.ErrUnknownService
	}
	return "faulty", map[string]any{"endpoints": len(s.Endpoints), "applies": f.applies, "services": len(f.services)}, nil
}
