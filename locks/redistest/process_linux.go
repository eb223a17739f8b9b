package redistest

import "syscall"

// ownAttributes make the kernel kill the server when the thread that started it ends, so that a
// killed test binary leaves no server behind. They also give it a process group, so that a Ctrl-C
// for the tests does not end it under them.
func ownAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
