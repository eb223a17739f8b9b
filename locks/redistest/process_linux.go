package redistest

import "syscall"

// ownAttributes make the kernel kill the server when the thread that started it ends, so that a test binary that was
// killed leaves none behind; and give it a process group, so that a Ctrl-C for the tests does not end it under them.
func ownAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
