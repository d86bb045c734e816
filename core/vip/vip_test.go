package vip

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/hashicorp/go-hclog"
)

var compareAddresses = cmpopts.EquateComparable(netip.Addr{})

func pool(name string, ranges ...string) Pool {
	p := Pool{Name: name}
	for _, r := range ranges {
		p.CIDR = append(p.CIDR, netip.MustParsePrefix(r))
	}
	return p
}

// shelf is a file of leases with a clock that is moved by hand.
type shelf struct {
	*File
	t    testing.TB
	path string
	now  time.Time
	log  strings.Builder
}

func open(t testing.TB, pools ...Pool) *shelf {
	s := &shelf{t: t, path: filepath.Join(t.TempDir(), FileName), now: time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)}
	s.reopen()
	s.Configure(pools, nil)
	return s
}

func (s *shelf) reopen() {
	s.t.Helper()
	if s.File != nil {
		if err := s.Close(); err != nil {
			s.t.Fatal(err)
		}
	}
	var pools []Pool
	var reserved []netip.Addr
	if s.File != nil {
		pools = s.table.pools
		for a := range s.table.reserved {
			reserved = append(reserved, a)
		}
	}
	f, err := OpenFile(s.path, FileOptions{Now: func() time.Time { return s.now }, Logger: hclog.New(&hclog.LoggerOptions{Output: &s.log})})
	if err != nil {
		s.t.Fatal(err)
	}
	s.File = f
	s.t.Cleanup(func() { _ = f.Close() })
	s.Configure(pools, reserved)
}

func (s *shelf) claim(service string) []netip.Addr {
	s.t.Helper()
	l, err := s.Claim("", service)
	if err != nil {
		s.t.Fatalf("claim of %s: %v", service, err)
	}
	return l.Addresses
}

func TestCandidatesCoverTheRangeOnce(t *testing.T) {
	for _, test := range []struct {
		r           string
		count       int
		first, last string // never leased, except in the smallest ranges
	}{
		{"10.96.0.0/24", 254, "10.96.0.0", "10.96.0.255"},
		{"10.96.0.16/28", 14, "10.96.0.16", "10.96.0.31"},
		{"10.96.0.8/30", 2, "10.96.0.8", "10.96.0.11"},
		{"10.96.0.8/31", 2, "", ""},
		{"10.96.0.8/32", 1, "", ""},
		{"fd00::/120", 255, "fd00::", ""},
		{"fd00::4/127", 2, "", ""},
		{"fd00::5/128", 1, "", ""},
	} {
		r := netip.MustParsePrefix(test.r)
		for _, service := range []string{"web", "redis", ""} {
			seen := map[netip.Addr]bool{}
			for a := range Candidates(r, service) {
				if seen[a] || !r.Contains(a) || a.String() == test.first || a.String() == test.last {
					t.Errorf("%s for %q gives %s, which it has given, or must not", r, service, a)
				}
				seen[a] = true
			}
			if len(seen) != test.count || Size(r) != uint64(test.count) {
				t.Errorf("%s for %q gives %d addresses, its size is %d, want %d", r, service, len(seen), Size(r), test.count)
			}
		}
	}
}

// TestCandidatesAreAContract: other nodes and other versions derive the same.
func TestCandidatesAreAContract(t *testing.T) {
	for _, test := range []struct{ r, service, want string }{
		{"10.96.0.0/16", "web", "10.96.66.185 10.96.213.78 10.96.103.227"},
		{"10.96.0.0/16", "redis", "10.96.157.249 10.96.205.94 10.96.252.195"},
		{"fd00:96::/64", "web", "fd00:96::4b5e:57f6:eb2f:42b9 fd00:96::4ef9:9514:fec1:d54e fd00:96::5294:d233:1254:67e3"},
		{"fd00:96::/32", "web", "fd00:96::4b5e:57f6:eb2f:42b9 fd00:96::4ef9:9514:fec1:d54e fd00:96::5294:d233:1254:67e3"},
		{"10.96.0.0/29", "web", "10.96.0.1 10.96.0.6 10.96.0.3"},
	} {
		var got []string
		for a := range Candidates(netip.MustParsePrefix(test.r), test.service) {
			if got = append(got, a.String()); len(got) == 3 {
				break
			}
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("candidates of %s in %s are %q, want %q", test.service, test.r, s, test.want)
		}
	}
}

