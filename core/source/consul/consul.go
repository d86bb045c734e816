// Package consul is the source of the services of a Consul catalog.
//
// In go the answers of a Consul agent: a blocking query on the list of services,
// and one on the health of each that is selected. Out go services to the
// catalog, whenever something that matters has changed. The agent owns it:
//
//	src, err := consul.New(settings, consul.Options{StatePath: ...})
//	go src.Run(ctx, catalog) // until ctx ends; saves the state at its end
//	src.Set(changed)         // on reload
//	src.AcceptEmpty()        // when the operator says that a loss is right
//
// # What is believed
//
// Consul that can't be read, or whose answers can't be right, never takes
// traffic away: the last state stays, for ever, and is saved for a start without
// Consul. The list of services is the gate. While it can't be read nothing else
// is asked; and a service's last instance, or any instance when Consul's index
// went backwards, is only given up after the list has been read anew, so that a
// catalog that has lost everything is known as one. What one answer may take
// away from a service is judged by [belief].
//
// # How it asks
//
// Over HTTP/2 every service has a blocking query. Over plain HTTP each of them
// takes a connection, of which Consul allows a host 200: there MaxBlocking
// services have one, and the rest is read in turn from the agent's cache, at
// most 200 a second. A question that is answered again and again is slowed down.
// Settings, the token or a certificate that change begin a new round, in which
// everything is read once without waiting.
package consul

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/patchbay-proxy/patchbay/core/source"
)

// Name of the source.
const Name = "consul"

// Settings are what the configuration says. Every one may be left out.
type Settings struct {
	// Address of the agent: host and port, or a URL with http, https or unix.
	// Else CONSUL_HTTP_ADDR, else 127.0.0.1:8500.
	Address string
	// Datacenter to read; the agent's own by default.
	Datacenter string
	// Token, or the file that holds it and is read again when it changes.
	// Else CONSUL_HTTP_TOKEN or CONSUL_HTTP_TOKEN_FILE.
	Token, TokenFile string
	TLS              TLS
	// Select and Exclude choose services, as package selector reads them;
	// "tag:patchbay" by default. What is excluded is never selected.
	Select, Exclude []string
	// DefaultPort is the port of frontends where nobody says another; 0 for
	// none.
	DefaultPort uint16
	// MaxBlocking is how many questions may wait at once over plain HTTP; 100
	// by default.
	MaxBlocking int
	// Hold is how long instances that vanish at once are kept; 15 s by
	// default.
	Hold time.Duration
}

// TLS names the files for HTTPS; they are read again when they change. Else
// CONSUL_CACERT, CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY and
// CONSUL_TLS_SERVER_NAME.
type TLS struct {
	CAFile, CertFile, KeyFile string
	// ServerName that the agent's certificate must be for; its address by
	// default.
	ServerName string
}

func (s *Settings) equal(o *Settings) bool {
	a, b := *s, *o
	a.Select, a.Exclude, b.Select, b.Exclude = nil, nil, nil, nil
	return slices.Equal(s.Select, o.Select) && slices.Equal(s.Exclude, o.Exclude) && fmt.Sprintf("%#v", a) == fmt.Sprintf("%#v", b)
}

func (s *Settings) fill() {
	if s.MaxBlocking <= 0 {
		s.MaxBlocking = 100
	}
	if s.Hold <= 0 {
		s.Hold = 15 * time.Second
	}
}

// Options of a Source; the zero value of each is a default.
type Options struct {
	// StatePath of the file that keeps what is known over a restart; empty for
	// none.
	StatePath string
	Logger    hclog.Logger
	// Resolver of host names that are instances' addresses; the system's by
	// default.
	Resolver source.Resolver
	// Timing for tests; its zero values are defaults.
	Timing Timing
}

// Timing is how long things take.
type Timing struct {
	// Wait is how long a question may wait at Consul; 60 s.
	Wait time.Duration
	// Timeout of an answer, beyond Wait for a question that waits; 30 s.
	Timeout time.Duration
	// Pace is the shortest time between questions of a kind; 1 s.
	Pace time.Duration
	// Settle is how long a service that was lost with Consul's data is waited
	// for, counted from the last that came back; 5 min.
	Settle time.Duration
	// Retry is the longest time between attempts to reach Consul; 5 s. For
	// one service that fails while others can be read it is six times that.
	Retry time.Duration
	// Follow is how often files are looked at; 2 s.
	Follow time.Duration
	// Save is how often the state is saved at most; 5 s.
	Save time.Duration
	// Resolve is how often a host name is resolved again; 30 s, because the
	// system's resolver doesn't tell the TTL.
	Resolve time.Duration
}

