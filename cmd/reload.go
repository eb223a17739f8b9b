package cmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/web"
	"lockstep/scheduler/worker"
)

// reloading configures when a worker reloads its config, apart from requests.
type reloading struct {
	options configs.Options // that loaded it
	hangups <-chan struct{}
	watch   bool
}

// rereads passes a SIGHUP on to the reloader. It returns false if this process has none.
func (t *tool) rereads() bool {
	if !t.reloads.Load() {
		return false
	}
	select {
	case t.hangups <- struct{}{}:
	default: // the one that is still pending has the same effect
	}
	return true
}

// hasTerminal reports whether the process has a controlling terminal.
func hasTerminal() bool {
	file, err := os.OpenFile("/dev/tty", os.O_RDONLY, 0)
	if err != nil {
		return false
	}
	_ = file.Close() // nothing was written
	return true
}

// reloader keeps a worker's jobs in step with its files. It builds and checks everything before it
// gives anything to the worker; a config with errors changes nothing but the reported status.
type reloader struct {
	options configs.Options // of the start
	log     *slog.Logger
	parent  *upward // receives the beginning and the end of each reload
	apply   func(ctx context.Context, config *configs.Config, digest string) error
	// receives a description of each refused config; nil: none. Set it before the first reload.
	onRefused func(text string)

	mu       sync.Mutex      // one reload at a time; guards running
	running  *configs.Config // the last accepted config; the worker has its jobs and so on
	settings []configs.Value // of the start; they apply until a restart

	inputs atomic.Pointer[configs.Inputs] // of the last load, good or bad
	status atomic.Pointer[admin.Config]   // replaced, never modified
}

// newReloader begins with the config that a worker is started with. options loaded that config,
// mark is the digest of its jobs, and apply gives the worker other jobs, permits and
// targets.
func newReloader(options configs.Options, config *configs.Config, mark string, log *slog.Logger,
	apply func(ctx context.Context, config *configs.Config, digest string) error) *reloader {
	r := &reloader{options: options, log: log, apply: apply, running: config, settings: config.Values()}
	r.inputs.Store(options.Inputs)
	r.status.Store(&admin.Config{
		Digest: mark, Files: config.Files, Jobs: len(config.Jobs), Warnings: len(config.Warnings.List),
		LoadedAt: admin.Instant{Time: time.Now()}, Places: placesOf(config),
	})
	return r
}

// placesOf returns where the jobs of a config are defined.
func placesOf(config *configs.Config) map[string]string {
	places := make(map[string]string, len(config.Jobs))
	for _, job := range config.Jobs {
		origin := config.JobOrigin(job.Name)
		places[job.Name] = fmt.Sprintf("%s:%d", origin.File, origin.Line)
	}
	return places
}

// announced is reload, for a request that the parent reports.
func (r *reloader) announced(ctx context.Context, why string) error {
	r.parent.reloading()
	defer r.parent.reloaded()
	return r.reload(ctx, why)
}

// reload loads the config again. A refused config is not an error: status reports it.
func (r *reloader) reload(ctx context.Context, why string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	options := r.options
	options.Inputs = new(configs.Inputs)
	config, err := readConfig(options)
	r.inputs.Store(options.Inputs)
	status := *r.status.Load()
	if problems, ok := errors.AsType[configs.Problems](err); ok {
		r.refused(ctx, why, problems.List, status)
		return nil
	}
	if err != nil {
		return err
	}
	changes, restart := compareJobs(r.running.Jobs, config.Jobs), changedSettings(r.settings, config.Values())
	mark := digest(config.Jobs)
	permits := !maps.Equal(limits(r.running.Permits), limits(config.Permits))
	targets := !reflect.DeepEqual(r.running.Targets, config.Targets)
	if len(changes) > 0 || permits || targets {
		err := r.apply(ctx, config, mark)
		if permits, ok := errors.AsType[*worker.PermitsError](err); ok {
			r.refused(ctx, why, []configs.Problem{{Origin: config.PermitOrigin(permits.Permits),
				Severity: configs.SeverityError, Code: configs.CodePermits, Message: permits.Error()}}, status)
			return nil
		}
		if err != nil {
			return err
		}
	}
	r.running = config
	status.Digest, status.Files, status.Jobs, status.Warnings = mark, config.Files, len(config.Jobs), len(config.Warnings.List)
	status.Places = placesOf(config)
	status.LoadedAt, status.Reloads = admin.Instant{Time: time.Now()}, status.Reloads+1
	status.RefusedAt, status.Problems, status.NeedsRestart = admin.Instant{}, nil, restart
	r.status.Store(&status)

	for _, problem := range config.Warnings.List {
		r.log.WarnContext(ctx, "config is doubtful", "at", problem.Origin.String(), "says", problem.Message, "hint", problem.Hint, "code", problem.Code)
	}
	facts := []any{"because_of", why, "config", mark, "jobs", len(config.Jobs)}
	for _, kind := range []string{"added", "changed", "removed"} {
		var names []string
		for _, change := range changes {
			if change.Change == kind {
				names = append(names, change.Job)
			}
		}
		if names != nil {
			facts = append(facts, kind, few(names))
		}
	}
	if permits {
		facts = append(facts, "permits", "changed")
	}
	if targets {
		facts = append(facts, "targets", "changed")
	}
	r.log.InfoContext(ctx, "config reloaded", facts...)
	if len(restart) > 0 {
		r.log.WarnContext(ctx, "some settings need a restart", "settings", restart)
	}
	return nil
}

