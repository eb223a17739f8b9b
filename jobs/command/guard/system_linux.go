package guard

import (
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

// Constants of the kernel that package syscall lacks. The doc of the package says why they are not
// those of golang.org/x/sys/unix.
const (
	setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER
	rttime            = 15 // RLIMIT_RTTIME

	openPidfd   = 434 // SYS_PIDFD_OPEN
	readable    = 1   // POLLIN
	ignored     = 1   // SIG_IGN
	sizeOfMasks = 8   // bytes of a set of signals; MIPS has 16, and another order of fields

	currentFolder = -0x64 // AT_FDCWD
	effectiveIDs  = 0x200 // AT_EACCESS
	execute       = 1     // X_OK
)

// AdoptOrphans makes this process a subreaper: from now on, every descendant that loses its parent
// becomes its child. If AdoptOrphans fails, such descendants go to another process, and this one
// cannot know when the last of them has ended.
func AdoptOrphans() error {
	if _, _, err := syscall.Syscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); err != 0 {
		return err
	}
	return nil
}

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

// set marks this process, and thereby the processes that it starts from now on. If the system
// refuses, descendants cannot be distinguished from other processes, and only the command's group
// is killed after the death of its guard.
func (m Mark) set() {
	var limit syscall.Rlimit
	if syscall.Getrlimit(rttime, &limit) == nil {
		limit.Cur = uint64(m)
		_ = syscall.Setrlimit(rttime, &limit)
	}
}

// access returns an error unless the system lets this process execute the file.
func access(file string) error { return syscall.Faccessat(currentFolder, file, execute, effectiveIDs) }

// dieWithParent makes the kernel kill the process started with attr when the starting thread ends.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// survive makes this process ignore signals, and not the processes that it starts. Those would
// inherit what package os/signal ignores. In a process that it starts, the runtime resets every
// signal for which it has installed a handler, and it does not know that survive has replaced the
// handlers. Catching the signals would take longer: package os/signal makes two threads wake each
// other for each of them.
func survive(signals ...syscall.Signal) {
	action := struct {
		handler uintptr
		_       [4]uint64 // flags, restorer and mask: all zero
	}{handler: ignored}
	for _, sig := range signals {
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&action)), 0, sizeOfMasks, 0, 0)
	}
}

// endOf returns a descriptor that can be read as soon as a child has ended (a pidfd), or -1 if the
// system has none: Linux before 5.3 has none, and a sandbox may forbid them. Started processes do
// not inherit it.
func endOf(pid int) int {
	fd, _, err := syscall.Syscall(openPidfd, uintptr(pid), 0, 0)
	if err != 0 {
		return -1
	}
	return int(fd)
}

// await waits until one of two descriptors can be read, orders or end, or for the timeout. It
// reports which can be read. -1 means no descriptor. A signal can make it return early.
func await(orders, end int, timeout time.Duration) (ordered, ended bool) {
	type pollFD struct {
		fd               int32
		awaited, happens int16
	}
	fds := [...]pollFD{{fd: int32(orders), awaited: readable}, {fd: int32(end), awaited: readable}}
	limit := syscall.NsecToTimespec(int64(timeout))
	_, _, err := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&fds)), uintptr(len(fds)), uintptr(unsafe.Pointer(&limit)), 0, 0, 0)
	if err != 0 {
		return false, false
	}
	return fds[0].happens != 0, fds[1].happens != 0 // also at the end of the pipe
}

// childrenOf returns the children of a process. It reads the parent of every process, because
// /proc/<pid>/task/<tid>/children does not exist in every kernel and may omit some children while
// others end.
func childrenOf(parent int) []int {
	var children []int
	for _, pid := range Processes() {
		if _, of := statOf(pid); of == parent {
			children = append(children, pid)
		}
	}
	return children
}

// Processes returns the IDs of all processes.
func Processes() []int {
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

// IsDead reports whether a process has ended. Its parent may not have reaped it yet.
func IsDead(pid int) bool {
	state, _ := statOf(pid)
	return state == 0 || state == 'Z' || state == 'X'
}

// statOf returns the state and the parent of a process, as /proc/<pid>/stat shows them. It returns
// zeros if the process has exited.
func statOf(pid int) (state byte, parent int) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0
	}
	return parseStat(stat)
}

// parseStat parses text such as "17 (sh) S 12 ...". The name in parentheses may contain any
// character.
func parseStat(stat []byte) (state byte, parent int) {
	i := len(stat) - 1
	for i >= 0 && stat[i] != ')' {
		i--
	}
	if i < 0 || len(stat) < i+len(") S 1") {
		return 0, 0
	}
	state = stat[i+2]
	for _, digit := range stat[i+4:] {
		if digit < '0' || digit > '9' {
			break
		}
		parent = 10*parent + int(digit-'0')
	}
	return state, parent
}