func (t *Timing) fill() {
	for _, d := range []struct {
		value *time.Duration
		or    time.Duration
	}{
		{&t.Wait, time.Minute}, {&t.Timeout, 30 * time.Second}, {&t.Pace, time.Second},
		{&t.Settle, 5 * time.Minute}, {&t.Retry, 5 * time.Second}, {&t.Follow, 2 * time.Second},
		{&t.Save, 5 * time.Second}, {&t.Resolve, 30 * time.Second},
	} {
		if *d.value <= 0 {
			*d.value = d.or
		}
	}
}

// maxBody is how large an answer may be, in bytes: one service of 50,000
// instances has less.
const maxBody = 128 << 20

// Source is the Consul source. Its methods may be called from any goroutine;
// Run is called once.
type Source struct {
	log       hclog.Logger
	statePath string
	timing    Timing
	maxBody   int64
	hosts     *hosts
	// again ends the round that runs, so that another begins.
	again chan struct{}

	mu       sync.Mutex
	sink     source.Sink
	settings Settings
	choose   selection
	services map[string]*service
	listing  listing
	round    *round
	// nodeName of the agent's node, where the agent is on this host.
	nodeName string
	// unusable is what is wrong with the settings or the files, so that no
	// question can be asked.
	unusable problem
	// badFile is why a file that has changed can't be used, while what was read
	// of it before stays in force; empty for none.
	badFile string
	// savedAt is when the state that was loaded was saved; zero once Consul
	// has been read.
	savedAt time.Time
	// read is set once everything has been read, or was loaded.
	read    bool
	status  source.Status
	told    bool
	unsaved bool
	// saidFiltered and saidSweep keep the log from repeating itself.
	saidFiltered, saidSweep bool
}

var _ source.Source = (*Source)(nil)

// problem is why something can't be read, and since when.
type problem struct {
	since time.Time
	text  string
}

// New makes a source, and reads its saved state; what is damaged of it is
// logged and done without.
func New(settings Settings, options Options) (*Source, error) {
	if options.Logger == nil {
		options.Logger = hclog.NewNullLogger()
	}
	options.Timing.fill()
	settings.fill()
	choose, err := newSelection(&settings)
	if err != nil {
		return nil, err
	}
	s := &Source{
		log: options.Logger, statePath: options.StatePath, timing: options.Timing, maxBody: maxBody,
		settings: settings, choose: choose,
		again:    make(chan struct{}, 1),
		services: map[string]*service{},
	}
	s.listing.heard = make(chan struct{})
	s.hosts = newHosts(options.Resolver, options.Timing.Resolve, options.Logger, s.hostChanged)
	s.load()
	return s, nil
}

// Name implements source.Source.
func (s *Source) Name() string { return Name }

// Set gives the source other settings. What they no longer select goes when
// Consul has been read with them.
func (s *Source) Set(settings Settings) error {
	settings.fill()
	choose, err := newSelection(&settings)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.settings.equal(&settings) {
		return nil
	}
	if s.settings.Address != settings.Address || s.settings.Datacenter != settings.Datacenter {
		// Another Consul's index says nothing.
		s.listing.seen = 0
		for _, v := range s.services {
			v.seen = 0
		}
	}
	s.settings, s.choose = settings, choose
	for _, v := range s.services {
		s.tell(v)
	}
	s.restart()
	return nil
}

// AcceptEmpty makes the source believe what it holds back: services or
// instances that are gone, and answers filtered by ACLs. It tells whether there
// was anything; it takes effect with the next answer.
func (s *Source) AcceptEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	holding := s.listing.doubt.open || s.listing.denied
	for _, v := range s.services {
		holding = holding || len(v.held) > 0 || v.denied
	}
	if !holding {
		return false
	}
	s.listing.accepted = true
	for _, v := range s.services {
		v.accepted = true
	}
	s.restart()
	return true
}

// restart begins a new round.
func (s *Source) restart() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// Run implements source.Source.
func (s *Source) Run(ctx context.Context, sink source.Sink) error {
	s.mu.Lock()
	s.sink = sink
	for _, v := range s.services {
		s.hosts.use(v.name, v.all())
	}
	s.tellAll()
	s.mu.Unlock()

	var parts sync.WaitGroup
	parts.Go(func() { s.hosts.run(ctx) })
	parts.Go(func() { s.keep(ctx) })
	defer s.save(true)
	defer parts.Wait()
	for ctx.Err() == nil {
		s.runRound(ctx)
	}
	return nil
}

// runRound asks Consul until ctx ends or another round is to begin.
func (s *Source) runRound(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	retry := backoff{first: s.timing.Retry / 8, most: s.timing.Retry}
	for {
		client, err := s.connect()
		if err == nil {
			s.ask(ctx, client)
			client.transport.close()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.again:
		case <-time.After(retry.next()):
		}
	}
}

// connect makes the client of a round.
func (s *Source) connect() (*client, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	client, err := newClient(&s.settings, s.maxBody, s.log)
	if err != nil {
		if s.unusable.text != err.Error() {
			s.log.Error("Consul can't be asked", "error", err)
		}
		s.unusable = problem{orNow(s.unusable.since), err.Error()}
		s.tellStatus()
		return nil, err
	}
	s.unusable, s.badFile = problem{}, ""
	return client, nil
}

