//go:build unix

package cmd

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"syscall"
	"time"

	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/jobs/command"
	"lockstep/jobs/command/guard"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const (
	burialLimit = time.Second            // to kill what a crash leaves; then the lease decides
	lookAgain   = 5 * time.Millisecond   // between looks for new orphans, which no signal announces
	endLimit    = 5 * time.Second        // to report a death, end sessions; then the lease decides
	reportTry   = time.Second            // for one attempt at the report, and between later reports
	keptIDs     = 4                      // sessions of a child that its parent remembers
	reportPause = 50 * time.Millisecond  // between two attempts
	lastWords   = 100 * time.Millisecond // for news that is still in the pipe of a dead child
	crashSpan   = time.Minute            // maxCrashes within this span
	maxCrashes  = 5                      // end the parent
	mendFirst   = time.Second            // before the first retry of a child that could not start
	mendMost    = 30 * time.Second       // later pauses double, up to this
)

// crashPauses are the parent's pauses after the first, second, ... crash within crashSpan.
var crashPauses = [maxCrashes - 1]time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second}

// childWord is the first argument of this binary when it runs as the working child of a parent.
const childWord = "worker:"

// news is a message from a working child to its parent. Both are the same binary, so it needs no
// version.
type news struct {
	Redis     *configs.Redis // where its sessions are; sent once, before the first of them
	Log       *configs.Log   // how the parent must log
	Session   locks.SessionID
	Hindrance string        // why it cannot start, for a cause outside of it: what OnStart needs
	Drain     time.Duration // worker.drain_timeout; sent with Log
	State     *state        // the answer to a question
	Reloading bool          // a reload of the config begins
	Reloaded  bool          // it has ended; State is how
	Orderly   bool          // it exits now, and has ended or handed back all runs except Stuck

	Stuck []jobs.RunID    // runs whose work continues until its exit, or longer
	Left  []ledger.Finish // how to record the ends of their attempts after it
}

// parent is the first of the two processes of a worker; the package comment describes the protocol.
// All of it belongs to one goroutine. Only that goroutine starts, kills and reaps, so no process ID
// that it uses can pass to another process in between.
type parent struct {
	argv     []string         // of the child
	signals  <-chan os.Signal // to pass on
	children <-chan os.Signal // some child has exited
	terminal bool             // it had one at its start
	// it can tell when nothing is left: it inherits orphans and has no other children
	adopts  bool
	logAs   func(configs.Log) *slog.Logger
	log     *slog.Logger
	manager *manager // nil if no service manager listens

	asked   bool        // a signal asked for the end
	crashes []time.Time // within crashSpan of the last one; not empty after the first one
	hinders int         // children since then that could not start, for a cause outside of them

	unreported []death // not in Redis yet
}

// A death is the death of a working child, as the parent reports it to Redis.
type death struct {
	redis    configs.Redis
	sessions []locks.SessionID
	alone    bool // nothing that worked under the sessions is left: they end with the report
}

// child is a working child as its parent sees it.
type child struct {
	pid    int
	status syscall.WaitStatus // set once it is reaped
	orders *os.File           // the parent writes its orders here
	ear    *os.File           // the parent reads its news here
	news   <-chan news        // what ear received; closed when no process can write any more

	redis *configs.Redis
	// The last keptIDs of them, the newest last: it alone can have holds. A child opens a session
	// when the lease of the one before has run out.
	sessions  []locks.SessionID
	hindrance string // why it could not start, if it said so
	orderly   bool
	stuck     []jobs.RunID    // as in news
	left      []ledger.Finish // as in news
}