func TestLargeRangeIsSpread(t *testing.T) {
	r := netip.MustParsePrefix("fd00::/64")
	seen := map[netip.Addr]bool{}
	for i := range 1000 {
		for a := range Candidates(r, fmt.Sprint(i)) {
			if !r.Contains(a) {
				t.Errorf("%s is outside", a)
			}
			seen[a] = true
			break
		}
	}
	if len(seen) != 1000 {
		t.Errorf("1000 names have %d first candidates", len(seen))
	}
}

func TestClaim(t *testing.T) {
	s := open(t, pool("a", "fd00::/112", "10.96.0.0/24"), pool("b", "10.97.0.0/24"))
	web := s.claim("web")
	if len(web) != 2 || !web[0].Is4() || !web[1].Is6() {
		t.Fatalf("web has %v, want one address of each family, IPv4 first", web)
	}
	if again := s.claim("web"); !slices.Equal(web, again) {
		t.Errorf("the second claim gives %v, the first gave %v", again, web)
	}
	if l, held := s.Lease("web"); !held || l.Pool != "a" || !l.Since.Equal(s.now) {
		t.Errorf("lease is %+v, %v", l, held)
	}
	if _, err := s.Claim("c", "web"); !errors.Is(err, ErrNoPool) {
		t.Errorf("error is %v, want ErrNoPool", err)
	}
	// Another pool: the first address is given back.
	moved, err := s.Claim("b", "web")
	if err != nil || len(moved.Addresses) != 1 || !netip.MustParsePrefix("10.97.0.0/24").Contains(moved.Addresses[0]) {
		t.Errorf("moved to %v, %v", moved, err)
	}
	if l := s.List(); len(l) != 3 || !l[0].Held() || l[1].Held() || l[2].Held() {
		t.Errorf("leases are %+v, want one held and two that rest", l)
	}
	// And back again, to the same addresses.
	if back := s.claim("web"); !slices.Equal(web, back) {
		t.Errorf("back at %v, it was %v", back, web)
	}
}

func TestNoPool(t *testing.T) {
	if _, err := open(t).Claim("", "web"); !errors.Is(err, ErrNoPool) {
		t.Errorf("error is %v, want ErrNoPool", err)
	}
}

func TestAddressesAreUniqueUntilExhausted(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	owner := map[netip.Addr]string{}
	for i := range 254 {
		service := fmt.Sprint("service-", i)
		a := s.claim(service)[0]
		if owner[a] != "" {
			t.Fatalf("%s has %s and %s", a, owner[a], service)
		}
		owner[a] = service
	}
	if _, err := s.Claim("", "one more"); !errors.Is(err, ErrExhausted) {
		t.Errorf("error is %v, want ErrExhausted", err)
	}
	if l := s.List(); len(l) != 254 {
		t.Errorf("%d leases", len(l))
	}
}

// TestBothFamiliesOrNone: a lease is whole.
func TestBothFamiliesOrNone(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24", "fd00::1/128"))
	s.claim("first")
	if _, err := s.Claim("", "second"); !errors.Is(err, ErrExhausted) {
		t.Errorf("error is %v, want ErrExhausted", err)
	}
	if l, held := s.Lease("second"); held {
		t.Errorf("it holds %v all the same", l)
	}
}

func TestRest(t *testing.T) {
	s := open(t, pool("a", "10.96.0.1/32"))
	a := s.claim("web")
	taken := s.now
	s.now = s.now.Add(time.Hour)
	if err := s.Release("web"); err != nil {
		t.Fatal(err)
	}
	for _, reopen := range []bool{false, true} {
		if reopen {
			s.reopen()
		}
		if _, err := s.Claim("", "other"); !errors.Is(err, ErrExhausted) {
			t.Errorf("reopened %v: error is %v, want ErrExhausted", reopen, err)
		}
	}
	s.now = s.now.Add(Rest - time.Second)
	if _, err := s.Claim("", "other"); !errors.Is(err, ErrExhausted) {
		t.Errorf("a second before the end: error is %v, want ErrExhausted", err)
	}
	// Its own service gets it back, and is as old as it was.
	if again := s.claim("web"); !slices.Equal(a, again) {
		t.Errorf("it has %v, before it had %v", again, a)
	}
	if l, _ := s.Lease("web"); !l.Since.Equal(taken) {
		t.Errorf("since %v, want %v", l.Since, taken)
	}
	if err := s.Release("web"); err != nil {
		t.Fatal(err)
	}
	s.now = s.now.Add(Rest)
	if other := s.claim("other"); !slices.Equal(other, a) {
		t.Errorf("other has %v, want %v", other, a)
	}
	if _, err := s.Claim("", "web"); !errors.Is(err, ErrExhausted) {
		t.Errorf("error is %v, want ErrExhausted", err)
	}
	// The second release of the same lease ends the rest.
	for range 2 {
		if err := s.Release("other"); err != nil {
			t.Fatal(err)
		}
	}
	s.claim("web")
	s.reopen()
	if l := s.List(); len(l) != 1 || l[0].Service != "web" {
		t.Errorf("leases are %v", l)
	}
}

