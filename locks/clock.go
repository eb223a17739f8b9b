package locks

import (
	"time"

	"lockstep/locks/bootclock"
)

// A clock measures how much time has passed on this machine. The monotonic clock stops while the
// machine is suspended. The boot clock keeps counting, and exists only on Linux. Neither is ever
// set, so a lease is over as soon as one of them says so. The wall clock can be set. A step of it
// may be a mere correction, as after a resume. Or it may be the only trace of a time in which the
// other clocks stopped, too, as in a virtual machine that was paused. So a step counts as a doubt
// that only Redis resolves, see [watchdog].
type clock struct {
	now  func() time.Time     // with a monotonic reading, as returned by time.Now
	boot func() time.Duration // as returned by bootclock.Now
	wall func() time.Time     // nil: the wall clock of now
}

// instant is one reading of all clocks.
type instant struct {
	at   time.Time // carries the monotonic reading
	wall time.Time // carries none
	boot time.Duration
}

func (c clock) read() instant {
	at := c.now()
	wall := at.Round(0) // strips the monotonic reading
	if c.wall != nil {
		wall = c.wall().Round(0)
	}
	return instant{at, wall, c.boot()}
}

// since returns the time that has passed from the reading until now.
func (c clock) since(then instant) time.Duration { return c.read().since(then) }

// since returns the time that passed from an earlier reading to this one, by the clocks that cannot
// be set.
func (i instant) since(then instant) time.Duration {
	passed := i.at.Sub(then.at)
	if bootclock.CountsSuspend {
		passed = max(passed, i.boot-then.boot)
	}
	return passed
}

// stepped returns how much further the wall clock has advanced than the other clocks since an
// earlier reading.
func (i instant) stepped(then instant) time.Duration { return i.wall.Sub(then.wall) - i.since(then) }

// earlier returns the reading d before this one.
func (i instant) earlier(d time.Duration) instant {
	return instant{i.at.Add(-d), i.wall.Add(-d), i.boot - d}
}