// watchOver runs the command line of this process in a working child, and again in another one
// after a crash, until a child exits in order. The error has that child's exit code.
func (t *tool) watchOver(ctx context.Context) error {
	signals, children := make(chan os.Signal, 8), make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(signals)
	defer signal.Stop(children)
	t.manners.Store(handsOff)
	if ctx.Err() != nil {
		return nil // a signal came before anything was started
	}
	manager, err := newManager()
	if err != nil {
		return refuse("%w", err)
	}
	if manager != nil {
		// A panic, and the signal of a watchdog, end this process by a signal. The exit code 2
		// would mean a refusal, after which systemd does not start a worker again.
		debug.SetTraceback("crash")
	}
	p := &parent{
		argv:    append([]string{os.Args[0], childWord}, t.args...),
		signals: signals, children: children, terminal: hasTerminal(),
		adopts:  guard.AdoptOrphans() == nil,
		logAs:   func(settings configs.Log) *slog.Logger { return newLogger(t.stderr, settings) },
		manager: manager,
	}
	p.log = p.logAs(configs.Log{Level: "info", Format: "auto"})
	if _, none := p.reap(nil); !none {
		p.adopts = false
		p.log.WarnContext(ctx, "this process had children before it started a worker, which it cannot tell apart from what a crashed worker leaves behind: the lease will decide")
	}
	err = p.run(ctx)
	t.log.Store(p.log)
	return err
}

func (p *parent) run(ctx context.Context) error {
	for {
		p.settleReports(ctx, reportAgain(context.WithoutCancel(ctx), p.unreported))
		c, err := p.start()
		if err != nil {
			return err
		}
		p.attend(ctx, c)
		code, how := ending(c.status)
		if c.hindrance == "" {
			c.hindrance = hindered[code]
		}
		if c.orderly && !p.asked && len(p.crashes) > 0 && c.hindrance != "" {
			pause := min(mendFirst<<min(p.hinders, 10), mendMost)
			p.hinders++
			p.log.ErrorContext(ctx, "no worker is running after a crash: the next one cannot start, will retry", "because", c.hindrance, "in", pause)
			p.manager.tells("not ready: no worker is running after a crash: " + c.hindrance)
			if !p.rest(pause) {
				return nil
			}
			continue
		}
		p.hinders = 0
		if c.orderly && len(c.stuck) > 0 {
			p.handBack(ctx, c)
		}
		if c.orderly && (code == 0 || code == exitUsage || p.asked || len(p.crashes) == 0 || len(c.sessions) > 0) {
			return exitWith(code)
		}
		if !c.orderly {
			p.settle(ctx, c, how)
		}
		now := time.Now()
		p.crashes = append(slices.DeleteFunc(p.crashes, func(at time.Time) bool { return now.Sub(at) > crashSpan }), now)
		switch n := len(p.crashes); {
		case p.asked && code == exitInterrupted:
			return exitWith(code) // it got so many signals that it left everything as it was
		case p.asked:
			return fmt.Errorf("the worker crashed during its drain: %s", how)
		case n == maxCrashes:
			return fmt.Errorf("the worker crashed %d times within %s, most recently: %s", n, admin.Age(crashSpan), how)
		case !p.rest(crashPauses[n-1]):
			return nil // nothing is running
		}
	}
}

// hindered maps exit codes to the reason why a child could not start although nothing is wrong with
// it. If an earlier child has worked, the parent waits for a repair, as the crashed child would
// have done with its config in memory.
var hindered = map[int]string{
	exitConfig: "the config has errors, and the previous config was lost with its worker",
	exitRedis:  "Redis is unreachable",
}

// exitWith ends this process with the exit code of its child, which has reported the reason.
func exitWith(code int) error {
	if code == 0 {
		return nil
	}
	return exit(code, nil)
}

