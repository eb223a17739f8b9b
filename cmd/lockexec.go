//go:build unix

package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs/command"
	"lockstep/locks"
	"lockstep/scheduler/admin"
)

// execFlags are the flags of lock exec, which name the bundle.
type execFlags struct {
	exclusive, shared, permits []string
	wait                       time.Duration
}

// parts builds the request, and returns the names of its permits. Each of its errors is one of the
// command line.
func (f *execFlags) parts(cmd *cobra.Command) (parts []locks.Part, permits []string, err error) {
	if len(f.exclusive)+len(f.shared)+len(f.permits) == 0 {
		return nil, nil, misuse(cmd, "no lock is named; add --exclusive NAME")
	}
	parts = append(parts, locks.Exclusive(f.exclusive...), locks.Shared(f.shared...))
	for _, text := range f.permits {
		at := strings.LastIndexByte(text, '=') // a name may contain one too
		if at < 0 {
			return nil, nil, misuse(cmd, "--permits %s: how many? Write --permits %s=1", text, text)
		}
		n, err := strconv.Atoi(text[at+1:])
		if err != nil {
			return nil, nil, misuse(cmd, "--permits %s: %q is not a number", text, text[at+1:])
		}
		parts, permits = append(parts, locks.Permits(text[:at], n)), append(permits, text[:at])
	}
	if cmd.Flags().Changed("wait") {
		parts = append(parts, locks.Wait(f.wait))
	}
	return parts, permits, nil
}

