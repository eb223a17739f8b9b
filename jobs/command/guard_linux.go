package command

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// AdoptOrphans makes this process a subreaper: from now on, every descendant that loses its parent
// becomes its child. If AdoptOrphans fails, such descendants go to another process, and this one
// cannot know when the last of them has ended.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// KillChildren kills the current children of this process. If this process adopts orphans, then the
// children of a killed child become its own, whatever their group and session. Calling KillChildren
// and reaping until no child is left therefore kills all descendants. Killing one generation at a
// time is safe: the ID of a child stays in use until the child is reaped, but the ID of a
// grandchild might pass to an unrelated process. So call KillChildren only from the goroutine that
// reaps.
func KillChildren() {
	for _, pid := range childrenOf(os.Getpid()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// dieWithParent makes the kernel kill the process started with attr when the starting thread ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// childrenOf returns the children of a process. It reads the parent of every process, because
// /proc/<pid>/task/<tid>/children does not exist in every kernel and may omit some children while
// others end.
func childrenOf(parent int) []int {
	var children []int
	for _, pid := range processes() {
		if fields := statOf(pid); len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
			children = append(children, pid)
		}
	}
	return children
}

// Self returns the path for executing this program again, for Options.Guard. On Linux it refers to
// the running program itself, so an update that replaces the file cannot start a guard of another
// version.
func Self() (string, error) {
	if _, err := os.Stat(selfLink); err == nil {
		return selfLink, nil
	}
	return os.Executable() // without /proc
}

const selfLink = "/proc/self/exe"
