package pgtest

import "syscall"

// ownAttributes make the kernel end the server when the thread that started it ends, so that a test binary that was
// killed leaves none behind. SIGQUIT is its immediate shutdown, which takes its children along.
func ownAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
}
