package cmd

import (
	"bufio"
	"encoding/gob"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"lockstep/configs"
	"lockstep/locks"
	"lockstep/scheduler/worker"
)

// The ends of the two pipes that a working child has of its parent.
const (
	ordersFD = 3
	newsFD   = 4
)

// orphanLimit is how long a child that has lost its parent may take to hand back what it does.
const orphanLimit = 10 * time.Second

// upward is a working child's connection to its parent; nil in every other process, and then it tells nobody.
type upward struct {
	orders *os.File

	mu   sync.Mutex // one piece of news at a time
	news *gob.Encoder
}

// openUpward takes the pipes that the parent has left open. An error says that no parent has started this process.
func openUpward() (*upward, error) {
	for _, fd := range []int{ordersFD, newsFD} {
		var stat syscall.Stat_t
		if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
			return nil, fmt.Errorf("%q is how lockstep start starts its working child; by hand: lockstep start", childWord)
		}
		syscall.CloseOnExec(fd) // what the child starts must neither tell nor hear anything
	}
	return &upward{orders: os.NewFile(ordersFD, "orders"), news: gob.NewEncoder(os.NewFile(newsFD, "news"))}, nil
}

// tell tells the parent. When that is dead, the end of the orders says so.
func (u *upward) tell(n news) {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	_ = u.news.Encode(n)
}

// settings tells how to log, and where the sessions are that follow. Those in a Redis that dies with this process are
// nobody's business.
func (u *upward) settings(s configs.Settings) {
	n := news{Log: &s.Log}
	if s.Redis.URL != embedded {
		n.Redis = &s.Redis
	}
	u.tell(n)
}

// session tells of a session, before anything is claimed under it.
func (u *upward) session(id locks.SessionID) { u.tell(news{Session: id}) }

// hindered tells that this process cannot begin, and why: not by a fault of its own, so it is no crash.
func (u *upward) hindered(why error) { u.tell(news{Hindrance: why.Error()}) }

// stuck tells of the runs that only the end of this process ends.
func (u *upward) stuck(left *worker.StuckError) { u.tell(news{Stuck: left.Runs, Left: left.Left}) }

// orderly says goodbye.
func (u *upward) orderly() { u.tell(news{Orderly: true}) }

// obey reads the orders: signals that the parent was sent. It closes them when the parent is dead.
func (u *upward) obey(signals chan<- os.Signal) {
	defer close(signals)
	orders := bufio.NewReader(u.orders)
	for {
		order, err := orders.ReadByte()
		if err != nil {
			return
		}
		signals <- syscall.Signal(order)
	}
}
