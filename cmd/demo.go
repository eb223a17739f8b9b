//go:build unix

package cmd

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/configs"
	"lockstep/jobs/command"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/web"
)

//go:embed demo.yaml
var demoConfig string

const (
	// before a worker without its parent process is replaced: its peers take over first
	replaceIn   = 10 * time.Second
	readyWithin = 30 * time.Second // generous: the machine may still be busy compiling the demo
)

func (t *tool) demoCommand() *cobra.Command {
	var workers, port int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work, with nothing else installed",
		Long: `Start a Redis inside this process, some workers as separate processes, jobs, and a page that shows which worker does
what. While the demo runs, other commands find it by themselves if no Redis is named. Ctrl-C ends all of it and
removes its files.`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&workers, "workers", 3, "number of worker processes, `N`")
	flags.IntVar(&port, "port", 9620, "`PORT` of the page on 127.0.0.1; if the default one is taken, the next free one")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case workers < 1 || workers > 50:
			return misuse(cmd, "--workers %d: it takes 1 to 50", workers)
		case port < 0 || port > 65535:
			return misuse(cmd, "--port %d: it takes 0 (any free one) to 65535", port)
		case flags.Changed("redis") || flags.Changed("config"):
			return misuse(cmd, "the demo brings its own Redis and config: --redis and --config are for lockstep start")
		}
		t.manners.Store(orderly)
		// If the reader of stdout exits, the demo ends in order: the write of its next line fails.
		// Uncaught, SIGPIPE would kill the process then. It also comes when the embedded Redis or
		// the page replies to a client that has closed its connection, which ends nothing.
		caught := make(chan os.Signal, 1)
		signal.Notify(caught, syscall.SIGPIPE)
		defer signal.Stop(caught)
		ctx, stop := context.WithCancel(cmd.Context())
		defer stop()
		d := &demo{tool: t, workers: workers, out: &lines{w: t.stdout, unread: stop, colours: colours(t.stdout)}}
		err := d.run(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), flags.Changed("port"))
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // a signal came during the start, or the reader of stdout exited
		}
		return err
	}
	return cmd
}

// demo is one run of `lockstep demo`.
type demo struct {
	*tool
	workers int
	out     *lines

	folder string // holds the config and the workers' logs; removed at the end
	redis  *embeddedRedis
	conn   *connection
	acts   *admin.Operator
	page   string
}

// run starts everything in order and stops it in reverse.
func (d *demo) run(ctx context.Context, listen string, explicit bool) (err error) {
	background := context.WithoutCancel(ctx) // for what must outlive ctx
	listener, err := web.Listen(listen, explicit)
	if err != nil {
		return err
	}
	d.page = "http://" + listener.Addr().String()
	// once it serves, web.Serve closes it
	closeListener := sync.OnceFunc(func() { _ = listener.Close() })
	defer closeListener()

	if d.folder, err = os.MkdirTemp("", "lockstep-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.folder)) }()
	config, err := d.config()
	if err != nil {
		return err
	}
	if d.redis, err = startEmbedded(); err != nil {
		return err
	}
	defer d.redis.close()
	settings := config.Settings
	settings.Redis.URL = d.redis.url()
	rdb, err := open(ctx, settings.Redis)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rdb.Close()) }()
	if d.conn, err = newConnection(rdb, settings, nil); err != nil {
		return err
	}
	d.acts = admin.NewOperator(d.conn.ledger, d.conn.queue, d.conn.pusher.Push, nil, func(err error) {
		if !errors.Is(err, context.Canceled) { // else the demo ends, or a client has left
			d.out.say(red, "%v", err)
		}
	})
	server, err := web.New(web.Options{Reader: d.conn.reader, Operator: d.acts, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}

	// The workers' Redis and the page run until the last worker has exited.
	var basics errgroup.Group
	serving, stop := context.WithCancel(background)
	defer func() { stop(); err = errors.Join(err, basics.Wait()) }()
	basics.Go(func() error { d.redis.age(serving); return nil })
	basics.Go(func() error { return server.Serve(serving, listener) })

	group, running := errgroup.WithContext(ctx)
	for i := range d.workers {
		group.Go(func() error { return d.keepWorker(running, fmt.Sprintf("demo-%d", i+1)) })
	}
	group.Go(func() error {
		ready, err := d.awaitWorkers(running, len(config.Jobs))
		if err != nil || !ready {
			return err
		}
		remove, err := (&demoState{
			PID: os.Getpid(), Redis: settings.Redis.URL, Namespace: settings.Redis.Namespace, Page: d.page, Started: time.Now().UTC(),
		}).write()
		if err != nil {
			d.out.say("", "commands cannot find this demo by themselves (%v): give them --redis %s", err, settings.Redis.URL)
			remove = func() error { return nil }
		}
		d.banner(len(config.Jobs))
		var shows errgroup.Group
		shows.Go(func() error { d.produce(running); return nil })
		shows.Go(func() error { d.tell(running); return nil })
		return errors.Join(shows.Wait(), remove())
	})
	return group.Wait()
}

