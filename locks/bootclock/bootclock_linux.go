package bootclock

import (
	"syscall"
	"time"
	"unsafe"
)

// CountsSuspend reports that Now counts through suspend and is never set.
const CountsSuspend = true

// Now returns the time since this machine was booted, suspend included.
func Now() time.Duration {
	const boottime = 7 // CLOCK_BOOTTIME
	var ts syscall.Timespec
	// The doc of the package says why this is not a call of golang.org/x/sys/unix. Linux has the
	// clock since 2.6.39.
	if _, _, err := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, boottime, uintptr(unsafe.Pointer(&ts)), 0); err != 0 {
		panic("bootclock: this kernel has no boot clock: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