// start starts a working child in a process group of its own: the parent passes on what a terminal
// sends to the parent's group, and the signal would count twice.
func (p *parent) start() (*child, error) {
	self, err := command.Self()
	if err != nil {
		return nil, fmt.Errorf("find this program, to start a worker: %w", err)
	}
	ordersRead, ordersWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	newsRead, newsWrite, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, ordersRead.Close(), ordersWrite.Close())
	}
	// not by os/exec: one loop reaps everything here
	pid, err := syscall.ForkExec(self, p.argv, &syscall.ProcAttr{
		Env: withoutManager(os.Environ()), Files: []uintptr{0, 1, 2, ordersRead.Fd(), newsWrite.Fd()}, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	err = errors.Join(err, ordersRead.Close(), newsWrite.Close())
	if err != nil {
		return nil, fmt.Errorf("start a worker: %w", errors.Join(err, ordersWrite.Close(), newsRead.Close()))
	}
	told := make(chan news)
	go func() { // ends with the child, or when the pipe is closed; dismiss waits for it
		defer close(told)
		decoder := gob.NewDecoder(newsRead)
		for {
			var n news
			if decoder.Decode(&n) != nil {
				return
			}
			told <- n
		}
	}()
	return &child{pid: pid, orders: ordersWrite, ear: newsRead, news: told}, nil
}

// dismiss closes the pipes and waits for the reader of the news.
func (c *child) dismiss() {
	_ = c.orders.Close() // the child has exited and reads no more orders
	_ = c.ear.Close()
	for range c.news { // until it is closed
	}
}

// attend passes signals on and takes news until the child has exited and its last news has been
// read. Meanwhile it reports the deaths that Redis does not know yet.
func (p *parent) attend(ctx context.Context, c *child) {
	defer c.dismiss()
	heard := c.news
	reporting, stop := context.WithCancel(ctx)
	var unknown chan []death // what a report that is under way leaves; nil: none is under way
	defer func() {
		stop()
		if unknown != nil {
			p.settleReports(ctx, <-unknown)
		}
	}()
	began := time.Now()
	again := time.NewTimer(reportTry)
	defer again.Stop()
	asking := p.manager.ask()
	defer asking.Stop()
	defer p.manager.reloaded()
	for ended := false; !ended; {
		select {
		case <-again.C:
			if len(p.unreported) > 0 {
				unknown = make(chan []death, 1)
				go func(deaths []death) { unknown <- reportAgain(reporting, deaths) }(p.unreported)
			}
		case left := <-unknown:
			unknown = nil
			p.settleReports(ctx, left)
			again.Reset(min(max(reportTry, time.Since(began)/8), mendMost))
		case s := <-p.signals:
			// fails when the child has just exited
			_, _ = c.orders.Write([]byte{byte(p.meaning(s))})
		case n, ok := <-heard:
			if !ok {
				heard = nil
				continue
			}
			p.note(c, n)
			if n.State != nil {
				p.manager.again(asking)
			}
		case <-asking.C: // the next question waits for the answer, so the pipe never fills
			// fails when the child has just exited
			_, _ = c.orders.Write([]byte{question})
		case <-p.children:
			ended, _ = p.reap(c)
		}
	}
	// a process that is being forked also holds the pipe open, until it is executed
	over := time.After(lastWords)
	for heard != nil && !c.orderly {
		select {
		case n, ok := <-heard:
			if !ok {
				return
			}
			p.note(c, n)
		case <-over:
			return
		}
	}
}

// meaning returns the signal to send to the child: SIGHUP to reload the config, anything else to
// end. SIGHUP from a terminal that was closed asks for the end, so that no worker stays behind
// unseen. The parent recognizes that case by having had a terminal at its start.
func (p *parent) meaning(s os.Signal) syscall.Signal {
	sig, ok := s.(syscall.Signal)
	if ok && sig == syscall.SIGHUP && (!p.terminal || hasTerminal()) {
		return sig
	}
	p.asked = true
	p.manager.stops()
	if !ok || sig == syscall.SIGHUP {
		return syscall.SIGTERM
	}
	return sig
}

// note records news of the child.
func (p *parent) note(c *child, n news) {
	if n.Redis != nil {
		c.redis = n.Redis
	}
	if n.Log != nil {
		p.log = p.logAs(*n.Log)
		p.manager.drains(n.Drain)
	}
	if n.Reloading {
		p.manager.reloading()
	}
	if n.State != nil {
		p.manager.hears(*n.State)
	}
	if n.Reloaded {
		p.manager.reloaded()
	}
	if n.Session != "" && !slices.Contains(c.sessions, n.Session) {
		c.sessions = append(c.sessions, n.Session)
		c.sessions = c.sessions[max(0, len(c.sessions)-keptIDs):]
	}
	if n.Hindrance != "" {
		c.hindrance = n.Hindrance
	}
	c.orderly = c.orderly || n.Orderly
	if len(n.Stuck) > 0 {
		c.stuck, c.left = n.Stuck, n.Left
	}
}

// reap reaps every process that has exited. It reports whether the child was among them, and
// whether no other process is left.
func (p *parent) reap(c *child) (ended, none bool) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // ECHILD
			return ended, true
		case pid == 0:
			return ended, false
		case c != nil && pid == c.pid:
			c.status, ended = status, true
		}
	}
}

