package queue

import (
	"fmt"
	"strings"

	"lockstep/scheduler/repeats"
)

// asynqLog passes asynq's log lines to our logger. While Redis is unreachable, asynq's lines are
// only debugging: the gate has logged the outage once, and an asynq server repeats it every few
// seconds.
type asynqLog struct {
	log  *repeats.Logger
	gate *gate
}

func (l asynqLog) Debug(args ...any) { l.write(l.log.Debug, args) }

// Starting and stopping: our own lines report that.
func (l asynqLog) Info(args ...any)  { l.write(l.log.Debug, args) }
func (l asynqLog) Warn(args ...any)  { l.write(l.log.Warn, args) }
func (l asynqLog) Error(args ...any) { l.write(l.log.Error, args) }

// A library must not end the process.
func (l asynqLog) Fatal(args ...any) { l.write(l.log.Error, args) }

func (l asynqLog) write(to func(string, ...any), args []any) {
	says := strings.TrimSpace(fmt.Sprint(args...))
	if l.gate.fails() {
		to = l.log.Debug
	}
	kind, _, _ := strings.Cut(says, "=") // the rest concerns a single task
	to("asynq", "kind", kind, "says", says)
}
