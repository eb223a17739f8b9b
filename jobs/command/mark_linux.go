package command

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A mark distinguishes the descendants of one guard from all other processes, even after the guard
// has died and they have left the command's process group. It is a resource limit: every process
// inherits the limits of its parent, a new session or an empty environment does not remove them,
// and other processes can read them. The limit is the processor time, in microseconds, that a
// process with real-time scheduling may use without a system call. A mark is more than 70,000
// years, so it limits nothing. Only the soft limit carries it: a guard below the command sets its
// own mark.
type mark uint64

// newMark returns a random mark that no other guard on this host has.
func newMark() mark { return mark(1<<61 | rand.Uint64()>>4) }

// set marks this process, and thereby the processes that it starts from now on. If the system
// refuses, descendants cannot be distinguished from other processes, and only the command's group
// is killed after the death of its guard.
func (m mark) set() {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_RTTIME, &limit) == nil {
		limit.Cur = uint64(m)
		_ = unix.Setrlimit(unix.RLIMIT_RTTIME, &limit)
	}
}

// has reports whether a process has the mark.
func (m mark) has(pid int) bool {
	var limit unix.Rlimit
	return unix.Prlimit(pid, unix.RLIMIT_RTTIME, nil, &limit) == nil && limit.Cur == uint64(m)
}

// kill kills every process with the mark until none is left or the time limit has passed. It
// returns those that are left.
func (m mark) kill(limit time.Duration) (left []int) {
	// The list is read while processes start and end. Two consecutive reads without a match are
	// reliable.
	for end, clean := time.Now().Add(limit), 0; clean < 2; clean++ {
		left = left[:0]
		for _, pid := range processes() {
			if m.has(pid) && !isDead(pid) {
				left = append(left, pid)
				m.killOne(pid)
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

// killOne kills a process if it has the mark. The process is not a child of this one, so its ID may
// pass to another process at any time. The descriptor does not.
func (m mark) killOne(pid int) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return // it has ended, or the system has no such descriptors (Linux before 5.3)
	}
	defer unix.Close(fd)
	if m.has(pid) {
		_ = unix.PidfdSendSignal(fd, unix.Signal(syscall.SIGKILL), nil, 0)
	}
}

// processes returns the IDs of all processes.
func processes() []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // a partial list is better than none
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// isDead reports whether a process has ended. Its parent may not have reaped it yet.
func isDead(pid int) bool {
	fields := statOf(pid)
	return len(fields) == 0 || string(fields[0]) == "Z" || string(fields[0]) == "X"
}

// statOf returns the fields of /proc/<pid>/stat from the state on: state, parent, ... It returns
// nothing if the process has exited.
func statOf(pid int) [][]byte {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return nil
	}
	// the name before it may contain any character
	return bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
}