// config writes the jobs to the demo's folder, where users can read them, and loads them.
func (d *demo) config() (*configs.Config, error) {
	path := d.configPath()
	if err := os.WriteFile(path, []byte(demoConfig), 0o600); err != nil {
		return nil, err
	}
	// The environment is empty: the user's settings are meant for the user's own workers.
	return configs.Load(configs.Options{Paths: []string{path}, Environ: []string{}})
}

func (d *demo) configPath() string { return filepath.Join(d.folder, "lockstep.yaml") }

// banner prints what the demo consists of and what to try.
func (d *demo) banner(jobs int) {
	d.out.print(fmt.Sprintf(`lockstep demo: see %s/timeline (embedded Redis on %s, %s, %s)
  page     %s
  jobs     %s
  who holds what:   %-24s  (in another terminal; finds the demo by itself)
  try:     kill -9 <pid of a worker>        its run moves to another worker

`, d.page, d.redis.mini.Addr(), many(d.workers, "worker"), many(jobs, "job"), d.page, d.configPath(), invocation()+" lock ls"))
}

// invocation returns how to run this program again: `go run` leaves no binary behind.
func invocation() string {
	self, err := os.Executable()
	if err == nil && strings.Contains(self, string(filepath.Separator)+"go-build") {
		return "go run ./cmd/lockstep"
	}
	return os.Args[0]
}

// awaitWorkers returns true once all workers are up and their jobs are registered, and false if ctx
// ends first.
func (d *demo) awaitWorkers(ctx context.Context, jobs int) (bool, error) {
	deadline := time.Now().Add(readyWithin)
	for {
		workers, err := d.conn.reader.Workers(ctx)
		known, jobsErr := d.conn.jobNames(ctx)
		if errors.Join(err, jobsErr) == nil && len(workers) >= d.workers && len(known) >= jobs {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("the workers are not ready after %s: %d of %d are up", readyWithin, len(workers), d.workers)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return false, nil
		}
	}
}

// keepWorker keeps a worker running until ctx ends and the worker has exited. The worker's parent
// process replaces a killed child; keepWorker replaces a parent that has exited.
func (d *demo) keepWorker(ctx context.Context, name string) error {
	for {
		pid, ended, err := d.runWorker(ctx, name)
		if err != nil || ctx.Err() != nil {
			return err
		}
		what := fmt.Sprintf("the parent process of %s (pid %d) was killed by a signal (%s): its runs are handed back", name, pid, ended)
		if ended == "" {
			what = fmt.Sprintf("worker %s (pid %d) was asked to stop and has drained", name, pid)
		}
		d.out.say(red, "%s; a new %s starts in %s", what, name, admin.Age(replaceIn))
		if !pause(ctx, replaceIn) {
			return nil
		}
	}
}

// runWorker runs one worker process until it exits. When ctx ends, it tells the worker to drain,
// and kills it if the user sends another signal. ended is the signal that killed the worker, or "".
// An error means that the worker failed.
func (d *demo) runWorker(ctx context.Context, name string) (pid int, ended string, err error) {
	self, err := command.Self()
	if err != nil {
		return 0, "", err
	}
	logged, err := os.OpenFile(filepath.Join(d.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = logged.Close() }() // only the worker writes to it
	child := exec.Command(self, "start", "--demo-worker", "--config", d.configPath(), "--redis", d.redis.url())
	child.Args[0] = os.Args[0]
	child.Env = append(withoutManager(configs.WithoutSettings(os.Environ())), "LOCKSTEP_WORKER__NAME="+name)
	child.Stdout, child.Stderr = logged, logged
	// The worker has a process group of its own: Ctrl-C on the terminal reaches only this process,
	// which then tells the workers.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// closes when this process dies, however it dies, and ends the worker
	life, err := child.StdinPipe()
	if err != nil {
		return 0, "", err
	}
	if err := child.Start(); err != nil {
		return 0, "", fmt.Errorf("start a worker: %w", err)
	}
	defer func() { _ = life.Close() }() // its reader has exited
	done := make(chan struct{})
	go func() {
		err = child.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		_ = child.Process.Signal(syscall.SIGTERM) // it may have exited already
		select {
		case <-done:
		case <-d.again:
			_ = child.Process.Kill()
			<-done
		}
		return child.Process.Pid, "", nil // it was told to end, so how it ended does not matter
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return child.Process.Pid, status.Signal().String(), nil
		}
		return child.Process.Pid, "", fmt.Errorf("worker %s ended: %w: %s", name, err, lastLine(logged.Name()))
	}
	return child.Process.Pid, "", err
}

// lastLine returns the last line of a file. In a worker's log, it explains why the worker ended.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

// lines prints the lines of several goroutines, each in one piece.
type lines struct {
	mu      sync.Mutex
	w       io.Writer
	unread  func() // is called when the reader of w has exited
	colours bool
}

func (l *lines) print(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := io.WriteString(l.w, text); errors.Is(err, syscall.EPIPE) {
		l.unread()
	}
}

// say prints one line that begins with the time.
func (l *lines) say(colour, format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...))
	if l.colours && colour != "" {
		text = colour + text + plainAgain
	}
	l.print(time.Now().Format(time.TimeOnly) + "  " + text + "\n")
}

// exited reports whether no process has this ID.
func exited(pid int) bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) }