func (t *tool) lockExecCommand() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "exec [--exclusive NAME]... [--shared NAME]... [--permits NAME=N]... [--wait D] [--] COMMAND [ARG...]",
		Short: "Run a command under a bundle of locks, like flock(1)",
		Long: `Run a command while holding a bundle of locks, all or none. Without --wait, it waits until it gets them; --wait 0s
tries once. The command keeps the terminal, and gets LOCKSTEP_TOKEN, a fencing token that grows with every grant,
and LOCKSTEP_LOCKS, LOCKSTEP_HOLD and LOCKSTEP_WORKER. If the lease cannot be kept, the command receives SIGTERM,
and SIGKILL before the locks can pass to another holder.

Inside a command that already holds locks, a job's or another lock exec's, it requests only the locks that the outer
command does not have; LOCKSTEP_HOLD identifies those. A lock that the outer command shares can be held exclusively
for a while this way. If the outer command loses its locks, this command is ended too.

Permits that the config declares and Redis does not know yet are declared first. The command of a job inherits no
Redis settings: pass them in the env of the job, as in env: {REDIS_URL: "${REDIS_URL}"}, or name a config with -c.

Exits with the code of the command, or 128+n if signal n ended it; with 75 if it could not get the locks in time, or
only by waiting for itself; with 76 if it lost them, or those of LOCKSTEP_HOLD; with 130 if it was interrupted before
the command started. A signal after the end of the command ends a wait for Redis: the lease then frees the locks.`,
		Example: `  lockstep lock exec --exclusive bill:1001 --exclusive bill:1002 --wait 10s -- ./settle.sh
  lockstep lock exec --shared rates:2026-11 --permits partner-api=1 -- ./report.sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse(cmd, "%s needs a command to run", cmd.Name())
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after the command belong to the command
	flags.StringArrayVar(&f.exclusive, "exclusive", nil, "`NAME` of a resource to hold exclusively; repeatable")
	flags.StringArrayVar(&f.shared, "shared", nil, "`NAME` of a resource to hold in shared mode; repeatable")
	flags.StringArrayVar(&f.permits, "permits", nil, "`NAME=N`: N permits of a resource; repeatable")
	flags.Func("wait", "wait at most `D` for the locks (default: without limit)", func(s string) (err error) {
		f.wait, err = parseSpan(s)
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		parts, permits, err := f.parts(cmd)
		if err != nil {
			return err
		}
		limit := ""
		if flags.Changed("wait") {
			limit = " up to " + f.wait.String()
		}
		parts = append(parts, locks.Info(execInfo(args)), locks.OnWait(func(busy *locks.BusyError) {
			fmt.Fprintf(t.stderr, "lockstep: %s; waiting%s\n", inTheWay(busy), limit)
		}))
		return t.lockExec(cmd, parts, permits, args)
	}
	return cmd
}

// lockExec connects, declares the requested permits that the config has, waits for the bundle, runs
// the command and releases the bundle.
func (t *tool) lockExec(cmd *cobra.Command, parts []locks.Part, wanted, argv []string) (err error) {
	ctx := cmd.Context()
	chain := strings.Fields(os.Getenv(holdVariable))
	if err := t.namesRedis(cmd, chain); err != nil {
		return err
	}
	permits, err := t.permitsOf(cmd, wanted)
	if err != nil {
		return err
	}
	conn, err := t.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	signals := make(chan os.Signal, 2)
	defer signal.Stop(signals)
	client, err := locks.Open(ctx, conn.rdb, lockOptions(conn.settings))
	if errors.Is(err, locks.ErrServer) {
		return refuse("%w", err)
	}
	if err != nil {
		return conn.away(err)
	}
	var hold *locks.Hold
	defer func() {
		// the exit code of the command takes precedence
		released, closed := leave(context.WithoutCancel(ctx), client, hold, signals)
		if released != nil && err == nil {
			fmt.Fprintln(t.stderr, "lockstep: the command has ended, but its locks could not be released:", released)
		}
		if closed != nil {
			fmt.Fprintln(t.stderr, "lockstep:", closed)
		}
	}()

	for _, name := range slices.Sorted(maps.Keys(permits)) {
		if _, err := client.Declare(ctx, name, permits[name]); err != nil {
			return conn.away(notAcquired(err))
		}
	}
	// Before the grant: otherwise a signal that comes between the grant and the start of the
	// command would be lost.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	holds, err := acquire(ctx, client, chain, parts)
	if err != nil {
		return conn.away(notAcquired(err))
	}
	hold = holds[0]
	t.manners.Store(handsOff) // from here on, signals are for the command
	granted()
	return t.runUnder(holds, argv, signals)
}

// Tests replace granted to send a signal between the grant and the start of the command.
var granted = func() {}

// leave releases the hold, which may be nil, and ends the session. A signal leaves Redis briskLimit
// to reply, and a second one no time; the lease then frees the locks.
func leave(ctx context.Context, client *locks.Client, hold *locks.Hold, signals <-chan os.Signal) (released, closed error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	left := make(chan struct{})
	var watching sync.WaitGroup
	defer watching.Wait()
	defer close(left)
	watching.Go(func() {
		select {
		case <-left:
			return
		case <-signals:
		}
		select {
		case <-left:
		case <-signals:
		case <-time.After(briskLimit):
		}
		stop()
	})
	if hold != nil {
		// Release ends with the session. The Close below waits for this one.
		keep := context.AfterFunc(ctx, func() { _ = client.Close(ctx) })
		released = hold.Release()
		keep()
	}
	closing, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	closed = client.Close(closing)
	if ctx.Err() != nil {
		return nil, errors.New("a signal ended the wait for Redis: it frees the locks when their lease ends")
	}
	return released, closed
}

// namesRedis refuses to work under the holds of chain if no Redis is named. A job does not inherit
// the Redis settings of its worker, and the default, or a demo that happens to run, would be
// another Redis.
func (t *tool) namesRedis(cmd *cobra.Command, chain []string) error {
	if len(chain) == 0 {
		return nil
	}
	config, err := t.load(cmd, configs.Find(t.configPaths, nil), true)
	if err != nil {
		return err
	}
	if _, named := config.Origins["redis.url"]; named {
		return nil
	}
	return refuse("%s names a hold, but no Redis is named here: a job does not inherit the Redis settings of its worker; "+
		"pass them in the env of the job (env: {REDIS_URL: \"${REDIS_URL}\"}), or name a config with -c", holdVariable)
}

// permitsOf returns the limits of those wanted permits that the config declares. A worker may have
// declared the others.
func (t *tool) permitsOf(cmd *cobra.Command, wanted []string) (map[string]locks.PermitLimit, error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	options := t.loadOptions(cmd, configs.Find(t.configPaths, nil))
	options.SettingsOnly, options.Permits = true, true
	config, err := t.told(readConfig(options))
	if err != nil {
		return nil, err
	}
	declared := limits(config.Permits)
	maps.DeleteFunc(declared, func(name string, _ locks.PermitLimit) bool { return !slices.Contains(wanted, name) })
	return declared, nil
}

// holdVariable tells a command the holds that it runs under, the innermost first: a job's, or one
// for each nested lock exec. A lock exec inside the command joins them.
const holdVariable = "LOCKSTEP_HOLD"

// closeLimit bounds how long the end of a session may take; after that, the lease ends it.
const closeLimit = 5 * time.Second

// acquire joins the holds of chain, under which this process was started, and waits for a bundle
// until it is granted or ctx ends. It returns the new hold, followed by the joined ones, the
// innermost first; closing the client does not release those. The contexts of the holds do not end
// with ctx: later signals are passed to the command.
func acquire(ctx context.Context, client *locks.Client, chain []string, parts []locks.Part) ([]*locks.Hold, error) {
	waiting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	within, holds := waiting, make([]*locks.Hold, 1, 1+len(chain))
	for _, id := range slices.Backward(chain) {
		outer, err := client.Join(within, locks.HoldID(id))
		if err != nil {
			return nil, &outerError{id, err}
		}
		within, holds = outer.Context(), slices.Insert(holds, 1, outer)
	}
	hold, err := client.Acquire(within, parts...)
	if !stop() && err == nil {
		return nil, errors.Join(errInterrupted, hold.Release())
	}
	if err != nil {
		for _, outer := range holds[1:] {
			if lost := outer.Lost(); lost != nil {
				return nil, &outerError{string(outer.ID()), lost}
			}
		}
		return nil, err
	}
	holds[0] = hold
	return holds, nil
}

// outerError means that this process could not join the hold it was started under, or that this
// hold was lost during the wait.
type outerError struct {
	hold string
	err  error
}

func (e *outerError) Error() string {
	return fmt.Sprintf("%s names the hold %s, under which this was started: %v", holdVariable, e.hold, e.err)
}

func (e *outerError) Unwrap() error { return e.err }

// notAcquired gives an error of acquire its exit code and its text.
func notAcquired(err error) error {
	var busy *locks.BusyError
	var outer *outerError
	switch {
	case errors.Is(err, errInterrupted):
		return exit(exitInterrupted, nil)
	case errors.As(err, &outer) && errors.Is(err, locks.ErrLost):
		return exit(exitLost, fmt.Errorf("%w; another holder may have its locks by now (unset %s to run outside of it)", outer, holdVariable))
	case errors.Is(err, locks.ErrNoSession):
		return exit(exitRedis, err)
	case errors.Is(err, locks.ErrBusy) && errors.As(err, &busy):
		line := inTheWay(busy)
		if waited := busy.Waited.Round(100 * time.Millisecond); waited > 0 {
			line += "; timed out after " + admin.Span(waited)
		}
		return exit(exitBusy, errors.New(line))
	case errors.Is(err, locks.ErrDeadlock), errors.Is(err, locks.ErrGrace):
		return exit(exitBusy, err)
	case errors.Is(err, locks.ErrInvalid):
		return exit(exitUsage, err)
	}
	return err
}

// inTheWay describes what blocks a request: `bill:1001 is held by web-2.p91qd3f7
// (settle-bills#01K9B7, for 4s)`.
func inTheWay(busy *locks.BusyError) string {
	what := "for " + admin.Age(busy.HeldFor)
	var info struct{ Run, Command string }
	if json.Unmarshal([]byte(busy.Info), &info) == nil {
		switch {
		case info.Run != "":
			what = info.Run + ", " + what
		case info.Command != "":
			what = info.Command + ", " + what
		}
	}
	switch {
	case busy.Holder != "":
		return fmt.Sprintf("%s is held by %s (%s)", busy.Resource, busy.Holder, what)
	case busy.Token != 0:
		return fmt.Sprintf("%s was released, and stays taken for another %s", busy.Resource, admin.Age(busy.LeaseLeft))
	case busy.Hold == "":
		return busy.Resource + " has fewer permits than requested, or is held in another mode permanently"
	}
	return fmt.Sprintf("%s is reserved for an older wait (%s)", busy.Resource, what)
}