func orNow(t time.Time) time.Time {
	if t.IsZero() {
		return time.Now()
	}
	return t
}

// ask runs the queries of a round.
func (s *Source) ask(ctx context.Context, client *client) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := newRound(ctx, s, client)
	s.mu.Lock()
	s.round = r
	s.listing.index, s.listing.answered = 0, time.Time{}
	for _, v := range s.services {
		v.index, v.running = 0, false
	}
	s.mu.Unlock()
	r.parts.Go(func() { r.followListing(ctx) })
	r.parts.Go(func() { r.sweep(ctx) })
	r.parts.Go(func() { r.learnNode(ctx) })
	r.parts.Go(func() { r.followFiles(ctx) })
	select {
	case <-ctx.Done():
	case <-s.again:
	}
	cancel()
	s.mu.Lock()
	s.round = nil
	s.mu.Unlock()
	r.parts.Wait()
}

// keep saves the state now and then, and ends times of waiting.
func (s *Source) keep(ctx context.Context) {
	step := min(s.timing.Save, s.timing.Settle/4, time.Second)
	ticker := time.NewTicker(max(step, time.Millisecond))
	defer ticker.Stop()
	saved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		s.mu.Lock()
		s.endDoubt(time.Now())
		s.mu.Unlock()
		if time.Since(saved) >= s.timing.Save {
			s.save(false)
			saved = time.Now()
		}
	}
}

// tell gives the sink a service as it is known now, if that differs from what
// the sink was told.
func (s *Source) tell(v *service) {
	if s.sink == nil {
		return
	}
	now := s.build(v)
	switch {
	case now == nil && v.told == nil, now != nil && v.told != nil && equalServices(now, v.told):
		return
	case now == nil:
		s.sink.Change(Name, source.Changes{Removed: []string{v.name}})
	default:
		s.sink.Change(Name, source.Changes{Upserts: []*source.Service{now}})
	}
	v.told = now
}

// tellAll gives the sink everything, as at the start.
func (s *Source) tellAll() {
	changes := source.Changes{Replace: true}
	for _, v := range s.services {
		if v.told = s.build(v); v.told != nil {
			changes.Upserts = append(changes.Upserts, v.told)
		}
	}
	s.sink.Change(Name, changes)
	s.tellStatus()
}

// build gives what the sink is to know of a service; nil for nothing.
func (s *Source) build(v *service) *source.Service {
	if !v.visible() {
		return nil
	}
	out := &source.Service{Name: v.name, Meta: v.meta, Port: s.settings.DefaultPort}
	if v.invalid {
		return out
	}
	instances, notes := v.view()
	out.Notes = append(append(out.Notes, v.notes...), notes...)
	if v.problem.text != "" {
		out.Notes = append(out.Notes, fmt.Sprintf("it can't be read since %s, and is kept as it was: %s", v.problem.since.UTC().Format(time.RFC3339), v.problem.text))
	}
	for i := range instances {
		out.Instances = append(out.Instances, s.instancesOf(&instances[i], &out.Notes)...)
	}
	return out
}

// instancesOf gives what stands for one instance: one for each address of a
// host name.
func (s *Source) instancesOf(i *instance, notes *[]string) []source.Instance {
	like := source.Instance{
		ID: i.key(), Address: i.Address, Port: i.Port, Weight: i.Weight, WarningWeight: i.WarningWeight,
		Health: i.Health, Reason: i.Reason, Zone: i.Zone, Node: i.Node,
		Local: s.nodeName != "" && i.Node == s.nodeName,
	}
	if net.ParseIP(i.Address) != nil {
		return []source.Instance{like}
	}
	addresses, why := s.hosts.addresses(i.Address)
	if len(addresses) == 0 {
		like.Health, like.Reason = source.Critical, why
		return []source.Instance{like}
	}
	if why != "" {
		note := fmt.Sprintf("host name %s does not resolve (%s): its last addresses are kept", printable(i.Address, 100), why)
		if !slices.Contains(*notes, note) {
			*notes = append(*notes, note)
		}
	}
	out := make([]source.Instance, 0, len(addresses))
	for _, a := range addresses {
		one := like
		one.Address, one.Host = a.String(), i.Address
		one.ID += "/" + one.Address
		out = append(out, one)
	}
	return out
}

// hostChanged tells the sink of a service whose host name has changed.
func (s *Source) hostChanged(services []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsaved = true
	for _, name := range services {
		if v := s.services[name]; v != nil {
			s.tell(v)
		}
	}
}

func equalServices(a, b *source.Service) bool {
	return a.Name == b.Name && a.Port == b.Port && maps.Equal(a.Meta, b.Meta) &&
		slices.Equal(a.Instances, b.Instances) && slices.Equal(a.Notes, b.Notes)
}
