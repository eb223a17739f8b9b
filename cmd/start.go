//go:build unix

package cmd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/lmittmann/tint"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"lockstep/cmd/internal/asguard"
	"lockstep/cmd/internal/otlp"
	"lockstep/configs"
	"lockstep/jobs"
	"lockstep/jobs/command"
	httpjob "lockstep/jobs/http"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/notify"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

func (t *tool) startCommand() *cobra.Command {
	var inDemo, watch bool
	cmd := &cobra.Command{
		Use:   "start",
		Short: "Start a worker",
		Long: `Start a worker. It shares the schedule and the queue with all workers of the same Redis and namespace, and serves
the admin page on admin.listen. SIGINT and SIGTERM drain it: it takes no new runs, and hands back runs that take
longer than worker.drain_timeout. A second signal hands them back at once. Both end with exit code 0. A Go handler
that ignores the end of its context gets 3s more, or a fifth of a lease below 15s; then the process exits, and its
run is handed back anyway. A command gets SIGTERM, and SIGKILL 5s later; if it survives that by 2s, because it runs
as another user or waits for a disk, the process exits too, and its locks pass on when the lease ends.

SIGHUP makes it reload its config, and so do changes of the files with --watch; see lockstep config reload.

A second process, which this one starts, does the work. If it crashes, this one kills everything that it left behind
and ends its session, so that other workers take over its runs at once, and starts another; five crashes within a
minute end it.

The handlers of a program of your own may need what its OnStart opens. If OnStart fails, the worker takes no runs
and exits with 1. OnStop is not called if the drain leaves work behind.`,
		Example: `  lockstep start -c lockstep.yaml --concurrency 16`,
		Args:    noArgs,
	}
	flags := cmd.Flags()
	flags.Int("concurrency", 0, "how many attempts run at a time, `N` (default: worker.concurrency, 8)")
	flags.String("queues", "", "`QUEUES` to serve, with their weights: critical=6,default=3 (default: worker.queues)")
	flags.BoolVar(&watch, "watch", false, "reload the config when its files change")
	flags.BoolVar(&inDemo, "demo-worker", false, "be a worker of lockstep demo")
	_ = flags.MarkHidden("demo-worker") // fails only for an unknown flag
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if t.parent == nil {
			return t.watchOver(cmd.Context())
		}
		t.manners.Store(orderly)
		t.reloads.Store(!inDemo)
		ctx, handlers, abort := cmd.Context(), t.handlers, (<-chan struct{})(t.again)
		if inDemo {
			handlers = demoHandlers()
			var cancel context.CancelFunc
			ctx, cancel, abort = untilEOF(ctx, os.Stdin)
			defer cancel()
		}
		paths := configs.Find(t.configPaths, nil)
		if len(paths) == 0 {
			return refuse("no config: name a file with -c, set LOCKSTEP_CONFIG, or write ./lockstep.yaml (to try it first: lockstep demo)")
		}
		options := t.loadOptions(cmd, paths)
		options.Inputs = new(configs.Inputs)
		config, err := t.told(readConfig(options))
		if err != nil {
			return err
		}
		t.parent.settings(config.Settings)
		log := newLogger(t.stderr, config.Settings.Log)
		t.log.Store(log)
		return start(ctx, config, handlers, abort, reloading{options, t.hangups, watch}, t.parent, log)
	}
	return cmd
}

// newLogger returns a logger that follows the settings.
func newLogger(w io.Writer, settings configs.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(settings.Level)); err != nil {
		level = slog.LevelInfo // configs accepts no other words
	}
	if settings.Format == "text" || settings.Format == "auto" && isTerminal(w) {
		return slog.New(tint.NewTextHandler(w, &tint.Options{Level: level, TimeFormat: "15:04:05.000", NoColor: !colours(w)}))
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: readable}))
}

// readable writes durations as 15ms: by default, JSON has nanoseconds.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		return slog.String(a.Key, a.Value.Duration().String())
	}
	return a
}