func TestReservedAddressesAreNotLeased(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/29"))
	var first netip.Addr
	for a := range Candidates(netip.MustParsePrefix("10.96.0.0/29"), "web") {
		first = a
		break
	}
	s.Configure(s.table.pools, []netip.Addr{first, netip.MustParseAddr("10.99.0.1")})
	if a := s.claim("web")[0]; a == first {
		t.Errorf("web got %s, which is reserved", a)
	}
	for i := range 4 {
		s.claim(fmt.Sprint(i))
	}
	if _, err := s.Claim("", "one more"); !errors.Is(err, ErrExhausted) {
		t.Errorf("error is %v, want ErrExhausted: 6 addresses, 1 reserved, 5 leased", err)
	}
	// A lease from before the reservation stays.
	s = open(t, pool("a", "10.96.0.0/29"))
	before := s.claim("web")
	s.Configure(s.table.pools, before)
	if after := s.claim("web"); !slices.Equal(before, after) {
		t.Errorf("web moved from %v to %v", before, after)
	}
}

func TestRangeChanges(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	before := s.claim("web")[0]
	since := s.now
	s.now = s.now.Add(time.Minute)
	// A family is added: the address stays, and the lease is as old as it was.
	s.Configure([]Pool{pool("a", "10.96.0.0/16", "fd00::/112")}, nil)
	after := s.claim("web")
	if l, _ := s.Lease("web"); len(after) != 2 || after[0] != before || !l.Since.Equal(since) {
		t.Errorf("lease is %+v, want %s and one more since %v", l, before, since)
	}
	// The range moves: so does the service.
	s.Configure([]Pool{pool("a", "10.97.0.0/24")}, nil)
	if moved := s.claim("web"); len(moved) != 1 || moved[0] == before {
		t.Errorf("moved to %v", moved)
	}
}

func TestReopen(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24", "fd00::/112"))
	for i := range 20 {
		s.claim(fmt.Sprint("service-", i))
		s.now = s.now.Add(time.Second)
	}
	if err := s.Release("service-7"); err != nil {
		t.Fatal(err)
	}
	before := s.List()
	s.reopen()
	if diff := cmp.Diff(before, s.List(), compareAddresses); diff != "" {
		t.Errorf("leases after reopening (-before +after):\n%s", diff)
	}
	if s.log.Len() > 0 {
		t.Errorf("the log says:\n%s", s.log.String())
	}
}

// TestKilled: what was claimed is in the file without any goodbye.
func TestKilled(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	s.claim("web")
	data, err := os.ReadFile(s.path)
	if err != nil {
		t.Fatal(err)
	}
	claims, damage, err := decodeJournal(data)
	if err != nil || damage != "" || len(claims) != 1 || claims[0].Service != "web" {
		t.Errorf("the file holds %v, %q, %v", claims, damage, err)
	}
}

// TestDamaged: one line's damage costs that line, and is said; services get
// the addresses that their names lead to.
func TestDamaged(t *testing.T) {
	const services = 20
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
		kept   int
	}{
		{"cut in the last line", func(d []byte) []byte { return d[:len(d)-5] }, services - 1},
		{"a bit in the middle", func(d []byte) []byte { d[len(d)/2] ^= 4; return d }, services - 1},
		{"a line is gone", func(d []byte) []byte {
			return []byte(strings.Join(slices.Delete(strings.SplitAfter(string(d), "\n"), 0, 1), ""))
		}, services},
		{"empty", func([]byte) []byte { return nil }, 0},
		{"garbage", func([]byte) []byte { return []byte(strings.Repeat("\xff\x00\n", 1<<18)) }, 0},
		{"zeros, as after a power failure", func(d []byte) []byte { return make([]byte, len(d)) }, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := open(t, pool("a", "10.96.0.0/16"))
			before := map[string]netip.Addr{}
			for i := range services {
				service := fmt.Sprint("service-", i)
				before[service] = s.claim(service)[0]
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(s.path)
			if err != nil {
				t.Fatal(err)
			}
			damaged := test.damage(data)
			if err := os.WriteFile(s.path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			s.reopen()
			if got := len(s.List()); got != test.kept {
				t.Errorf("%d leases are kept, want %d", got, test.kept)
			}
			if aside, err := os.ReadFile(s.path + ".damaged"); err != nil || string(aside) != string(damaged) {
				t.Errorf("the damaged file is not kept: %v", err)
			}
			if !strings.Contains(s.log.String(), "leases of VIPs are damaged") {
				t.Errorf("the log says %q", s.log.String())
			}
			for service, a := range before {
				if got := s.claim(service)[0]; got != a {
					t.Errorf("%s moved from %s to %s", service, a, got)
				}
			}
			s.log.Reset()
			s.reopen()
			if s.log.Len() > 0 || len(s.List()) != services {
				t.Errorf("after that, %d leases, and the log says %q", len(s.List()), s.log.String())
			}
		})
	}
}

