// Package loop is the data path of the userspace dataplane: event loops that
// carry TCP connections and UDP datagrams between the clients of services and
// their endpoints.
//
// What goes in: services (Service: where to listen, endpoints, how to choose
// between them, limits), as a set at start and as differences later, through
// Engine.Update. What comes out: carried connections, and counters through
// Engine.Statistics. The package knows nothing of the plugin contract; the
// package above it, userspace, translates.
//
// # The loops
//
// There is one loop per core: a goroutine with an epoll instance of its own and,
// per listen address, a listening socket of its own (SO_REUSEPORT lets the
// kernel spread connections over them). It yields often enough not to be taken
// for one that hogs its thread. A connection
// lives and dies on the loop that accepted it, so nothing on the path of a byte
// is shared or locked. What loops share they touch once per connection: the
// choice of an endpoint (a short mutex per service, so that round robin is
// exact and weights hold however connections are spread over loops) and plain
// atomic counters.
//
// # A connection
//
// A conn is a small struct without pointers, kept in chunks, so that the
// garbage collector has nothing to look at and an idle connection costs about a
// hundred bytes. Its two sockets are registered once, edge-triggered, for
// everything. It moves through these states:
//
//	(greeting) ──> connecting ──> open ──> (freed)
//	     │              │          │
//	     │              │          └─────> lingering ──> (freed)
//	     │              └── another endpoint, or the client is reset
//	     └── the client is reset
//
// Greeting is for sources that are trusted to tell whom they speak for: the
// PROXY protocol header is awaited, looked at without taking it until it is
// whole, and then the client it tells is the one that everything goes by. What
// has to be known of a connection beyond its conn (who the client is, for
// methods and headers that need it; which endpoints have failed it) is its
// origin, kept apart and let go of as soon as nobody needs it.
//
// In connecting the client has been accepted and a non-blocking connect to an
// endpoint is under way. When it is refused or takes longer than the service's
// connect timeout, another endpoint is tried: no byte of the client has been
// read yet, so the client notices nothing. In open each direction is pumped
// independently: receive into the loop's one scratch buffer, send at once, park
// only what the receiver didn't take and stop reading until it does. After some
// big reads in a row a direction changes to splice, with a pipe that is taken
// from a pool and goes back as soon as it is empty.
//
// The end of each direction is carried separately (a client may close its half
// and still get its answer). When a socket fails (reset, time-out), what it had
// sent before is still delivered, and only then is the other side reset: a
// truncated stream must not look like a finished one. lingering waits, bounded,
// until the kernel has delivered what was queued, because a reset would throw
// it away.
//
// # Datagrams
//
// Each loop has a relay (udp.go). The kernel hashes a client's address and port
// over the loops' sockets of a UDP listener, so a client's datagrams come to
// one loop as long as the number of sockets doesn't change: they are opened and
// closed together. A session is found by client and listener and has a socket
// of its own, connected to its endpoint, which so tells of refusals. Like a
// conn it has no pointers; its timer stands on the same wheel.
//
//	fresh ──answer──> answered ──> (freed when silent)
//	  │ ^                │
//	  │ └──── refused ───┤
//	  └──> leaving <─────┘   its endpoint drains or is gone
//	          └──> (freed after a moment)
//
// A leaving session isn't found any more: its client's next datagram begins a
// new one, while late answers still come through. A refused one keeps its key
// and what it has tried, and is connected to another endpoint with the next
// datagram.
//
// What clients send is passed on session by session; what endpoints send is
// gathered over all sessions that had an event, and goes out in few calls.
// Sends never wait: what doesn't fit is dropped and counted.
//
// The listener of an empty service has no sockets, so that the kernel refuses
// in its place. A UDP listener never changes its owner: when an address passes
// from one service to another, a new one takes over the sockets.
//
// # Rules that keep this right
//
//   - A slot freed while a batch of events is handled is used again only after
//     the batch, so that an event that is still in it finds a free slot.
//   - A short read means that the socket is drained, and the next event tells
//     when it is not; unless an end or an urgent mark has been announced, which
//     switches this rule off for that direction for good.
//   - The end of a stream is believed from recv alone: splice also answers 0 in
//     front of an urgent mark when the end has arrived behind it. The urgent
//     byte itself is not carried; the bytes around it are.
//   - What waits to be sent over a session's socket is sent before anything
//     may end a session: its descriptor may be another's a moment later.
//   - A pipe with bytes in it never goes back into the pool.
//   - One direction moves at most so many blocks in a row, then the connection
//     queues behind all others.
//   - Calls that can't block are made without telling the Go scheduler
//     (RawSyscall); epoll_wait that may sleep is made telling it, or a
//     stop-the-world would wait for it. Memory passed to raw calls is heap
//     memory. GOMAXPROCS should be the number of loops + 2.
//
// # Tests
//
// The transitions ask the operating system through the interface kernel. A fuzz
// test drives them with a simulated one (peers that write, end, reset, stall;
// descriptors that run out; edges exactly as epoll gives them) and compares
// what comes out with a model; the other tests use real sockets.
package loop
