package queue

import (
	"fmt"
	"strings"

	"lockstep/scheduler/repeats"
)

// asynqLog writes asynq's log lines to ours. What asynq says while Redis is away is debugging: the gate has told that
// once, and a server of asynq repeats it every few seconds.
type asynqLog struct {
	log  *repeats.Logger
	gate *gate
}

func (l asynqLog) Debug(args ...any) { l.write(l.log.Debug, args) }
func (l asynqLog) Info(args ...any)  { l.write(l.log.Debug, args) } // starting, stopping: our own lines tell that
func (l asynqLog) Warn(args ...any)  { l.write(l.log.Warn, args) }
func (l asynqLog) Error(args ...any) { l.write(l.log.Error, args) }
func (l asynqLog) Fatal(args ...any) { l.write(l.log.Error, args) } // to end the process is not for a library

func (l asynqLog) write(to func(string, ...any), args []any) {
	says := strings.TrimSpace(fmt.Sprint(args...))
	// The second is about foreign tasks, every ten seconds, and not even true: they are put back.
	if l.gate.fails() || strings.HasPrefix(says, "Retry exhausted") {
		to = l.log.Debug
	}
	kind, _, _ := strings.Cut(says, "=") // what follows is one task's
	to("asynq", "kind", kind, "says", says)
}
