//go:build unix

package guard

import (
	"errors"
	"io"
	"syscall"
	"time"
)

// The guard's ends of the two pipes.
const (
	OrdersFD  = 3
	ReportsFD = 4
)

// Order is a message to the guard. Only the first one has Start.
type Order struct {
	Start *Start

	// KillBy is the reading of the boot clock at which all processes are killed. 0 leaves the
	// deadline unchanged; in the first order it means no deadline.
	KillBy time.Duration

	// Signal is sent to the command unless it is 0. Stop says that the signal asks the command to
	// end: if the command ends after it, the command did not end by itself.
	Signal syscall.Signal
	Stop   bool
}

// Start has what the guard needs to start the command. The guard passes on its own input, outputs
// and working directory.
type Start struct {
	Argv   []string
	Env    []string // the complete environment
	Parent int      // the worker's process ID
	Group  int      // the process group to join; 0 means a new one
	Mark   Mark     // of the command's processes
	// A file to remove when no process of the command is left, or "".
	Remove string
}

// Report is a message from the guard. Each has exactly one field. Their order is Failed alone, or
// Started, Ended, Gone. Started may be missing if the deadline had passed before the start.
type Report struct {
	Failed  *Failed
	Started int // the command's process ID
	Ended   *Ended
	Gone    *Gone // after this report the guard exits
}

// Failed says why the command could not be started.
type Failed struct {
	Reason   string
	Errno    syscall.Errno
	NotFound bool // there is no such program in PATH
}

// Ended says how the command itself ended.
type Ended struct {
	Code    int
	Signal  syscall.Signal
	Stopped bool // it was asked to stop, or the guard killed it
	Overdue bool // the guard killed it because the deadline had passed

	// The command exited with another status than 0 after the guard had received a SIGTERM. The
	// worker's own SIGTERMs go to the command alone.
	Terminated bool
}

// Gone says that no process is left.
type Gone struct {
	// How many processes the command had left running and the guard killed.
	Leftovers int
}

// A Mark distinguishes the descendants of one guard from all other processes, even after the guard
// has died and they have left the command's process group. It is a resource limit: every process
// inherits the limits of its parent, a new session or an empty environment does not remove them,
// and other processes can read them. The limit is the processor time, in microseconds, that a
// process with real-time scheduling may use without a system call (RLIMIT_RTTIME). Marks are so
// large that they limit nothing. Only the soft limit carries the mark: a guard below the command
// sets its own one.
type Mark uint64

func (o *Order) fields(m *message) {
	optional(m, &o.Start, (*Start).fields)
	number(m, &o.KillBy)
	number(m, &o.Signal)
	flag(m, &o.Stop)
}

func (s *Start) fields(m *message) {
	texts(m, &s.Argv)
	texts(m, &s.Env)
	number(m, &s.Parent)
	number(m, &s.Group)
	number(m, &s.Mark)
	text(m, &s.Remove)
}

func (r *Report) fields(m *message) {
	optional(m, &r.Failed, (*Failed).fields)
	number(m, &r.Started)
	optional(m, &r.Ended, (*Ended).fields)
	optional(m, &r.Gone, (*Gone).fields)
}

func (f *Failed) fields(m *message) {
	text(m, &f.Reason)
	number(m, &f.Errno)
	flag(m, &f.NotFound)
}

func (e *Ended) fields(m *message) {
	number(m, &e.Code)
	number(m, &e.Signal)
	flag(m, &e.Stopped)
	flag(m, &e.Overdue)
	flag(m, &e.Terminated)
}

func (g *Gone) fields(m *message) { number(m, &g.Leftovers) }

// Send sends the order to a guard.
func (o Order) Send(w io.Writer) error { return send(w, o.fields) }

// ReceiveOrder waits for the next order. io.EOF means that there are no more.
func ReceiveOrder(r io.Reader) (Order, error) {
	var o Order
	err := receive(r, o.fields)
	return o, err
}

// Send sends the report to the worker.
func (r Report) Send(w io.Writer) error { return send(w, r.fields) }

// ReceiveReport waits for the next report. io.EOF means that there are no more.
func ReceiveReport(r io.Reader) (Report, error) {
	var report Report
	err := receive(r, report.fields)
	return report, err
}

// A message is encoded as the number of its bytes and then its fields: numbers in eight bytes, with
// the lowest one first, and texts as their length and their bytes. Both ends of the pipes are the
// same binary, so messages need no versions. The encodings of the standard library use reflection.
// That is convenient, but a guard would need more time for it than for all else that it does.
//
// The same list of fields serves both directions: while a message is received, each call of number,
// text, ... takes the next field from data, and otherwise it appends the field to data.
type message struct {
	data      []byte
	receiving bool
	short     bool // it ended before its last field
}

const (
	numberSize = 8
	// longest is the length from which a message is refused, in bytes. Linux passes a few megabytes
	// to a program.
	longest = 1 << 30
)

var errForeign = errors.New("not a message between a worker and a guard")

func send(w io.Writer, fields func(*message)) error {
	m := message{data: make([]byte, numberSize, 256)}
	fields(&m)
	size := message{data: m.data[:0]}
	length := len(m.data) - numberSize
	number(&size, &length)
	_, err := w.Write(m.data) // at once, so that the reader needs to wake up only once
	return err
}

func receive(r io.Reader, fields func(*message)) error {
	header := make([]byte, numberSize)
	if _, err := io.ReadFull(r, header); err != nil {
		return err
	}
	length := int64(0) // on any machine: eight foreign bytes must not become a small number
	number(&message{data: header, receiving: true}, &length)
	if length <= 0 || length > longest {
		return errForeign
	}
	m := message{data: make([]byte, length), receiving: true}
	if _, err := io.ReadFull(r, m.data); errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	} else if err != nil {
		return err
	}
	fields(&m)
	if m.short || len(m.data) > 0 {
		return errForeign
	}
	return nil
}

// take returns the next n bytes of a message that is received, or nothing if it is too short.
func (m *message) take(n int) []byte {
	if n < 0 || n > len(m.data) {
		m.data, m.short = nil, true
		return nil
	}
	taken := m.data[:n]
	m.data = m.data[n:]
	return taken
}

func number[T ~int | ~int64 | ~uint64 | ~uintptr](m *message, n *T) {
	if !m.receiving {
		for shift := 0; shift < 8*numberSize; shift += 8 {
			m.data = append(m.data, byte(uint64(*n)>>shift))
		}
		return
	}
	bits := uint64(0)
	for i, b := range m.take(numberSize) {
		bits |= uint64(b) << (8 * i)
	}
	*n = T(bits)
}

func flag(m *message, set *bool) {
	n := 0
	if *set {
		n = 1
	}
	number(m, &n)
	*set = n != 0
}

func text(m *message, s *string) {
	n := len(*s)
	number(m, &n)
	if m.receiving {
		*s = string(m.take(n))
	} else {
		m.data = append(m.data, *s...)
	}
}

func texts(m *message, list *[]string) {
	n := len(*list)
	number(m, &n)
	if m.receiving {
		*list = nil
	}
	for i := 0; i < n && !m.short; i++ {
		if m.receiving {
			*list = append(*list, "")
		}
		text(m, &(*list)[i])
	}
}

func optional[T any](m *message, p **T, fields func(*T, *message)) {
	set := *p != nil
	flag(m, &set)
	if !set {
		return
	}
	if m.receiving {
		*p = new(T)
	}
	fields(*p, m)
}
