package loop

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchMost is how many datagrams one call receives or sends.
	batchMost = 16
	// datagramMost is the size of the greatest datagram, or of what the kernel
	// has coalesced of several.
	datagramMost = 1 << 16
	// datagramStride keeps the beginnings of buffers apart in the caches, which
	// would put addresses that are 64 KiB apart into the same few places.
	datagramStride = datagramMost + 5*64
	// segmentsMost is how many datagrams one segmented send may hold, and
	// segmentsBytes how many bytes in all (an IP packet less its headers).
	segmentsMost  = 64
	segmentsBytes = 65000
	// segmentMost is the greatest datagram that is joined with others of its
	// size; where the MTU is smaller still, they are sent apart.
	segmentMost = 1472
	// controlSize has room for what is said beside a datagram: its own address
	// and the size of a segment.
	controlSize = 96
)

// message is a struct mmsghdr.
type message struct {
	header unix.Msghdr
	length uint32
}

// received are the datagrams of one or several calls, in buffers that are
// allocated once; the kernel backs them with memory only as far as they have
// ever been filled.
type received struct {
	data     []byte
	messages [batchMost]message
	iovecs   [batchMost]unix.Iovec
	names    [batchMost]unix.RawSockaddrInet6
	control  [batchMost][controlSize]byte
	// nameLength is the room for a sender's address; 0 asks for none.
	nameLength uint32
}

func newReceived(names bool) *received {
	r := &received{data: make([]byte, batchMost*datagramStride)}
	if names {
		r.nameLength = unix.SizeofSockaddrInet6
	}
	for i := range r.messages {
		r.iovecs[i].Base = &r.data[i*datagramStride]
		r.iovecs[i].SetLen(datagramMost)
		h := &r.messages[i].header
		h.Iov = &r.iovecs[i]
		h.SetIovlen(1)
		h.Control = &r.control[i][0]
		if names {
			h.Name = (*byte)(unsafe.Pointer(&r.names[i]))
		}
	}
	return r
}

// receive fills the places from..to with what waits at a socket, as far as
// there is something, and says how many it has filled.
func (r *received) receive(fd int32, from, to int) (int, errno) {
	for i := from; i < to; i++ {
		h := &r.messages[i].header
		h.SetControllen(controlSize)
		h.Namelen = r.nameLength
	}
	n, err := raw(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&r.messages[from])), uintptr(to-from), unix.MSG_DONTWAIT, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

func (r *received) bytes(i int) []byte {
	return r.data[i*datagramStride:][:r.messages[i].length]
}

// said are the control messages that came with a datagram: the size of the
// datagrams of which it has been coalesced, 0 for one; and, if asked for, the
// address to which it was sent, as 4 or 16 bytes, and the interface.
func (r *received) said(i int, address bool) (segment int, to []byte, device uint32) {
	b := r.control[i][:r.messages[i].header.Controllen]
	for len(b) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(b) {
			break
		}
		body := b[unix.CmsgLen(0):n]
		switch {
		case h.Level == unix.SOL_UDP && h.Type == unix.UDP_GRO && len(body) >= 4:
			segment = int(binary.NativeEndian.Uint32(body))
		case !address:
		case h.Level == unix.SOL_IP && h.Type == unix.IP_PKTINFO && len(body) >= unix.SizeofInet4Pktinfo:
			// ipi_spec_dst: of a broadcast it is the address that answers.
			device, to = binary.NativeEndian.Uint32(body), body[4:8]
		case h.Level == unix.SOL_IPV6 && h.Type == unix.IPV6_PKTINFO && len(body) >= unix.SizeofInet6Pktinfo:
			to, device = body[:16], binary.NativeEndian.Uint32(body[16:])
		}
		b = b[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(b)):]
	}
	return segment, to, device
}

// sending are datagrams that go out over one socket in one call. Neighbours of
// one session and one size are joined into one segmented datagram (UDP_SEGMENT),
// which the kernel takes apart, as late as the network card if that can do it.
type sending struct {
	fd       int32
	n, m     int // messages, iovecs
	messages [batchMost]message
	iovecs   [batchMost]unix.Iovec
	piece    unix.Iovec
	names    [batchMost]unix.RawSockaddrInet6
	control  [batchMost][controlSize]byte
	runs     [batchMost]run
}

// run is one message: datagrams of one session.
type run struct {
	session int32
	segment int  // the size of each but the last, which may be smaller
	bytes   int  // in all
	count   int  // of datagrams
	closed  bool // the last one is smaller
}

// joins says whether a datagram, or several coalesced ones, can be added to the
// last message.
func (s *sending) joins(session int32, length, segment int) bool {
	if s.n == 0 {
		return false
	}
	r := &s.runs[s.n-1]
	return r.session == session && !r.closed && segment <= r.segment && (segment == r.segment || length == segment) &&
		segment <= segmentMost && length > 0 &&
		r.bytes+length <= segmentsBytes && r.count+datagrams(length, segment) <= segmentsMost
}

