//go:build unix && !linux

package guard

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// AdoptOrphans is not supported: only Linux lets a process adopt all of its orphaned descendants.
func AdoptOrphans() error { return errors.ErrUnsupported }

// KillChildren does nothing, because this system offers no safe way to tell children from other
// processes.
func KillChildren() {}

func (Mark) set() {}

// access returns an error unless the system lets this process execute the file.
func access(file string) error {
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

func dieWithParent(*syscall.SysProcAttr) {}

// survive catches signals. If it ignored them, the command would inherit that.
func survive(signals ...syscall.Signal) {
	for _, sig := range signals {
		signal.Notify(make(chan os.Signal, 1), sig)
	}
}

// endOf returns -1: no descriptor shows the end of a process.
func endOf(int) int { return -1 }

// await waits until orders can be read, or for the timeout. It reports whether orders can be read.
// A signal can make it return early.
func await(orders, _ int, timeout time.Duration) (ordered, ended bool) {
	fds := []unix.PollFd{{Fd: int32(orders), Events: unix.POLLIN}}
	_, err := unix.Poll(fds, int((timeout + time.Millisecond - 1).Milliseconds()))
	return err == nil && fds[0].Revents != 0, false // also at the end of the pipe
}
