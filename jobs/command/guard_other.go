//go:build !linux

package command

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// AdoptOrphans would let every descendant that loses its parent become a child of this process: Linux alone does that.
func AdoptOrphans() error { return errors.ErrUnsupported }

// KillChildren would kill the children of this process. Here they cannot be told from others' without a risk.
func KillChildren() {}

// A mark would tell the descendants of one guard from all other processes.
type mark uint64

func newMark() mark { return 0 }

func (mark) set() {}

func (mark) kill(time.Duration) []int { return nil }

func dieWithParent(*syscall.SysProcAttr) {}

// Self returns the path by which this program can be executed again, for Options.Guard.
func Self() (string, error) { return os.Executable() }

const selfLink = "" // there is none
