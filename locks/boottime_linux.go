package locks

import (
	"time"

	"golang.org/x/sys/unix"
)

// hasBootClock reports that BootTime counts through suspend and is never set.
const hasBootClock = true

// BootTime returns the time since this machine was booted, suspend included: the one clock that a
// process and its children read alike. Deadlines told to another process are given in it.
func BootTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("locks: this kernel has no boot clock: " + err.Error()) // there since Linux 2.6.39
	}
	return time.Duration(ts.Nano())
}
