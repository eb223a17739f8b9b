//go:build unix && !linux

package redistest

import "syscall"

// ownAttributes give the server a process group, so that a Ctrl-C for the tests does not end it
// under them. These systems have no signal at a parent's death: see the package comment.
func ownAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
