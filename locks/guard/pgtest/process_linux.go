package pgtest

import "syscall"

// ownAttributes make the kernel end the server when the thread that started it ends, so that a
// killed test binary leaves no server behind. SIGQUIT is PostgreSQL's immediate shutdown, which
// also ends its children.
func ownAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGQUIT}
}