// settle buries what a crashed child left behind. It reports the death of the child, which makes
// its attempts crashes. It then ends the child's sessions if, and only if, everything that the
// child left is dead.
func (p *parent) settle(ctx context.Context, c *child, how string) {
	began := time.Now()
	log := p.log.With("pid", c.pid, "how", how, "sessions", c.sessions)
	alone := p.adopts && burial(p)
	buried := time.Since(began)
	if len(c.sessions) == 0 {
		log.ErrorContext(ctx, "worker crashed")
		return
	}
	dead := death{*c.redis, c.sessions, alone}
	err := dead.report(context.WithoutCancel(ctx), endLimit) // even while the parent shuts down
	if err != nil && !ledger.Final(err) {
		p.unreported = append(p.unreported, dead)
	}
	switch {
	case !alone:
		log.ErrorContext(ctx, "worker crashed, and some of its processes may still be alive: its locks pass on when its lease ends", "error", err)
	case err != nil:
		log.ErrorContext(ctx, "worker crashed, and its session could not be ended: its locks pass on when its lease ends", "error", err)
	default:
		log.ErrorContext(ctx, "worker crashed, its session is ended: its locks have passed on",
			"buried_after", buried.Round(time.Microsecond), "ended_after", time.Since(began).Round(time.Microsecond))
	}
}

// reportAgain reports deaths that Redis does not know yet, and returns those that it still does not
// know. Without these reports, the locks of the dead would pass on when their lease ends, their
// attempts would count as lost leases, and a run that kills its workers during outages would never
// be found out.
func reportAgain(ctx context.Context, deaths []death) (left []death) {
	for _, dead := range deaths {
		if err := dead.report(ctx, reportTry); err != nil && !ledger.Final(err) {
			left = append(left, dead)
		}
	}
	return left
}

// settleReports notes which deaths Redis still does not know after a report.
func (p *parent) settleReports(ctx context.Context, left []death) {
	if n := len(p.unreported) - len(left); n > 0 {
		p.log.InfoContext(ctx, "earlier crashes are reported: Redis answers again", "crashes", n)
	}
	p.unreported = left
}

