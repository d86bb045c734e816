package loop

// parked is what a receiver didn't take: bytes from off on.
type parked struct {
	data []byte
	off  int
	next int32 // in the list of free places
}

// bufferSizes are the sizes of parked buffers; the greatest is the most that
// one direction parks, because one read gets no more.
var bufferSizes = [...]int{4 << 10, 16 << 10, scratchSize}

// buffersKept is how many free buffers of each size a loop keeps.
const buffersKept = 64

// buffers are a loop's places for parked bytes, named by place+1.
type buffers struct {
	places []parked
	free   int32 // place+1
	spare  [len(bufferSizes)][][]byte
}

// park copies p, which is not empty and at most scratchSize long.
func (b *buffers) park(p []byte) int32 {
	class := 0
	for bufferSizes[class] < len(p) {
		class++
	}
	var data []byte
	if n := len(b.spare[class]); n > 0 {
		data = b.spare[class][n-1]
		b.spare[class] = b.spare[class][:n-1]
	} else {
		data = make([]byte, bufferSizes[class])
	}
	data = data[:copy(data[:cap(data)], p)]
	i := b.free
	if i == 0 {
		b.places = append(b.places, parked{})
		i = int32(len(b.places))
	} else {
		b.free = b.places[i-1].next
	}
	b.places[i-1] = parked{data: data}
	return i
}

// rest are the bytes that still wait.
func (b *buffers) rest(i int32) []byte {
	p := &b.places[i-1]
	return p.data[p.off:]
}

// took notes that n bytes have gone, and says whether that was all; then the
// place is free.
func (b *buffers) took(i int32, n int) bool {
	p := &b.places[i-1]
	p.off += n
	if p.off < len(p.data) {
		return false
	}
	b.drop(i)
	return true
}

func (b *buffers) drop(i int32) {
	p := &b.places[i-1]
	for class, size := range bufferSizes {
		if cap(p.data) == size && len(b.spare[class]) < buffersKept {
			b.spare[class] = append(b.spare[class], p.data)
		}
	}
	*p = parked{next: b.free}
	b.free = i
}

// inUse counts the places that hold bytes.
func (b *buffers) inUse() int {
	n := len(b.places)
	for i := b.free; i != 0; i = b.places[i-1].next {
		n--
	}
	return n
}

// pipe is a pipe between two sockets: bytes go in at in and come out at out.
type pipe struct {
	in, out int32
	held    int // bytes inside
	large   bool
}

// The kernel counts the pages that a user's pipes can hold, of all processes,
// and beyond 16,384 (fs.pipe-user-pages-soft) gives an unprivileged one tiny
// pipes. So an engine has at most pipesMost pipes, of which largeMost hold
// spliceMost bytes in place of 16 pages: that is 13,000 pages. A large pipe
// takes half the system calls or fewer, as a packet's pieces fill a place each,
// however small. What is busy finds the large ones: only receivers that are
// slower than their senders keep a pipe, and the last one that came back is the
// first to be taken. Beyond pipesMost bulk goes through the scratch buffer.
const (
	pipesMost = 448
	largeMost = 24
)

// pipes are a loop's pipes, named by place+1.
type pipes struct {
	places []pipe
	spare  []int32 // empty ones, with descriptors
	holes  []int32 // places without descriptors
	open   int
	large  int // of the open ones
	// the most that there may be
	most, mostLarge int
}

// take gives an empty pipe, or 0 if there is none to be had.
func (p *pipes) take(k kernel) int32 {
	if n := len(p.spare); n > 0 {
		i := p.spare[n-1]
		p.spare = p.spare[:n-1]
		return i
	}
	if p.open >= p.most {
		return 0
	}
	made, err := k.pipe(p.large < p.mostLarge)
	if err != 0 {
		return 0
	}
	p.open++
	if made.large {
		p.large++
	}
	if n := len(p.holes); n > 0 {
		i := p.holes[n-1]
		p.holes = p.holes[:n-1]
		p.places[i-1] = made
		return i
	}
	p.places = append(p.places, made)
	return int32(len(p.places))
}

// pipesKept is how many empty pipes a loop keeps.
const pipesKept = 32

// give takes a pipe back. One that still has bytes in it is closed, and so is a
// small one that there are enough of.
func (p *pipes) give(k kernel, i int32) {
	if p.places[i-1].held == 0 && (len(p.spare) < pipesKept || p.places[i-1].large) {
		p.spare = append(p.spare, i)
		return
	}
	p.shut(k, i)
}

func (p *pipes) shut(k kernel, i int32) {
	k.close(p.places[i-1].in)
	k.close(p.places[i-1].out)
	if p.places[i-1].large {
		p.large--
	}
	p.places[i-1] = pipe{in: -1, out: -1}
	p.holes = append(p.holes, i)
	p.open--
}

// trim closes the empty pipes and says how many they were.
func (p *pipes) trim(k kernel) int {
	n := len(p.spare)
	for _, i := range p.spare {
		p.shut(k, i)
	}
	p.spare = p.spare[:0]
	return n
}
