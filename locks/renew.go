package locks

import (
	"context"
	"time"

	"lockstep/locks/space"
)

// serverClock pairs the server's clock with a reading of the local clocks from before the server
// was asked. Since then the server's clock has advanced by no more than the local ones.
type serverClock struct {
	server time.Time
	local  instant
}

// renew sends one renewal, for the watchdog.
func (s *session) renew(ctx context.Context) (time.Duration, error) {
	s.mu.Lock()
	before, gen := s.counts, s.gen
	s.mu.Unlock()
	c := s.client
	began, local := time.Now(), c.clock.read()
	least, margin := c.recovery.args()
	r, err := space.Run(ctx, c.beat, space.Renew, c.space.keys, string(s.id), c.lease.Milliseconds(), gen.id, gen.epoch,
		least, margin, c.bounds)
	c.sender.took(time.Since(began))
	if err != nil {
		return 0, err
	}
	switch r.At(0) {
	case "dead":
		return 0, errEnded
	case "assert":
		if err := s.reclaim(ctx, generation{r.At(1), r.At(2)}); err != nil {
			return 0, err
		}
	case "ok":
		s.setClock(serverClock{space.Time(r.NumberAt(1)), local})
		s.check(before, uint64(r.NumberAt(2)), int(r.NumberAt(3)))
		c.reaper.due(space.Millis(r.NumberAt(4)))
		if r.NumberAt(4) == 0 { // more was due than one call handles
			c.reaper.now()
		}
		c.recovery.noteLease(r.NumberAt(5), c.lease)
		c.written.Store(r.NumberAt(6))
		c.identity.shows(r.At(7) != "hidden", r.At(8))
	default:
		return 0, space.Unexpected("renew", r)
	}
	s.mu.Lock()
	close(s.renewed)
	s.renewed = make(chan struct{})
	s.mu.Unlock()
	return c.lease, nil
}

func (s *session) setClock(seen serverClock) {
	s.mu.Lock()
	s.clock = seen
	s.mu.Unlock()
}

// doubt handles a reply that the session has ended, since Redis may only have lost it. It renews
// the session and waits for the reply, which settles that. It returns whether the session is alive.
func (s *session) doubt(ctx context.Context, limit <-chan time.Time) bool {
	s.mu.Lock()
	answered := s.renewed
	s.mu.Unlock()
	s.dog.hurry()
	select {
	case <-answered:
		return true
	case <-s.dead:
	case <-ctx.Done():
	case <-limit:
	}
	return false
}
