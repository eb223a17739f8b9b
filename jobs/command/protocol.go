package command

import (
	"syscall"
	"time"
)

// Both ends of the pipes are the same binary (see [Self]), so the messages need no versions. They are written with gob:
// JSON would not keep bytes that are not UTF-8, which arguments and environments may contain.

// The guard's ends of the two pipes.
const (
	ordersFD  = 3
	reportsFD = 4
)

// order is a message to the guard. The first one has Start and no other has.
type order struct {
	Start *start

	// KillBy is the reading of the boot clock at which everything is killed. 0 leaves it as it is; at the start it
	// means none.
	KillBy time.Duration

	// Signal is sent to the command, if it is not 0. Stop says that it is meant to end the command: however that ends
	// then, it did not end by itself.
	Signal syscall.Signal
	Stop   bool
}

// start is what the guard needs to know to start the command. Where the command's input and output go, and its
// folder, it inherits from the guard.
type start struct {
	Argv   []string
	Env    []string // all of it
	Parent int      // the worker's process id
	Group  int      // the process group to join; 0: one of its own
	Mark   mark     // of the command's processes
	Remove string   // a file to remove when nothing of the command is left; "" for none
}

// report is a message from the guard; each has one of the fields. They come in this order: Failed alone, or Started,
// Ended, Gone. Only Started may be missing before the other two: when the deadline had come before the start.
type report struct {
	Failed  *failed
	Started int // the command's process id
	Ended   *ended
	Gone    *gone // and then the guard exits
}

// failed says why the command could not be started.
type failed struct {
	Reason   string
	Errno    syscall.Errno
	NotFound bool // there is no such program in PATH
}

// ended tells how the command, the first of its processes, has ended.
type ended struct {
	Code    int
	Signal  syscall.Signal
	Stopped bool // because it was told to, or because the guard killed it
	Overdue bool // the guard killed it since the deadline had come

	Terminated bool // the guard has received a SIGTERM that was not sent by way of the worker
}

// gone says that no process is left.
type gone struct {
	Leftovers int // how many the command had left running, which were killed
}
