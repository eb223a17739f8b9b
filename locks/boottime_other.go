//go:build !linux

package locks

import "time"

// hasBootClock reports that BootTime counts through suspend and is never set.
const hasBootClock = false

// BootTime returns a wall clock reading: this system has no clock that both counts through suspend
// and is the same in every process. A step of the wall clock therefore moves deadlines told to
// child processes.
func BootTime() time.Duration { return time.Duration(time.Now().UnixNano()) }