// start runs a worker and its admin page until ctx ends and the worker has drained. Closing abort
// ends the drain. parent receives the worker's sessions, and again configures reloads.
func start(ctx context.Context, config *configs.Config, handlers *jobs.Registry, abort <-chan struct{}, again reloading,
	parent *upward, log *slog.Logger) (err error) {
	for _, problem := range config.Warnings.List {
		log.WarnContext(ctx, "config is doubtful", "at", problem.Origin.String(), "says", problem.Message, "hint", problem.Hint, "code", problem.Code)
	}
	warnOfHandlers(ctx, config.Jobs, handlers, log)

	exporter, err := otlp.Open(ctx, readBuild().short(), log)
	if err != nil {
		return exit(exitConfig, err)
	}
	// After the drain; it takes a moment, and with a receiver that hangs at most otlp.CloseLimit.
	defer exporter.Close(context.WithoutCancel(ctx))
	if exporter != nil {
		log.InfoContext(ctx, "spans are exported", "endpoint", otlp.Endpoint(os.Getenv))
	}
	exporter.Share()
	group, running := errgroup.WithContext(ctx)
	settings := config.Settings
	signIn, err := newSignIn(settings.Admin, log)
	if err != nil {
		return exit(exitConfig, err)
	}
	weak, unroled := signIn.Warnings()
	if weak != "" {
		log.WarnContext(ctx, "a sign-in is weak", "because", weak)
	}
	if unroled != "" {
		log.WarnContext(ctx, "users have no role", "because", unroled)
	}
	background := context.WithoutCancel(ctx) // for what must stay until the worker has drained
	if settings.Redis.URL == configs.Embedded {
		log.WarnContext(ctx, "redis.url is embedded: this is one process with its own Redis inside, and all data is lost when it exits")
		mini, err := startEmbedded()
		if err != nil {
			return err
		}
		aging, stop := context.WithCancel(background)
		aged := make(chan struct{})
		go func() { defer close(aged); mini.age(aging) }()
		defer func() { stop(); <-aged; mini.close() }()
		settings.Redis.URL, settings.Redis.PasswordFile = mini.url(), ""
	}
	rdb, err := open(ctx, settings.Redis)
	if err != nil {
		return interruptedIsFine(ctx, err)
	}
	defer func() { err = errors.Join(err, rdb.Close()) }()
	if err := checkServer(ctx, rdb, log); err != nil {
		return interruptedIsFine(ctx, lostRedis(settings.Redis, err))
	}
	listener, err := web.Listen(settings.Admin.Listen, settings.Admin.ListenSet)
	if err != nil {
		return err
	}
	defer listener.Close() // closes again, unless it was never served
	keys, err := settings.Redis.SignKeys()
	if err != nil {
		return exit(exitConfig, err)
	}
	conn, err := newConnection(rdb, settings, keys)
	if err != nil {
		return err
	}
	options, err := workerOptions(config, conn, handlers, abort, log)
	if err != nil {
		return err
	}
	metrics := web.NewMetrics(options.Version, options.Concurrency, settings.Metrics.Jobs)
	exporter.OnLost(metrics.SpansLost)
	client := notifyClient()
	defer client.Close()
	pinger := notify.NewPinger(client, log)
	options.OnAttempt, options.OnRefused = pinging(metrics.Attempt, pinger), metrics.Refused
	if config.Settings.Redis.URL != configs.Embedded {
		sayWhatIsSigned(ctx, settings.Redis, keys, log)
	}
	options.OnRejected, options.OnStuck, options.Hook = metrics.Rejected, metrics.Stuck, metrics.Hook()
	rdb.AddHook(metrics.Hook()) // of the queues and the page
	options.OnRepeated, conn.pusher.OnLeft = metrics.Repeated, metrics.Left
	options.Admin, options.Pass = listener.Addr().String(), rand.Text()
	options.Tracer = exporter.Tracer()
	if config.Settings.Redis.URL != configs.Embedded {
		options.OnSession = parent.session
	}
	w, err := worker.New(options)
	if err != nil {
		return err
	}
	sender, err := notify.New(notify.Options{
		Mailbox: conn.ledger, Client: client, Source: sourceOf(settings), Logger: log,
		Worker: func() locks.SessionID { return locks.SessionID(w.ID()) },
	})
	if err != nil {
		return err
	}
	sender.Set(targetsOf(config), config.Jobs)
	reloads := newReloader(again.options, config, options.Config, log, func(ctx context.Context, config *configs.Config, mark string) error {
		warnOfHandlers(ctx, config.Jobs, handlers, log)
		if err := w.SetJobs(ctx, config.Jobs, limits(config.Permits), mark); err != nil {
			return err
		}
		sender.Set(targetsOf(config), config.Jobs)
		return nil
	})
	reloads.parent, reloads.onRefused = parent, sender.ConfigRefused
	parent.answers(func() state { return stateOf(w, reloads.status.Load()) })
	operator := admin.NewOperator(conn.ledger, conn.queue, conn.pusher.Push, w.Deliver, func(err error) {
		log.WarnContext(ctx, "could not push a delivery, the sweep will repeat it", "error", err)
	})
	operator.Tracer = exporter.Tracer()
	server, err := web.New(web.Options{
		Reader: conn.reader, Operator: operator, SignIn: signIn, BasePath: settings.Admin.BasePath, ReadOnly: settings.Admin.ReadOnly, Hosts: settings.Admin.Hosts, Pass: options.Pass, Unready: w.Unready, Worker: func() string { return string(w.ID()) }, Logger: log,
		Config: reloads.status.Load, Reload: func(ctx context.Context) error { return reloads.announced(ctx, "a request") }, Check: reloads.check,
		Metrics: metrics,
	})
	if err != nil {
		return err
	}
	if url := "http://" + listener.Addr().String() + strings.TrimSuffix(settings.Admin.BasePath, "/"); signIn.Closed() {
		log.WarnContext(ctx, "only /livez, /readyz and /metrics are served: other hosts can reach this address, and admin.auth.mode is none", "url", url)
	} else {
		log.InfoContext(ctx, "admin page is served", "url", url, "auth", signIn.Mode())
	}

	// The page stays up until the worker has drained: during a drain, people look at it.
	serving, stop := context.WithCancel(background)
	defer stop()
	group.Go(func() error { return server.Serve(serving, listener) })
	// Runs end until then, and so do the messages about them.
	group.Go(func() error { return sender.Run(serving) })
	group.Go(func() error { return pinger.Run(serving) })
	// it also ends with the worker, which an operator may drain
	rereading, done := context.WithCancel(running)
	defer done()
	group.Go(func() error { reloads.run(rereading, again.hangups, again.watch); return nil })
	group.Go(func() error { removeLeftArgs(rereading, log); return nil })
	group.Go(func() error {
		defer stop()
		defer done()
		return runPrepared(running, handlers, parent, func(ctx context.Context) error {
			err := w.Run(ctx)
			if stuck := new(worker.StuckError); errors.As(err, &stuck) {
				stuck.Err = lostRedis(settings.Redis, stuck.Err)
				return stuck
			}
			// Run returns such an error only before it is ready
			return lostRedis(settings.Redis, err)
		})
	})
	err = group.Wait()
	switch {
	case errors.Is(err, queue.ErrOwned):
		return exit(exitUsage, err)
	case errors.Is(err, worker.ErrPermits):
		return exit(exitConfig, err)
	}
	return err
}

