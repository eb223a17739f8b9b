package command

import (
	"errors"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"lockstep/jobs/command/guard"
)

// newMark returns a random mark that no other guard on this host has. As a limit, it is more than
// 70,000 years.
func newMark() guard.Mark { return guard.Mark(1<<61 | rand.Uint64()>>4) }

// hasMark reports whether a process has the mark.
func hasMark(pid int, m guard.Mark) bool {
	var limit unix.Rlimit
	return unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil && limit.Cur == uint64(m)
}

// killMarked kills every process with the mark until none is left or the time limit has passed. It
// returns those that are left.
func killMarked(m guard.Mark, limit time.Duration) (left []int) {
	// The list is read while processes start and end. Two consecutive reads without a match are
	// reliable.
	for end, clean := time.Now().Add(limit), 0; clean < 2; clean++ {
		left = left[:0]
		for _, pid := range guard.Processes() {
			if hasMark(pid, m) && !guard.IsDead(pid) {
				left = append(left, pid)
				killOneMarked(pid, m, unix.PidfdOpen)
			}
		}
		if len(left) > 0 {
			if time.Now().After(end) {
				return left
			}
			clean = -1
			time.Sleep(lookForMarked) //nolint:forbidigo // short, and never interrupted
		}
	}
	return nil
}

// lookForMarked is how long killed processes may take to end before the next search.
const lookForMarked = 2 * time.Millisecond

// killOneMarked kills a process if it has the mark. The process is not a child of this one, so its
// ID may pass to another process at any time. The descriptor from open, which is pidfd_open, does
// not. Linux before 5.3 has none, and a sandbox may forbid them: there, the ID must do.
func killOneMarked(pid int, m guard.Mark, open func(pid, flags int) (fd int, err error)) {
	kill := func() error { return unix.Kill(pid, unix.SIGKILL) }
	switch fd, err := open(pid, 0); {
	case err == nil:
		defer unix.Close(fd)
		kill = func() error { return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) }
	case errors.Is(err, unix.ESRCH): // it has ended
		return
	}
	if hasMark(pid, m) {
		_ = kill()
	}
}
