//go:build unix

package cmd

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
)

const (
	// Between two questions to the child: until it has been ready, and after that, unless the
	// watchdog needs more of them.
	askUntilReady = 100 * time.Millisecond
	askLater      = 5 * time.Second

	// afterDrain is how long a worker may take to exit after worker.drain_timeout: it kills
	// commands, records what they did, and calls OnStop.
	afterDrain = 15 * time.Second
)

// state is a working child's answer to its parent's question.
type state struct {
	Ready   bool   // as /readyz
	Stalled bool   // it answers, but what feeds Ready does not run
	Drains  bool   // it has begun to shut down
	Text    string // for people
}

// manager is the service manager of a worker, to which the parent reports: systemd, or another one
// that has its sd_notify protocol. It is nil if there is none, and then does nothing. It belongs to
// the parent's goroutine.
//
// The environment names its socket. The parent keeps these variables and removes them from the
// environment of its child: systemd listens to the main process only, and a command that inherited
// them could report anything as the worker.
type manager struct {
	every    time.Duration // between questions, once the worker has been ready
	ready    bool          // READY=1 was sent
	reloads  bool          // RELOADING=1 was sent, and READY=1 must follow
	stopping bool          // STOPPING=1 was sent
	status   string        // the last STATUS
	drain    time.Duration // worker.drain_timeout, once it is known
}

// newManager returns the service manager of this process, or nil.
func newManager() (*manager, error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil, nil
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		return nil, fmt.Errorf("WATCHDOG_USEC: %w", err)
	}
	m := &manager{every: askLater}
	if watchdog > 0 {
		m.every = min(m.every, watchdog/4)
	}
	return m, nil
}

// withoutManager returns an environment in which no process finds a service manager.
func withoutManager(environ []string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		name, _, _ := strings.Cut(entry, "=")
		return name == "NOTIFY_SOCKET" || name == "WATCHDOG_USEC" || name == "WATCHDOG_PID"
	})
}

// ask returns a timer for the next question, which the caller stops.
func (m *manager) ask() *time.Timer {
	timer := time.NewTimer(time.Hour)
	m.again(timer)
	return timer
}

// again sets the timer for the next question.
func (m *manager) again(timer *time.Timer) {
	switch {
	case m == nil:
		timer.Stop()
	case m.ready:
		timer.Reset(m.every)
	default:
		timer.Reset(min(askUntilReady, m.every))
	}
}

// hears passes on the answer of the child. Any answer feeds the watchdog unless the child has
// stalled: a worker that waits for Redis is not ready, but it recovers by itself, and a restart
// would not bring Redis back.
func (m *manager) hears(s state) {
	if m == nil {
		return
	}
	if s.Drains {
		m.stops()
	}
	m.tells(s.Text)
	if s.Ready && !m.ready && !m.stopping {
		m.ready = true
		m.send(daemon.SdNotifyReady)
	}
	if !s.Stalled {
		m.alive()
	}
}

// alive feeds the watchdog.
func (m *manager) alive() {
	if m != nil {
		m.send(daemon.SdNotifyWatchdog)
	}
}

// tells reports a text for people, once.
func (m *manager) tells(text string) {
	text = strings.ReplaceAll(text, "\n", " ")
	if m == nil || text == m.status {
		return
	}
	m.status = text
	m.send("STATUS=" + text)
}

// reloading reports that a reload begins. Before the worker has been ready, systemd does not expect
// one.
func (m *manager) reloading() {
	if m == nil || !m.ready || m.stopping {
		return
	}
	m.reloads = true
	m.send(daemon.SdNotifyReloading + "\n" + daemon.SdNotifyMonotonicUsec())
}

// reloaded reports that the reload has ended, if one was reported: the new config is used or
// refused, or the child has crashed.
func (m *manager) reloaded() {
	if m == nil || !m.reloads {
		return
	}
	m.reloads = false
	m.send(daemon.SdNotifyReady)
}

// drains receives worker.drain_timeout.
func (m *manager) drains(timeout time.Duration) {
	if m != nil {
		m.drain = timeout
	}
}

// stops reports that the worker shuts down, and how long that may take: the manager would
// otherwise kill a worker whose drain_timeout is longer than the manager's own.
func (m *manager) stops() {
	if m == nil || m.stopping {
		return
	}
	m.stopping = true
	message := daemon.SdNotifyStopping
	if m.drain > 0 {
		message += fmt.Sprintf("\nEXTEND_TIMEOUT_USEC=%d", (m.drain + afterDrain).Microseconds())
	}
	m.send(message)
}

// send sends a message. It ignores errors: a manager that has exited needs no report, and a worker
// works without one.
func (m *manager) send(message string) { _, _ = daemon.SdNotify(false, message) }
