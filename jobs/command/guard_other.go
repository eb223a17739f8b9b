//go:build !linux

package command

import (
	"os"
	"syscall"
)

func becomeSubreaper() {}

func dieWithParent(*syscall.SysProcAttr) {}

func childrenOf(int) []int { return nil }

// Self returns the path by which this program can be executed again, for Options.Guard.
func Self() (string, error) { return os.Executable() }

const selfLink = "" // there is none