// datagrams is the number of datagrams that have been coalesced.
func datagrams(length, segment int) int {
	if length <= segment {
		return 1
	}
	return (length + segment - 1) / segment
}

// join adds to the last message.
func (s *sending) join(p []byte, segment int) {
	r := &s.runs[s.n-1]
	s.iovec(p)
	s.messages[s.n-1].header.SetIovlen(int(s.messages[s.n-1].header.Iovlen) + 1)
	r.bytes += len(p)
	r.count += datagrams(len(p), segment)
	r.closed = len(p)%r.segment != 0
}

// begin adds a message of its own. There must be room.
func (s *sending) begin(session int32, p []byte, segment int) *unix.Msghdr {
	h := &s.messages[s.n].header
	*h = unix.Msghdr{Iov: &s.iovecs[s.m]}
	h.SetIovlen(1)
	s.iovec(p)
	s.runs[s.n] = run{session: session, segment: segment, bytes: len(p), count: datagrams(len(p), segment),
		closed: segment == 0 || len(p)%segment != 0}
	s.n++
	return h
}

func (s *sending) iovec(p []byte) {
	v := &s.iovecs[s.m]
	v.Base = unsafe.SliceData(p)
	v.SetLen(len(p))
	s.m++
}

// addSegment says beside message i what size its datagrams have. It comes last
// of what is said.
func (s *sending) addSegment(i int) {
	if r := &s.runs[i]; r.count > 1 {
		binary.NativeEndian.PutUint16(s.say(i, unix.SOL_UDP, unix.UDP_SEGMENT, 2), uint16(r.segment))
	}
}

// addSource says beside message i from which address it leaves.
func (s *sending) addSource(i int, k *sessionKey, v6 bool) {
	b := k.bytes(2)
	if !v6 {
		at := s.say(i, unix.SOL_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo)
		clear(at)
		copy(at[4:8], b[12:]) // ipi_spec_dst
		return
	}
	at := s.say(i, unix.SOL_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo)
	copy(at, b[:])
	binary.NativeEndian.PutUint32(at[16:], k.scope())
}

// say adds a control message to message i and gives the place of its body.
func (s *sending) say(i, level, kind, length int) []byte {
	h := &s.messages[i].header
	have := int(h.Controllen)
	h.Control = &s.control[i][0]
	h.SetControllen(have + unix.CmsgSpace(length))
	b := s.control[i][have : have+unix.CmsgSpace(length)]
	c := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	c.Level, c.Type = int32(level), int32(kind)
	c.SetLen(unix.CmsgLen(length))
	return b[unix.CmsgLen(0):]
}

// send sends the messages from i on, and says how many have gone. The error is
// of the first of them.
func (s *sending) send(i int) (int, errno) {
	h := &s.messages[i].header
	if i == s.n-1 && h.Iovlen == 1 && h.Controllen == 0 {
		v := h.Iov
		_, err := raw(unix.SYS_SENDTO, uintptr(s.fd), uintptr(unsafe.Pointer(v.Base)), uintptr(v.Len), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL,
			uintptr(unsafe.Pointer(h.Name)), uintptr(h.Namelen))
		if err != 0 {
			return 0, err
		}
		return 1, 0
	}
	n, err := raw(unix.SYS_SENDMMSG, uintptr(s.fd), uintptr(unsafe.Pointer(&s.messages[i])), uintptr(s.n-i), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}

// sendApart sends the datagrams of message i one by one, without segmentation,
// and says how many could not be sent.
func (s *sending) sendApart(i int) int {
	h, r := &s.messages[i].header, &s.runs[i]
	if r.count > 1 { // without the size of a segment
		h.SetControllen(int(h.Controllen) - unix.CmsgSpace(2))
	}
	if h.Controllen == 0 {
		h.Control = nil
	}
	pieces := unsafe.Slice(h.Iov, int(h.Iovlen))
	h.Iov = &s.piece
	h.SetIovlen(1)
	failed := 0
	for _, v := range pieces {
		p := unsafe.Slice(v.Base, int(v.Len))
		for first := true; first || len(p) > 0; first = false {
			n := min(len(p), r.segment)
			s.piece.Base = unsafe.SliceData(p)
			s.piece.SetLen(n)
			if _, err := raw(unix.SYS_SENDMSG, uintptr(s.fd), uintptr(unsafe.Pointer(h)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0, 0); err != 0 {
				failed++
			}
			p = p[n:]
		}
	}
	return failed
}

func (s *sending) reset() { s.n, s.m = 0, 0 }
