package cmd

import (
	"bufio"
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
)

//go:embed demo.yaml
var demoConfig string

const (
	replaceIn   = 10 * time.Second // so long two workers are left alone when a worker's parent process was killed, too
	readyWithin = 30 * time.Second // a machine that is busy compiling the demo is slow
)

func (t *tool) demoCommand() *cobra.Command {
	var workers, port int
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See it work, with nothing else installed",
		Long: `Start a Redis inside this process, some workers as processes of their own, jobs, and a page that shows who does what. While
it runs, the other commands find it by themselves when no Redis is named. Ctrl-C ends all of it and removes what it
has left on disk.`,
		Args: noArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&workers, "workers", 3, "how many worker processes, `N`")
	flags.IntVar(&port, "port", 9620, "`PORT` of the page on 127.0.0.1; when the default one is taken, the next free one")
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
		// Nobody reads on: that is the end, and in order too. Without this the first line after it would kill the process.
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGPIPE)
		defer stop()
		d := &demo{tool: t, workers: workers, out: &lines{w: t.stdout, colours: colours(t.stdout)}}
		err := d.run(ctx, net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), flags.Changed("port"))
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return nil // a signal asked for the end while it was still starting
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

	folder string // of the config and the workers' logs; removed at the end
	redis  *embeddedRedis
	conn   *connection
	acts   *admin.Operator
	page   string
}

