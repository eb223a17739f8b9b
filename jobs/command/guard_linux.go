package command

import (
	"bytes"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// becomeSubreaper lets every descendant that loses its parent become a child of this process. If the kernel refuses
// (there is none so old that Go runs on it), the group is still killed.
func becomeSubreaper() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// dieWithParent lets the kernel kill the process that is started with attr when the starting thread ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// childrenOf returns the children of a process. It reads the parent of every process, because
// /proc/<pid>/task/<tid>/children does not exist in every kernel and may leave some out while others end.
func childrenOf(parent int) []int {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1) // what could be read is better than nothing; the caller tries again
	var children []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue // has ended
		}
		// "pid (name) state ppid ...", where the name may contain anything.
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// Self returns the path by which this program can be executed again, for Options.Guard. On Linux it is a name for the
// running program itself, so that a guard is never of another version because the file was replaced by an update.
func Self() (string, error) {
	if _, err := os.Stat(selfLink); err == nil {
		return selfLink, nil
	}
	return os.Executable() // no /proc here
}

const selfLink = "/proc/self/exe"
