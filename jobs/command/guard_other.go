//go:build !linux

package command

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// AdoptOrphans is not supported: only Linux lets a process adopt all of its orphaned descendants.
func AdoptOrphans() error { return errors.ErrUnsupported }

// KillChildren does nothing, because this system offers no safe way to tell children from other
// processes.
func KillChildren() {}

// A mark would distinguish the descendants of one guard from all other processes.
type mark uint64

func newMark() mark { return 0 }

func (mark) set() {}

func (mark) kill(time.Duration) []int { return nil }

func dieWithParent(*syscall.SysProcAttr) {}

// Self returns the path for executing this program again, for Options.Guard.
func Self() (string, error) { return os.Executable() }

const selfLink = "" // no such link