// run starts everything, one after the other, and takes it down in the reverse order.
func (d *demo) run(ctx context.Context, listen string, explicit bool) (err error) {
	background := context.WithoutCancel(ctx) // for what goes last
	listener, err := admin.Listen(listen, explicit)
	if err != nil {
		return err
	}
	d.page = "http://" + listener.Addr().String()
	closeListener := sync.OnceFunc(func() { _ = listener.Close() }) // admin.Serve closes it, once it serves
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
	if d.conn, err = newConnection(rdb, settings); err != nil {
		return err
	}
	if d.acts, err = d.operator(d.conn); err != nil {
		return err
	}
	server, err := admin.New(admin.Options{Reader: d.conn.reader, Operator: d.acts, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}

	// What the workers need goes on until the last of them has ended.
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
			d.out.say("", "the command line cannot find this demo by itself (%v): give it --redis %s", err, settings.Redis.URL)
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

// config writes the jobs to the demo's folder, where somebody may read them, and loads them.
func (d *demo) config() (*configs.Config, error) {
	path := d.configPath()
	if err := os.WriteFile(path, []byte(demoConfig), 0o600); err != nil {
		return nil, err
	}
	// An empty environment: the user's settings are for his workers.
	return configs.Load(configs.Options{Paths: []string{path}, Environ: []string{}})
}

func (d *demo) configPath() string { return filepath.Join(d.folder, "lockstep.yaml") }

// banner says what there is to see.
func (d *demo) banner(jobs int) {
	d.out.print(fmt.Sprintf(`lockstep demo: embedded Redis on %s, %s, %s
  page     %s
  jobs     %s
  who holds what:   %-24s  (in another terminal; finds the demo by itself)
  try:     kill -9 <pid of a worker>        its run moves to another worker

`, d.redis.mini.Addr(), count(d.workers, "worker"), count(jobs, "job"), d.page, d.configPath(), invocation()+" lock ls"))
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// invocation is how to call this program once more: `go run` leaves none that could be called.
func invocation() string {
	self, err := os.Executable()
	if err == nil && strings.Contains(self, string(filepath.Separator)+"go-build") {
		return "go run ./cmd/lockstep"
	}
	return os.Args[0]
}

// awaitWorkers returns true when all workers are there and their jobs are registered, and false when ctx ended before.
func (d *demo) awaitWorkers(ctx context.Context, jobs int) (bool, error) {
	deadline := time.Now().Add(readyWithin)
	for {
		workers, err := d.conn.reader.Workers(ctx)
		known, jobsErr := d.conn.jobNames(ctx)
		if errors.Join(err, jobsErr) == nil && len(workers) >= d.workers && len(known) >= jobs {
			return true, nil
		}
		if time.Now().After(deadline) {
			return false, fmt.Errorf("the workers are not ready after %s: %d of %d are there", readyWithin, len(workers), d.workers)
		}
		if !pause(ctx, 50*time.Millisecond) {
			return false, nil
		}
	}
}

// pause waits, and tells whether it waited to the end.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// keepWorker runs a worker, a parent process that replaces its child when that is killed, and another one when the parent
// has ended itself, until ctx ends and the last has ended.
func (d *demo) keepWorker(ctx context.Context, name string) error {
	for {
		pid, ended, err := d.runWorker(ctx, name)
		if err != nil || ctx.Err() != nil {
			return err
		}
		what := fmt.Sprintf("the parent process of %s (pid %d) was ended by a signal (%s): what its worker ran is handed back", name, pid, ended)
		if ended == "" {
			what = fmt.Sprintf("worker %s (pid %d) was asked to stop and has drained", name, pid)
		}
		d.out.say(red, "%s; a new %s comes in %s", what, name, age(replaceIn))
		if !pause(ctx, replaceIn) {
			return nil
		}
	}
}

// runWorker runs one worker process until it ends; when ctx ends it is told to drain, and killed when the user signals
// again. ended is the signal that killed it, or "". An error is a worker that failed.
func (d *demo) runWorker(ctx context.Context, name string) (pid int, ended string, err error) {
	self, err := command.Self()
	if err != nil {
		return 0, "", err
	}
	logged, err := os.OpenFile(filepath.Join(d.folder, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = logged.Close() }() // it is the worker's
	child := exec.Command(self, "start", "--demo-worker", "--config", d.configPath(), "--redis", d.redis.url())
	child.Args[0] = os.Args[0]
	child.Env = append(withoutSettings(os.Environ()), "LOCKSTEP_WORKER__NAME="+name)
	child.Stdout, child.Stderr = logged, logged
	// A group of its own: a Ctrl-C on the terminal is for this process alone, which then tells the workers.
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	life, err := child.StdinPipe() // ends with this process, however that ends, and the worker with it
	if err != nil {
		return 0, "", err
	}
	if err := child.Start(); err != nil {
		return 0, "", fmt.Errorf("start a worker: %w", err)
	}
	defer func() { _ = life.Close() }() // by now nobody reads there
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	select {
	case err = <-done:
	case <-ctx.Done():
		_ = child.Process.Signal(syscall.SIGTERM) // it may have ended by now
		select {
		case err = <-done:
		case <-d.again:
			_ = child.Process.Kill()
			err = <-done
		}
		if err != nil {
			err = nil // however it ended, it was to end
		}
		return child.Process.Pid, "", nil
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
			return child.Process.Pid, status.Signal().String(), nil
		}
		return child.Process.Pid, "", fmt.Errorf("worker %s ended: %w: %s", name, err, lastLine(logged.Name()))
	}
	return child.Process.Pid, "", err
}

// withoutSettings returns an environment without what lockstep reads of it.
func withoutSettings(environ []string) []string {
	var kept []string
	for _, entry := range environ {
		if !strings.HasPrefix(entry, "LOCKSTEP_") && !strings.HasPrefix(entry, "REDIS_URL=") {
			kept = append(kept, entry)
		}
	}
	return kept
}

// lastLine returns the last line of a file, which says why a worker ended.
func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:])
}

// lines prints whole lines of several goroutines.
type lines struct {
	mu      sync.Mutex
	w       io.Writer
	colours bool
}

func (l *lines) print(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := bufio.NewWriter(l.w)
	_, _ = b.WriteString(text)
	_ = b.Flush() // a reader that is gone ends the demo by SIGPIPE
}

// say prints one line with the time in front.
func (l *lines) say(colour, format string, args ...any) {
	text := oneLine(fmt.Sprintf(format, args...))
	if l.colours && colour != "" {
		text = colour + text + plainAgain
	}
	l.print(time.Now().Format(time.TimeOnly) + "  " + text + "\n")
}
