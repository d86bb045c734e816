package consul

import (
	"context"
	"math/rand/v2"
	"time"
)

// pace limits how often one question is asked: two at once, then one an
// interval, which grows from a second to fifteen while the question is always
// answered at once. What changes now and then is followed without delay.
type pace struct {
	// interval at rest; 1 s where it is 0.
	interval time.Duration
	tokens   float64
	last     time.Time
	// strain grows with each question that had to wait.
	strain int
}

const (
	burst = 2
	// calmStrain is how many questions in a row may wait before the interval
	// grows, each growthStrain beyond doubling it, up to maxGrowth times.
	calmStrain   = 30
	growthStrain = 5
	maxGrowth    = 15
	// idleStrain is what a wake-up that brought nothing new counts for.
	idleStrain = 3
)

// delay accounts for one question, and gives how long to wait before it.
func (p *pace) delay(now time.Time) time.Duration {
	interval := p.current()
	if p.last.IsZero() {
		p.tokens, p.last = burst, now
	}
	if passed := now.Sub(p.last); passed > 0 {
		p.tokens = min(burst, p.tokens+float64(passed)/float64(interval))
		p.last = now
	}
	full := p.tokens >= burst
	p.tokens--
	switch {
	case p.tokens < 0:
		p.strain++
		wait := time.Duration(-p.tokens * float64(interval))
		// Who waits has paid, at this interval: when it grows, the next
		// question owes that one interval and no more.
		p.tokens, p.last = 0, now.Add(wait)
		return wait
	case full:
		p.strain = 0
	default:
		p.strain = max(0, p.strain-1)
	}
	return 0
}

// idle says that the question brought nothing new.
func (p *pace) idle() { p.strain += idleStrain - 1 }

func (p *pace) current() time.Duration {
	interval := p.interval
	if interval <= 0 {
		interval = time.Second
	}
	growth := 1
	for over := p.strain - calmStrain; over >= 0 && growth < maxGrowth; over -= growthStrain {
		growth *= 2
	}
	p.strain = min(p.strain, calmStrain+4*growthStrain)
	return interval * time.Duration(min(growth, maxGrowth))
}

// backoff between attempts that fail, without end.
type backoff struct {
	// first and most are the shortest and the longest time between two.
	first, most time.Duration
	failures    int
}

// next gives the time to the next attempt: between half and all of a time that
// doubles.
func (b *backoff) next() time.Duration {
	d := b.first
	for range min(b.failures, 30) {
		if d *= 2; d >= b.most {
			d = b.most
			break
		}
	}
	b.failures++
	return d/2 + rand.N(d/2+1)
}

func (b *backoff) reset() { b.failures = 0 }

// sleep waits, and tells whether it could before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