// stateOf returns the state of a worker, for its parent.
func stateOf(w *worker.Worker, config *admin.Config) state {
	s := state{Drains: w.Draining()}
	switch err := w.Unready(); {
	case err == nil:
		s.Ready, s.Text = true, "ready, as "+string(w.ID())
	default:
		s.Text = "not ready: " + err.Error()
	}
	if err := w.Stalled(); err != nil {
		s.Stalled, s.Text = true, "not ready: "+err.Error()
	}
	if !config.RefusedAt.IsZero() {
		s.Text += "; the new config has errors, the old one stays"
	}
	return s
}

// stopLimit is how long the functions of OnStop may take together.
const stopLimit = 5 * time.Second

// runPrepared runs a worker after OnStart and before OnStop. It does not call OnStop if the worker
// has left attempts behind: their handlers use what OnStop would close, and the exit closes it.
func runPrepared(ctx context.Context, handlers *jobs.Registry, parent *upward, run func(context.Context) error) (err error) {
	defer func() {
		if stuck := new(worker.StuckError); errors.As(err, &stuck) {
			parent.stuck(stuck)
			err = stuck.Err
			return
		}
		// ctx has ended by then: the worker has drained
		err = errors.Join(err, stopHandlers(context.WithoutCancel(ctx), handlers))
	}()
	if err := handlers.Start(ctx); err != nil {
		parent.hindered(err)
		return interruptedIsFine(ctx, fmt.Errorf("the worker cannot start: %w", err))
	}
	return run(ctx)
}

// stopHandlers calls the functions of OnStop. It leaves behind a function that ignores the end of
// its context: the process is about to exit.
func stopHandlers(ctx context.Context, handlers *jobs.Registry) error {
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	stopped := make(chan error, 1)
	go func() { stopped <- handlers.Stop(ctx) }()
	select {
	case err := <-stopped:
		return err
	case <-time.After(stopLimit + stopLimit/5):
		return fmt.Errorf("OnStop: a function still runs %s after its context has ended", stopLimit/5)
	}
}

