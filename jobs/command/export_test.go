//go:build unix

package command

import "time"

// LimitTurns sets how long the start of a guard waits for its turn, and how long a turn lasts.
func (e *Executor) LimitTurns(limit time.Duration) { e.turns.limit = limit }
