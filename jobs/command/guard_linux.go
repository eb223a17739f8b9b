package command

import (
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// AdoptOrphans lets every descendant that loses its parent become a child of this process from now on: it becomes a
// subreaper. An error says that they go elsewhere, so that nobody can tell when the last of them has ended.
func AdoptOrphans() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }

// KillChildren kills the children that this process has at this moment. Their own children, whatever group and session
// they are in, become this process's when they are dead, if it adopts orphans: who calls it again and again, and reaps,
// until no child is left has killed all descendants. Going down step by step is safe: a child's id stays taken until it
// is reaped, that of a grandchild might pass to a stranger. So only who reaps may call it, and in the same goroutine.
func KillChildren() {
	for _, pid := range childrenOf(os.Getpid()) {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// dieWithParent lets the kernel kill the process that is started with attr when the starting thread ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// childrenOf returns the children of a process. It reads the parent of every process, because
// /proc/<pid>/task/<tid>/children does not exist in every kernel and may leave some out while others end.
func childrenOf(parent int) []int {
	var children []int
	for _, pid := range processes() {
		if fields := statOf(pid); len(fields) > 1 && string(fields[1]) == strconv.Itoa(parent) {
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
