//go:build unix && !linux

package pgtest

import "syscall"

// ownAttributes is for systems without a signal at a parent's death: a killed test binary may leave
// a server behind.
func ownAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
