//go:build unix && !linux

package command

import (
	"time"

	"lockstep/jobs/command/guard"
)

// Only Linux has marks.
func newMark() guard.Mark { return 0 }

func killMarked(guard.Mark, time.Duration) []int { return nil }
