//go:build !linux

package bootclock

import "time"

// CountsSuspend reports that Now counts through suspend and is never set.
const CountsSuspend = false

// Now returns a wall clock reading.
func Now() time.Duration { return time.Duration(time.Now().UnixNano()) }
