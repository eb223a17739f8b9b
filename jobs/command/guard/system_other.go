//go:build unix && !linux

package guard

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// AdoptOrphans is not supported: only Linux lets a process adopt all of its orphaned descendants.
func AdoptOrphans() error { return errors.ErrUnsupported }

// KillChildren does nothing, because this system offers no safe way to tell children from other
// processes.
func KillChildren() {}

func (Mark) set() {}

// access returns an error unless the system lets this process execute the file.
func access(file string) error {
	return unix.Faccessat(unix.AT_FDCWD, file, unix.X_OK, unix.AT_EACCESS)
}

func dieWithParent(*syscall.SysProcAttr) {}