// execInfo describes a hold of lock exec to others: the program, without its arguments, which may
// be secret.
func execInfo(argv []string) json.RawMessage {
	name := []rune(filepath.Base(argv[0]))
	info, err := json.Marshal(map[string]string{"command": string(name[:min(len(name), 100)])})
	if err != nil {
		panic("cmd: a map of texts is JSON: " + err.Error())
	}
	return info
}

// runUnder runs the command while the holds are valid; each of them is nested in the next. early
// has received the signals since before the grant: runUnder does not start the command if there is
// one, and discards those that came while the command ran. The error carries the exit code.
func (t *tool) runUnder(holds []*locks.Hold, argv []string, early <-chan os.Signal) error {
	guard, err := guardArgv()
	if err != nil {
		return err
	}
	// The exit code reports what the executor would log.
	executor, err := command.New(command.Options{Guard: guard, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	hold := holds[0]
	names, err := json.Marshal(hold.Names())
	if err != nil {
		return err
	}
	env := append(os.Environ(),
		"LOCKSTEP_TOKEN="+hold.Token().String(),
		"LOCKSTEP_LOCKS="+string(names),
		holdVariable+"="+strings.Join(idsOf(holds), " "),
		"LOCKSTEP_WORKER="+string(hold.Session()),
	)
	// On a terminal, Ctrl-C and Ctrl-\ reach the command directly. This process only catches them,
	// so that the command decides what they mean.
	foreground := command.Foreground(os.Stdin)
	caught, signals := make(chan os.Signal, 1), make(chan os.Signal, 8)
	if foreground {
		signal.Notify(caught, syscall.SIGINT, syscall.SIGQUIT)
		signal.Notify(signals, syscall.SIGTERM, syscall.SIGHUP)
	} else {
		signal.Notify(signals, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGHUP)
	}
	defer signal.Stop(caught)
	defer signal.Stop(signals)
	if discard(early) > 0 {
		return exit(exitInterrupted, nil)
	}
	defer discard(early)
	err = executor.Run(hold.Context(), command.Spec{
		Argv: argv, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Foreground: foreground, Signals: signals, KillBy: killBy(holds), Label: "lock exec",
	})
	var start *command.StartError
	var ended *command.ExitError
	switch {
	case errors.Is(err, locks.ErrLost):
		return exit(exitLost, fmt.Errorf("the command was ended: %w", err))
	case errors.As(err, &start):
		return exit(start.ExitCode(), err)
	case errors.As(err, &ended):
		return exit(ended.ExitCode(), nil)
	}
	return err
}

// discard takes the signals that have arrived, and returns how many.
func discard(signals <-chan os.Signal) (n int) {
	for {
		select {
		case <-signals:
			n++
		default:
			return n
		}
	}
}

// idsOf returns the IDs of holds without duplicates: a hold that re-enters another one has the same
// ID.
func idsOf(holds []*locks.Hold) []string {
	var ids []string
	for _, hold := range holds {
		if id := string(hold.ID()); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// killBy returns a function that returns by when a command under all these holds must be dead.
func killBy(holds []*locks.Hold) func() time.Duration {
	return func() time.Duration {
		by := holds[0].KillBy()
		for _, outer := range holds[1:] {
			by = min(by, outer.KillBy())
		}
		return by
	}
}
