package loop

import (
	"bytes"
	"testing"
)

func TestBuffers(t *testing.T) {
	var b buffers
	var held []int32
	for n := 1; n <= scratchSize; n *= 3 {
		held = append(held, b.park(bytes.Repeat([]byte{byte(n)}, n)))
	}
	for k, i := range held {
		if rest := b.rest(i); rest[0] != rest[len(rest)-1] {
			t.Errorf("buffer %d was overwritten", k)
		}
		if n := len(b.rest(i)); n > 1 && b.took(i, n-1) {
			t.Errorf("buffer %d was freed with a byte left", k)
		}
		if len(b.rest(i)) != 1 || !b.took(i, 1) {
			t.Errorf("buffer %d was not freed with its last byte", k)
		}
	}
	if n := b.inUse(); n != 0 {
		t.Errorf("%d in use", n)
	}
	places := len(b.places)
	if b.drop(b.park([]byte("x"))); len(b.places) != places || b.inUse() != 0 {
		t.Error("a free place was not used again")
	}
}

// TestPipes: a dirty pipe is closed, its place used again with other
// descriptors; empty ones are kept, the large ones first of all; there are
// never more than the most.
func TestPipes(t *testing.T) {
	k := newSimulated()
	p := pipes{most: pipesKept + 4, mostLarge: 1}
	large := p.take(k)
	small := p.take(k)
	if !p.places[large-1].large || p.places[small-1].large {
		t.Fatal("the first pipe is large, the others are not")
	}
	gone := p.places[large-1]
	p.places[large-1].held = 5
	p.give(k, large)
	if k.pipes[gone.in] != nil || p.open != 1 || p.large != 0 {
		t.Errorf("a dirty pipe was kept: %+v", p)
	}
	again := p.take(k)
	made := p.places[again-1]
	if again != large || !made.large || k.pipes[made.in] == nil || k.pipes[made.in].in != made.in || k.pipes[made.out].out != made.out {
		t.Errorf("its place was used for %+v", made)
	}
	taken := []int32{again, small}
	for {
		i := p.take(k)
		if i == 0 {
			break
		}
		taken = append(taken, i)
	}
	if len(taken) != p.most || p.open != p.most {
		t.Errorf("%d pipes taken, %d open, of at most %d", len(taken), p.open, p.most)
	}
	k.noPipes = true
	for _, i := range taken {
		p.give(k, i)
	}
	if p.open != pipesKept || p.large != 1 {
		t.Errorf("%d pipes kept, %d large", p.open, p.large)
	}
	if n := p.trim(k); n != pipesKept || p.open != 0 || len(k.pipes) != 0 {
		t.Errorf("%d trimmed, %d still open, %d ends", n, p.open, len(k.pipes))
	}
	if p.take(k) != 0 {
		t.Error("a pipe out of nothing")
	}
}