// check loads the config and drops it: what it returns is what a reload would find.
func (r *reloader) check(context.Context) (*admin.ConfigCheck, error) {
	r.mu.Lock() // a reload has the processors for itself
	defer r.mu.Unlock()
	options := r.options
	options.Inputs = new(configs.Inputs)
	checked := &admin.ConfigCheck{Files: []string{}, Errors: []admin.ConfigProblem{}, Warnings: []admin.ConfigProblem{},
		Added: []string{}, Changed: []string{}, Removed: []string{}, NeedsRestart: []string{}}
	config, err := readConfig(options)
	problems, wrong := errors.AsType[configs.Problems](err)
	switch {
	case wrong:
		checked.Jobs = problems.Jobs
	case err != nil:
		return nil, err
	default:
		problems, checked.OK, checked.Jobs = config.Warnings, true, len(config.Jobs)
		checked.Files = append(checked.Files, config.Files...)
		checked.NeedsRestart = append(checked.NeedsRestart, changedSettings(r.settings, config.Values())...)
		changes := compareJobs(r.running.Jobs, config.Jobs)
		checked.Changes = len(changes)
		lists := map[string]*[]string{"added": &checked.Added, "changed": &checked.Changed, "removed": &checked.Removed}
		const most = 1000 // names of each list
		for _, change := range changes {
			if list := lists[change.Change]; len(*list) < most {
				*list = append(*list, change.Job)
			}
		}
	}
	for _, p := range problems.List {
		problem := admin.ConfigProblem{At: p.Origin.String(), Code: p.Code, Message: p.Message, Hint: admin.Text(p.Hint)}
		if p.Severity == configs.SeverityError {
			checked.Errors = append(checked.Errors, problem)
		} else {
			checked.Warnings = append(checked.Warnings, problem)
		}
	}
	return checked, nil
}

// refused logs a config that has errors, and puts it into the status.
func (r *reloader) refused(ctx context.Context, why string, problems []configs.Problem, status admin.Config) {
	status.Refused++
	status.RefusedAt, status.Problems = admin.Instant{Time: time.Now()}, nil
	const most = 20 // of a file that is wrong throughout
	for _, p := range problems {
		if p.Severity != configs.SeverityError {
			continue
		}
		status.Problems = append(status.Problems, admin.ConfigProblem{At: p.Origin.String(), Code: p.Code, Message: p.Message, Hint: admin.Text(p.Hint)})
		if len(status.Problems) <= most {
			r.log.ErrorContext(ctx, "config has an error", "at", p.Origin.String(), "says", p.Message, "hint", p.Hint, "code", p.Code)
		}
	}
	r.status.Store(&status)
	r.log.ErrorContext(ctx, "the new config is refused, the old one stays", "because_of", why, "errors", len(status.Problems), "config", status.Digest)
	if r.onRefused != nil && len(status.Problems) > 0 {
		first := status.Problems[0]
		r.onRefused(fmt.Sprintf("%s: %s: %s", many(len(status.Problems), "error"), first.At, first.Message))
	}
}

// few shortens a list for a log line.
func few(names []string) []string {
	const most = 10
	if len(names) <= most {
		return names
	}
	return append(names[:most:most], fmt.Sprintf("and %d more", len(names)-most))
}

// changedSettings returns the keys of the settings that differ.
func changedSettings(before, after []configs.Value) []string {
	var keys []string
	for i := range before { // both have the same order
		if !reflect.DeepEqual(before[i].Value, after[i].Value) {
			keys = append(keys, before[i].Key)
		}
	}
	return keys
}

// reloadPause is between the attempts to reload a config while Redis does not answer.
const reloadPause = time.Second

// run reloads on each value from hangups and, if watch is set, when the files change, until ctx
// ends. It repeats a reload that fails, because its cause does not come again. A config that is
// refused is not such a failure.
func (r *reloader) run(ctx context.Context, hangups <-chan struct{}, watch bool) {
	try := func(ctx context.Context, why string) {
		reload := r.announced
		for attempt := 1; ; attempt++ {
			err := reload(ctx, why)
			reload = r.reload // the parent reports the end after the first attempt
			if err == nil || ctx.Err() != nil {
				return
			}
			if attempt == 1 {
				r.log.WarnContext(ctx, "could not reload the config, the old one stays for now, will retry", "because_of", why, "error", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(reloadPause):
			}
		}
	}
	var watching sync.WaitGroup
	defer watching.Wait()
	if watch {
		watching.Go(func() {
			configs.Watch(ctx, r.inputs.Load, func(ctx context.Context) { try(ctx, "files changed") }, func(err error) {
				r.log.WarnContext(ctx, "the system does not report file changes, so the files are checked every two seconds", "error", err)
			})
		})
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			try(ctx, "SIGHUP")
		}
	}
}

