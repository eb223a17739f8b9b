//go:build unix && !linux

package pgtest

import "syscall"

// ownAttributes of systems that have no signal at a parent's death: a killed test binary may leave a server behind.
func ownAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