// TestDamagedCompletely: services keep their addresses even where others would
// be first by their names, as long as they had them at the last start.
func TestDamagedCompletely(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/26"))
	before := map[string]netip.Addr{}
	for i := range 50 {
		service := fmt.Sprint("service-", i)
		before[service] = s.claim(service)[0]
	}
	s.reopen()
	if err := s.Release("service-3"); err != nil {
		t.Fatal(err)
	}
	s.claim("late")
	if err := os.WriteFile(s.path, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.reopen()
	// The other way round, each would take what another one has.
	for i := 49; i >= 0; i-- {
		service := fmt.Sprint("service-", i)
		if got := s.claim(service)[0]; got != before[service] {
			t.Errorf("%s moved from %s to %s", service, before[service], got)
		}
	}
	if _, held := s.Lease("late"); held {
		t.Error("a lease that was lost is there")
	}
	consistent(t, s.table)
	// Nothing at all is a new beginning, whatever lies beside it.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(s.path); err != nil {
		t.Fatal(err)
	}
	s.reopen()
	if l := s.List(); len(l) > 0 {
		t.Errorf("leases are %v", l)
	}
}

func TestUnreadable(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(filepath.Join(dir, "folder"), FileOptions{}); err == nil {
		t.Error("a folder was taken for a file")
	}
	if _, err := OpenFile(filepath.Join(dir, "none", "x"), FileOptions{}); err == nil {
		t.Error("a folder that isn't there was written to")
	}
	path := filepath.Join(dir, "newer")
	newer := appendLine(nil, journalHead{Kind: "leases", Version: 2})
	if err := os.WriteFile(path, newer, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(path, FileOptions{}); err == nil || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("error is %v", err)
	}
	if data, _ := os.ReadFile(path); string(data) != string(newer) {
		t.Error("a newer file was changed")
	}
}

// TestFullDisk: a lease that can't be recorded isn't given, and the file stays
// whole.
func TestFullDisk(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	s.claim("web")
	// Half a line fits.
	undo := limitFileSize(t, uint64(s.size)+30)
	_, err := s.Claim("", "redis")
	releaseErr := s.Release("web")
	undo()
	if !errors.Is(err, ErrWaiting) || !errors.Is(err, syscall.EFBIG) {
		t.Errorf("error is %v, want ErrWaiting because of %v", err, syscall.EFBIG)
	}
	if !errors.Is(releaseErr, syscall.EFBIG) {
		t.Errorf("error of the release is %v, want %v", releaseErr, syscall.EFBIG)
	}
	if l := s.List(); len(l) != 1 || l[0].Service != "web" || !l[0].Held() {
		t.Errorf("leases are %v", l)
	}
	if n := strings.Count(s.log.String(), "can't be written"); n != 1 {
		t.Errorf("two failures are told %d times: %s", n, s.log.String())
	}
	s.log.Reset()
	redis := s.claim("redis")
	s.reopen()
	if l, held := s.Lease("redis"); !held || !slices.Equal(l.Addresses, redis) || s.log.Len() > 0 {
		t.Errorf("lease is %v, %v; the log says %q", l, held, s.log.String())
	}
}