// report tells Redis of the death, and ends the sessions if nothing that worked under them is left;
// otherwise the lease ends them. It begins with the newest session, which has the holds.
func (d death) report(ctx context.Context, limit time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	book, done, err := openBook(d.redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var rejected error
	for _, id := range slices.Backward(d.sessions) {
		if err := reportDeath(ctx, book, id); err != nil && !ledger.Final(err) {
			return err
		} else if err != nil {
			// Redis may refuse the report and still accept the end of the session
			rejected = errors.Join(rejected, err)
		}
		if !d.alone {
			continue
		}
		if err := book.Space().EndSession(ctx, id); err != nil {
			return errors.Join(rejected, err)
		}
	}
	// the next worker starts soon, unless there were too many crashes
	for _, id := range d.sessions {
		rejected = errors.Join(rejected, book.Leave(ctx, id, "", ledger.RestartTime))
	}
	return rejected
}

// openBook opens the ledger of a dead child.
func openBook(settings configs.Redis) (book *ledger.Ledger, done func() error, err error) {
	rdb, err := newClient(settings)
	if err != nil {
		return nil, nil, err
	}
	space, err := locks.NewSpace(rdb, settings.Namespace)
	if err != nil {
		return nil, nil, errors.Join(err, rdb.Close())
	}
	return ledger.New(rdb, space), rdb.Close, nil
}

// reportDeath reports the death until it gets a reply.
func reportDeath(ctx context.Context, book *ledger.Ledger, id locks.SessionID) error {
	for {
		try, cancel := context.WithTimeout(ctx, reportTry)
		err := book.Died(try, id)
		cancel()
		if err == nil || ledger.Final(err) {
			return err
		}
		if !pause(ctx, reportPause) {
			return err
		}
	}
}

// handBack records the ends of the attempts that a child left behind at an orderly exit, if nothing
// of their work is left: the child is dead now, and so are their handlers. Their runs are handed
// back, unless a timeout, a cancellation or `on_crash: abandon` applies. It then ends the child's
// sessions, without reporting a crash. The next sweep of another worker pushes the runs.
func (p *parent) handBack(ctx context.Context, c *child) {
	log := p.log.With("pid", c.pid, "runs", c.stuck)
	if c.redis == nil {
		return // their Redis died with the child
	}
	err := errors.New("some of the worker's processes may still be alive")
	if p.adopts && burial(p) {
		err = endLeft(ctx, *c.redis, c.sessions, c.left)
	}
	if err != nil {
		log.ErrorContext(ctx, "the worker exited although the work of some attempts continued: their locks pass on when its lease ends", "error", err)
		return
	}
	log.WarnContext(ctx, "the worker exited although the work of some attempts continued: nothing of it is left, the ends of their attempts are recorded, and its session is ended")
}

// endLeft records the ends of a dead process's attempts, and ends its sessions. An attempt has lost
// its lease if its end cannot be recorded.
func endLeft(ctx context.Context, settings configs.Redis, sessions []locks.SessionID, left []ledger.Finish) (err error) {
	// even while the parent shuts down
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endLimit)
	defer cancel()
	book, done, err := openBook(settings)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	var errs []error
	for _, finish := range left {
		_, err := book.Finish(ctx, finish)
		errs = append(errs, err)
	}
	for _, id := range slices.Backward(sessions) { // the newest first, which has the holds
		errs = append(errs, book.Space().EndSession(ctx, id))
	}
	return errors.Join(errs...)
}

// Tests replace burial to show what a bad one causes.
var burial = (*parent).killOrphans

// killOrphans kills everything below this process, and reports whether all of it died in time.
func (p *parent) killOrphans() bool {
	limit := time.After(burialLimit)
	for {
		if _, none := p.reap(nil); none {
			return true
		}
		guard.KillChildren()
		select {
		case <-p.children:
		case <-time.After(lookAgain):
		case <-limit:
			return false
		}
	}
}

// rest waits before the next child is started. A request to reload the config ends the wait early,
// since the next child reads the config. It returns false if a signal asks for the end.
func (p *parent) rest(d time.Duration) bool {
	over := time.After(d)
	asking := p.manager.ask()
	defer asking.Stop()
	for {
		select {
		case <-asking.C:
			// no child can answer, and this process repairs that
			p.manager.alive()
			p.manager.again(asking)
		case s := <-p.signals:
			return p.meaning(s) == syscall.SIGHUP
		case <-p.children: // a process that could not be killed in time has exited after all
			p.reap(nil)
		case <-over:
			return true
		}
	}
}

// ending describes how a process ended. A process that a signal killed has the exit code of a
// failure.
func ending(status syscall.WaitStatus) (code int, how string) {
	if status.Signaled() {
		return exitFailed, "signal: " + status.Signal().String()
	}
	return status.ExitStatus(), fmt.Sprintf("exit status %d", status.ExitStatus())
}
