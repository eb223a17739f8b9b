//go:build unix

package cmd

import (
	"bufio"
	"encoding/gob"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"lockstep/configs"
	"lockstep/locks"
	"lockstep/scheduler/worker"
)

// The working child's ends of the two pipes to its parent.
const (
	ordersFD = 3
	newsFD   = 4
)

// question is the order to report the state. The other orders are signals, and no signal has this
// number.
const question = 0

// orphanLimit is how long a child that has lost its parent may take to hand back its runs.
const orphanLimit = 10 * time.Second

// upward is a working child's connection to its parent. It is nil in every other process, and then
// tells nothing.
type upward struct {
	orders *os.File
	asked  chan struct{}                // questions; buffer of one, closed when the orders end
	state  atomic.Pointer[func() state] // the answer

	mu   sync.Mutex // one message at a time; guards news
	news *gob.Encoder
}

// openUpward opens the pipes that the parent left open. It returns an error if no parent started
// this process.
func openUpward() (*upward, error) {
	for _, fd := range []int{ordersFD, newsFD} {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return nil, fmt.Errorf("%q is for the working child of lockstep start; by hand: lockstep start", childWord)
		}
		syscall.CloseOnExec(fd) // the processes that the child starts must not use the pipes
	}
	return &upward{orders: os.NewFile(ordersFD, "orders"), asked: make(chan struct{}, 1), news: gob.NewEncoder(os.NewFile(newsFD, "news"))}, nil
}

// tell sends news to the parent. It ignores errors: if the parent is dead, the child learns so from
// the end of the orders.
func (u *upward) tell(n news) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.news.Encode(n)
}

// settings tells the parent how to log, and in which Redis the sessions that follow are. A Redis
// that dies with this process is not named: its sessions need no one to end them.
func (u *upward) settings(s configs.Settings) {
	n := news{Log: &s.Log, Drain: s.Worker.DrainTimeout}
	if s.Redis.URL != configs.Embedded {
		n.Redis = &s.Redis
	}
	u.tell(n)
}

// session announces a session to the parent, before anything is claimed under it.
func (u *upward) session(id locks.SessionID) { u.tell(news{Session: id}) }

// answer answers the questions of the parent until the orders end. It has a goroutine of its own:
// a state that cannot be read must not keep back signals.
func (u *upward) answer() {
	for range u.asked {
		s := u.now()
		u.tell(news{State: &s})
	}
}

// now returns the state of this process.
func (u *upward) now() state {
	if read := u.state.Load(); read != nil {
		return (*read)()
	}
	return state{Text: "not ready: the worker has not started"}
}

// answers sets how this process finds its state.
func (u *upward) answers(read func() state) {
	if u != nil {
		u.state.Store(&read)
	}
}

// reloading reports the beginning of a reload.
func (u *upward) reloading() { u.tell(news{Reloading: true}) }

// reloaded reports the end of a reload.
func (u *upward) reloaded() {
	if u != nil {
		s := u.now()
		u.tell(news{Reloaded: true, State: &s})
	}
}

// hindered reports that this process cannot start, and why. The cause lies outside the process, so
// this is not a crash.
func (u *upward) hindered(why error) { u.tell(news{Hindrance: why.Error()}) }

// stuck reports the runs that only the exit of this process ends.
func (u *upward) stuck(left *worker.StuckError) { u.tell(news{Stuck: left.Runs, Left: left.Left}) }

// orderly announces an orderly exit, as the last message.
func (u *upward) orderly() { u.tell(news{Orderly: true}) }

// obey passes on the orders: signals that the parent received. It closes signals when the parent is
// dead.
func (u *upward) obey(signals chan<- os.Signal) {
	defer close(signals)
	defer close(u.asked)
	orders := bufio.NewReader(u.orders)
	for {
		order, err := orders.ReadByte()
		if err != nil {
			return
		}
		if order == question {
			select {
			case u.asked <- struct{}{}:
			default: // the answer to the one that is pending serves both
			}
			continue
		}
		signals <- syscall.Signal(order)
	}
}
