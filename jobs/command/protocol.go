package command

import (
	"syscall"
	"time"
)

// Both ends of the pipes are the same binary (see [Self]), so the messages need no versions. They
// are encoded with gob, because JSON would not preserve bytes that are not UTF-8, and arguments and
// environments may contain such bytes.

// The guard's ends of the two pipes.
const (
	ordersFD  = 3
	reportsFD = 4
)

// order is a message to the guard. Only the first one has Start.
type order struct {
	Start *start

	// KillBy is the reading of the boot clock at which all processes are killed. 0 leaves the
	// deadline unchanged; in the first order it means no deadline.
	KillBy time.Duration

	// Signal is sent to the command unless it is 0. Stop says that the signal asks the command to
	// end: if the command ends after it, the command did not end by itself.
	Signal syscall.Signal
	Stop   bool
}

// start has what the guard needs to start the command. The guard passes on its own input, outputs
// and working directory.
type start struct {
	Argv   []string
	Env    []string // the complete environment
	Parent int      // the worker's process ID
	Group  int      // the process group to join; 0 means a new one
	Mark   mark     // of the command's processes
	// A file to remove when no process of the command is left, or "".
	Remove string
}

// report is a message from the guard. Each has exactly one field. Their order is Failed alone, or
// Started, Ended, Gone. Started may be missing if the deadline had passed before the start.
type report struct {
	Failed  *failed
	Started int // the command's process ID
	Ended   *ended
	Gone    *gone // after this report the guard exits
}

// failed says why the command could not be started.
type failed struct {
	Reason   string
	Errno    syscall.Errno
	NotFound bool // there is no such program in PATH
}

// ended says how the command itself ended.
type ended struct {
	Code    int
	Signal  syscall.Signal
	Stopped bool // it was asked to stop, or the guard killed it
	Overdue bool // the guard killed it because the deadline had passed

	// The guard received a SIGTERM that did not come through the worker.
	Terminated bool
}

// gone says that no process is left.
type gone struct {
	// How many processes the command had left running and the guard killed.
	Leftovers int
}
