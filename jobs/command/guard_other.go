//go:build !linux

package command

import (
	"errors"
	"os"
	"syscall"
)

// AdoptOrphans would let every descendant that loses its parent become a child of this process: Linux alone does that.
func AdoptOrphans() error { return errors.ErrUnsupported }

// KillChildren would kill the children of this process. Here they cannot be told from others' without a risk.
func KillChildren() {}

func dieWithParent(*syscall.SysProcAttr) {}

// Self returns the path by which this program can be executed again, for Options.Guard.
func Self() (string, error) { return os.Executable() }

const selfLink = "" // there is none