// limitFileSize stands for a full disk: no file of the process grows above n
// bytes.
func limitFileSize(t *testing.T, n uint64) (undo func()) {
	t.Helper()
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: n, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFullDiskAtStart: the known leases are in force, and what comes waits.
func TestFullDiskAtStart(t *testing.T) {
	for _, damage := range []bool{false, true} {
		s := open(t, pool("a", "10.96.0.0/24"))
		web := s.claim("web")
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if damage {
			data, _ := os.ReadFile(s.path)
			if err := os.WriteFile(s.path, append(data, "garbage"...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		undo := limitFileSize(t, 20)
		s.reopen()
		if got := s.claim("web"); !slices.Equal(got, web) {
			t.Errorf("web has %v, it had %v", got, web)
		}
		_, err := s.Claim("", "redis")
		undo()
		if !errors.Is(err, ErrWaiting) {
			t.Errorf("error is %v, want ErrWaiting", err)
		}
		s.claim("redis")
		s.reopen()
		if n := len(s.List()); n != 2 {
			t.Errorf("%d leases", n)
		}
	}
}

// TestFileStaysSmall: leases that come and go don't fill the disk.
func TestFileStaysSmall(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	for range 2000 {
		s.claim("web")
		if err := s.Release("web"); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(s.path)
	if err != nil || info.Size() > 300<<10 {
		t.Errorf("size is %d, %v", info.Size(), err)
	}
	s.reopen()
	if l := s.List(); len(l) != 1 || l[0].Held() {
		t.Errorf("leases are %v", l)
	}
}

func TestPreviewChangesNothing(t *testing.T) {
	s := open(t, pool("a", "10.96.0.0/24"))
	s.claim("web")
	data, _ := os.ReadFile(s.path)
	p := s.Preview()
	redis, err := p.Claim("", "redis")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Release("web"), p.Sync()); err != nil {
		t.Fatal(err)
	}
	p.Configure(nil, nil)
	if l := s.List(); len(l) != 1 || l[0].Service != "web" || !l[0].Held() {
		t.Errorf("leases are %v", l)
	}
	if after, _ := os.ReadFile(s.path); string(after) != string(data) {
		t.Error("the file has changed")
	}
	if got := s.claim("redis"); !slices.Equal(got, redis.Addresses) {
		t.Errorf("redis got %v, the preview said %v", got, redis.Addresses)
	}
}

func FuzzJournal(f *testing.F) {
	one := claim{Service: "web", Pool: "a", Address: netip.MustParseAddr("10.96.0.1"), Since: time.Unix(1, 0).UTC()}
	two := one
	two.Released = time.Unix(2, 0).UTC()
	three := claim{Service: "other", Pool: "a", Address: one.Address, Since: time.Unix(3, 0).UTC(), Forgotten: true}
	good := append(journalHeader(), encodeClaims([]claim{one, two, three})...)
	f.Add(good)
	f.Add(good[:len(good)-9])
	f.Add([]byte{})
	f.Add([]byte("00000000 \n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		claims, _, err := decodeJournal(data)
		if err != nil {
			return
		}
		table := newTable()
		table.configure([]Pool{pool("a", "10.96.0.0/28", "fd00::/120")}, nil)
		for _, c := range claims {
			table.put(c)
		}
		table.sortRests()
		now := time.Date(2024, 5, 1, 12, 0, 0, 0, time.UTC)
		table.rested(now)
		changed, err := table.decide("", "web", now)
		if err != nil && !errors.Is(err, ErrExhausted) {
			t.Fatal(err)
		}
		for _, c := range changed {
			table.put(c)
		}
		consistent(t, table)
	})
}

// consistent checks that the parts of a table agree.
func consistent(t *testing.T, table *table) {
	n := 0
	for service, addresses := range table.byService {
		for _, a := range addresses {
			n++
			if table.byAddress[a].Service != service {
				t.Errorf("%s is listed for %q, and belongs to %q", a, service, table.byAddress[a].Service)
			}
		}
	}
	if n != len(table.byAddress) {
		t.Errorf("%d addresses are listed, %d are taken", n, len(table.byAddress))
	}
	for r, taken := range table.taken {
		var want uint64
		for a := range table.byAddress {
			if usable(r, a) {
				want++
			}
		}
		for a := range table.reserved {
			if _, ok := table.byAddress[a]; !ok && usable(r, a) {
				want++
			}
		}
		if taken != want {
			t.Errorf("%d addresses of %s are counted, %d are taken", taken, r, want)
		}
	}
}

func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{1_000, 5_000, 20_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := open(b, pool("a", "10.96.0.0/16"))
			for i := range n {
				s.claim(fmt.Sprint("service-", i))
			}
			for b.Loop() {
				s.claim("one more")
				_ = s.Release("one more")
				_ = s.Release("one more")
				if err := s.Sync(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
