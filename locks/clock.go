package locks

import "time"

// A clock measures how much time has passed on this machine. No single one can be trusted with that: the monotonic
// clock stands still while the machine is suspended, the wall clock can be set, and the boot clock, which counts
// through suspend, exists on Linux alone. A lease is over as soon as any of them says so, hence the largest wins.
type clock struct {
	now  func() time.Time     // with a monotonic reading, as time.Now gives it
	boot func() time.Duration // as BootTime gives it
}

// instant is one reading of all clocks.
type instant struct {
	wall time.Time // carries the monotonic reading too
	boot time.Duration
}

func (c clock) read() instant { return instant{c.now(), c.boot()} }

// since returns the time that has passed from the reading until now.
func (c clock) since(then instant) time.Duration { return c.read().since(then) }

// since returns the time that passed from an earlier reading to this one.
func (now instant) since(then instant) time.Duration {
	monotonic := now.wall.Sub(then.wall)
	wall := now.wall.Round(0).Sub(then.wall.Round(0)) // Round(0) strips the monotonic reading
	return max(monotonic, wall, now.boot-then.boot)
}

// earlier returns the reading of d before.
func (i instant) earlier(d time.Duration) instant { return instant{i.wall.Add(-d), i.boot - d} }
