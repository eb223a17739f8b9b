package locks

import (
	"time"

	"lockstep/locks/bootclock"
)

// BootTime returns the time since this machine was booted, suspend included: the one clock that a
// process and its children read alike. Deadlines told to another process are given in it. On
// systems other than Linux, it returns a wall clock reading, and a step of the wall clock moves
// such deadlines.
func BootTime() time.Duration { return bootclock.Now() }
