package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"lockstep/jobs/command"
	"lockstep/locks"
)

func (t *tool) lockExecCommand() *cobra.Command {
	var exclusive []string
	var wait duration
	cmd := &cobra.Command{
		Use:   "exec [--exclusive NAME]... [--wait D] [--] COMMAND [ARG...]",
		Short: "Run a command under a bundle of locks, like flock(1)",
		Long: `Run a command while holding a bundle of locks, all or none. Without --wait it waits until it gets them, --wait 0s
tries once. The command keeps the terminal, and gets LOCKSTEP_TOKEN, a fencing token that grows with every grant, and
LOCKSTEP_LOCKS, LOCKSTEP_HOLD and LOCKSTEP_WORKER. When the lease cannot be kept, the command gets TERM, and KILL before
the locks can pass to somebody else.

Exits with the code of the command, 128+n when signal n ended it; 75 when the locks were not to be had in time, 76 when
they were lost, 130 when it was interrupted while it waited.`,
		Example: `  lockstep lock exec --exclusive bill:1001 --exclusive bill:1002 --wait 10s -- ./settle.sh`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return misuse(cmd, "%s needs a command to run", cmd.Name())
			}
			return nil
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // what stands behind the command is the command's
	flags.StringArrayVar(&exclusive, "exclusive", nil, "`NAME` of a resource to hold alone; repeatable")
	flags.Var(&wait, "wait", "wait at most `D` for the locks (default: without limit)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(exclusive) == 0 {
			return misuse(cmd, "no lock is named; add --exclusive NAME")
		}
		parts := []locks.Part{locks.Exclusive(exclusive...), locks.Info(execInfo(args))}
		if wait.set {
			parts = append(parts, locks.Wait(wait.Duration))
		}
		limit := ""
		if wait.set {
			limit = " up to " + wait.Duration.String()
		}
		parts = append(parts, locks.OnWait(func(busy *locks.BusyError) {
			fmt.Fprintf(t.stderr, "lockstep: %s; waiting%s\n", inTheWay(busy), limit)
		}))
		return t.lockExec(cmd, parts, args)
	}
	return cmd
}

// lockExec connects, waits for the bundle, runs the command and gives the bundle back.
func (t *tool) lockExec(cmd *cobra.Command, parts []locks.Part, argv []string) (err error) {
	ctx := cmd.Context()
	conn, err := t.connect(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client, err := locks.Open(ctx, conn.rdb, locks.Options{
		Namespace: conn.settings.Redis.Namespace, Name: conn.settings.Worker.Name, Lease: conn.settings.Locks.Lease,
		ReserveAfter: reserveAfter(conn.settings.Locks.ReserveAfter),
	})
	if errors.Is(err, locks.ErrServer) {
		return refuse("%w", err)
	}
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeLimit)
		defer cancel()
		if closed := client.Close(closing); closed != nil {
			fmt.Fprintln(t.stderr, "lockstep:", closed) // the command's code is what counts
		}
	}()

	hold, err := acquire(ctx, client, parts)
	if err != nil {
		return notAcquired(err)
	}
	t.manners.Store(handsOff) // from here on signals are the command's
	err = t.runUnder(hold, argv)
	if released := hold.Release(); released != nil && err == nil {
		fmt.Fprintln(t.stderr, "lockstep: the command has ended, but its locks could not be given back:", released)
	}
	return err
}

// closeLimit bounds how long the end of a session may take; then the lease ends it.
const closeLimit = 5 * time.Second

// acquire waits for a bundle until it is granted or ctx ends. The hold's context does not end with ctx: signals that
// come later are passed to the command.
func acquire(ctx context.Context, client *locks.Client, parts []locks.Part) (*locks.Hold, error) {
	waiting, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	hold, err := client.Acquire(waiting, parts...)
	if !stop() && err == nil {
		return nil, errors.Join(errInterrupted, hold.Release())
	}
	return hold, err
}

// notAcquired gives an error of acquire its exit code and its words.
func notAcquired(err error) error {
	var busy *locks.BusyError
	switch {
	case errors.Is(err, errInterrupted):
		return exit(exitInterrupted, nil)
	case errors.As(err, &busy):
		line := inTheWay(busy)
		if waited := busy.Waited.Round(100 * time.Millisecond); waited > 0 {
			line += "; gave up after " + waited.String()
		}
		return exit(exitBusy, errors.New(line))
	case errors.Is(err, locks.ErrInvalid):
		return exit(exitUsage, err)
	}
	return err
}

// inTheWay names who holds what is wanted: `bill:1001 is held by web-2.p91qd3f7 (settle-bills#01K9B7, for 4s)`.
func inTheWay(busy *locks.BusyError) string {
	what := "for " + age(busy.HeldFor)
	var info struct{ Run, Command string }
	if json.Unmarshal([]byte(busy.Info), &info) == nil {
		switch {
		case info.Run != "":
			what = info.Run + ", " + what
		case info.Command != "":
			what = info.Command + ", " + what
		}
	}
	if busy.Holder == "" {
		return fmt.Sprintf("%s is reserved for an older wait (%s)", busy.Resource, what)
	}
	return fmt.Sprintf("%s is held by %s (%s)", busy.Resource, busy.Holder, what)
}

// execInfo is what others are told about a hold of lock exec: the program, without its arguments, which may be secret.
func execInfo(argv []string) json.RawMessage {
	name := []rune(filepath.Base(argv[0]))
	info, err := json.Marshal(map[string]string{"command": string(name[:min(len(name), 100)])})
	if err != nil {
		panic("cmd: a map of texts is JSON: " + err.Error())
	}
	return info
}

// runUnder runs the command while the hold stands. The error carries the code to exit with.
func (t *tool) runUnder(hold *locks.Hold, argv []string) error {
	guard, err := guardArgv()
	if err != nil {
		return err
	}
	// What the executor would log, the exit code says.
	executor, err := command.New(command.Options{Guard: guard, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	names, err := json.Marshal(hold.Names())
	if err != nil {
		return err
	}
	env := append(os.Environ(),
		"LOCKSTEP_TOKEN="+hold.Token().String(),
		"LOCKSTEP_LOCKS="+string(names),
		"LOCKSTEP_HOLD="+string(hold.ID()),
		"LOCKSTEP_WORKER="+string(hold.Session()),
	)
	// On a terminal Ctrl-C and Ctrl-\ reach the command by themselves. Here they are only caught, so that the command
	// decides what they mean.
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
	err = executor.Run(hold.Context(), command.Spec{
		Argv: argv, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
		Foreground: foreground, Signals: signals, KillBy: hold.KillBy, Label: "lock exec",
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

// reserveAfter says as the lock library has it how long others may pass: there 0 is the default, and negative is none.
func reserveAfter(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}