// removeLeftArgs removes the files with args that killed workers have left: now, and once more when
// those are old enough that are too young now. A killed worker is often replaced at once.
func removeLeftArgs(ctx context.Context, log *slog.Logger) {
	for range 2 {
		n, next, err := command.RemoveLeftArgs()
		if n > 0 || err != nil {
			log.InfoContext(ctx, "files with args were removed, which a killed worker had left", "files", n, "error", err)
		}
		if next.IsZero() {
			return
		}
		if !pause(ctx, time.Until(next)) {
			return
		}
	}
}

// sayWhatIsSigned logs which definitions this worker runs.
func sayWhatIsSigned(ctx context.Context, settings configs.Redis, keys *jobs.Keys, log *slog.Logger) {
	if keys == nil {
		log.WarnContext(ctx, "definitions are not signed: "+unsignedMeans, "remedy", "set redis.sign_key_file in every worker and command line")
		return
	}
	log.InfoContext(ctx, "definitions are signed, and runs without a valid signature are refused", "key", keys.ID(), "keys_accepted", keys.Count())
	for _, path := range settings.ExposedKeys() {
		log.WarnContext(ctx, "other users of this host may read the key that signs definitions", "file", path, "remedy", "chmod 600 "+path)
	}
}

// interruptedIsFine turns a start that a signal interrupted into a success, as for a worker that
// ran.
func interruptedIsFine(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func workerOptions(config *configs.Config, conn *connection, handlers *jobs.Registry,
	abort <-chan struct{}, log *slog.Logger) (worker.Options, error) {
	settings := conn.settings
	guard, err := guardArgv()
	if err != nil {
		return worker.Options{}, err
	}
	commands, err := command.New(command.Options{
		Guard: guard, GuardEnv: configs.WithoutSettings(os.Environ()), JobEnv: settings.Worker.Inherited(os.Environ()), Logger: log,
	})
	if err != nil {
		return worker.Options{}, err
	}
	calls, err := httpjob.New(httpjob.Options{})
	if err != nil {
		return worker.Options{}, err
	}
	return worker.Options{
		Redis: conn.rdb, Ledger: conn.ledger, Queue: conn.queue, Pusher: conn.pusher, Locks: workerLockOptions(settings),
		MaxHistory:  settings.Limits.HistoryBytes(),
		Concurrency: settings.Worker.Concurrency, DrainTimeout: settings.Worker.DrainTimeout, Queues: settings.Worker.Queues,
		Jobs:    config.Jobs,
		Permits: limits(config.Permits),
		Expand: func(job *jobs.Job) (*jobs.Job, []jobs.Secret, error) {
			// The pinger replaces ${...} in a ping: a secret that is missing there fails no run.
			work := *job
			work.Ping = ""
			return configs.Expand(&work, os.LookupEnv)
		},
		Executors: map[string]jobs.Executor{
			"command": commands,
			"http":    calls,
			"handler": handlers,
		},
		Version: readBuild().short(), Config: digest(config.Jobs),
		LogOutput: settings.Log.Output, Abort: abort, Logger: log,
	}, nil
}

// warnOfHandlers logs the jobs that this binary cannot run. Another binary may, so this is not an
// error.
func warnOfHandlers(ctx context.Context, definitions []*jobs.Job, handlers *jobs.Registry, log *slog.Logger) {
	for _, job := range definitions {
		if job.Handler == "" || handlers.Has(job.Handler) {
			continue
		}
		log.WarnContext(ctx, "a job's handler is not in this binary: other workers must run it", "job", job.Name,
			"handler", job.Handler, "handlers_here", handlers.Names())
	}
}

// untilEOF returns a context that ends with ctx or at the end of r, and a channel that is closed at
// the end of r. For a worker of the demo, r ends with the demo and its Redis, so there is nothing
// to wait for.
func untilEOF(ctx context.Context, r io.Reader) (context.Context, context.CancelFunc, <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	// A read of a pipe cannot be canceled: the goroutine ends with the process, which is about to
	// exit.
	go func() {
		_, _ = io.Copy(io.Discard, r)
		close(ended)
		cancel()
	}()
	return ctx, cancel, ended
}

// guardArgv returns the command line that starts this binary as a guard.
func guardArgv() ([]string, error) {
	self, err := command.Self()
	if err != nil {
		return nil, fmt.Errorf("find this program, to guard commands: %w", err)
	}
	return []string{self, asguard.Word}, nil
}