func (t *tool) configReloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload [WORKER...]",
		Short: "Make workers reload their config",
		Long: `Make the workers of this host, or the given workers, reload their config, and print the results. A config with
errors changes nothing: its errors are printed, and the worker keeps the old one. Running runs keep the definition
that they started with. Settings other than jobs and permits need a restart; the changed ones are named.

SIGHUP to a worker does the same, and so does a change of its files if it was started with --watch. The command
reaches a worker at its admin address, so run it on the worker's host.

Exits with 3 if a worker refused its config.`,
		Example: `  lockstep config reload`,
		Args:    cobra.ArbitraryArgs,
	}
	output := outputFlag(cmd, text, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var workers []admin.Worker
		err := t.reads(func(ctx context.Context, conn *connection, _ []string) (err error) {
			workers, err = conn.reader.Workers(ctx)
			return err
		})(cmd, nil)
		if err != nil {
			return err
		}
		chosen, err := chooseWorkers(workers, args)
		if err != nil {
			return err
		}
		var states []*admin.Config
		var failures []error
		refused := false
		for _, w := range chosen {
			state, err := askReload(cmd.Context(), w)
			if err != nil {
				failures = append(failures, fmt.Errorf("worker %s: %w", w.ID, err))
				continue
			}
			states = append(states, state)
			refused = refused || !state.RefusedAt.IsZero()
		}
		if *output != text {
			err = t.encode(*output, append([]*admin.Config{}, states...))
		} else {
			err = t.printReloads(states)
		}
		if err := errors.Join(append(failures, err)...); err != nil {
			return err
		}
		if refused {
			return exit(exitConfig, nil)
		}
		return nil
	}
	return cmd
}

// chooseWorkers returns the named workers, or all workers of this host.
func chooseWorkers(workers []admin.Worker, named []string) ([]admin.Worker, error) {
	var chosen []admin.Worker
	for _, name := range named {
		i := slices.IndexFunc(workers, func(w admin.Worker) bool { return string(w.ID) == name })
		if i < 0 {
			return nil, noWorker(name, workers)
		}
		chosen = append(chosen, workers[i])
	}
	if len(named) > 0 {
		return chosen, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find the workers of this host: %w", err)
	}
	for _, w := range workers {
		if w.Host == host && w.State != admin.Gone {
			chosen = append(chosen, w)
		}
	}
	if len(chosen) == 0 {
		return nil, fmt.Errorf("no worker runs on this host, %s; there are %d elsewhere (see: lockstep worker ls)", host, len(workers))
	}
	return chosen, nil
}

// askReload asks one worker to reload its config. A refused config is not an error.
func askReload(ctx context.Context, w admin.Worker) (*admin.Config, error) {
	if w.Admin == "" {
		return nil, errors.New("it has no admin address; send SIGHUP to its process")
	}
	body, err := json.Marshal(map[string]string{"worker": string(w.ID)})
	if err != nil {
		return nil, err
	}
	const patience = time.Minute // for very many jobs on a busy machine
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+localAddress(string(w.Admin))+"/api/v1/config/reload", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if w.Pass != "" { // any client that reads Redis may reload, without a sign-in
		request.Header.Set("Authorization", "Lockstep "+w.Pass)
		// for the audit; a worker that does not know it ignores it
		request.Header.Set(web.ActorHeader, whoAmI())
	}
	// no proxy: the worker is on this host
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusUnprocessableEntity {
		var problem struct {
			Detail string `json:"detail"`
		}
		if json.NewDecoder(response.Body).Decode(&problem) != nil || problem.Detail == "" {
			problem.Detail = response.Status
		}
		return nil, errors.New(problem.Detail)
	}
	state := new(admin.Config)
	if err := json.NewDecoder(response.Body).Decode(state); err != nil {
		return nil, fmt.Errorf("its reply: %w", err)
	}
	return state, nil
}

func (t *tool) printReloads(states []*admin.Config) error {
	var b strings.Builder
	for _, state := range states {
		if state.RefusedAt.IsZero() {
			fmt.Fprintf(&b, "%s: config %s, %d jobs\n", state.Worker, state.Digest, state.Jobs)
		} else {
			fmt.Fprintf(&b, "%s: refused, config %s stays\n", state.Worker, state.Digest)
		}
		for _, p := range state.Problems {
			fmt.Fprintf(&b, "  %s: error: %s [%s]\n", p.At, sum("; ", p.Message, string(p.Hint)), p.Code)
		}
		if len(state.NeedsRestart) > 0 {
			fmt.Fprintf(&b, "  a restart is needed for %s\n", strings.Join(state.NeedsRestart, ", "))
		}
	}
	return t.write(b.String())
}
