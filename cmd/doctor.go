package cmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"lockstep/cmd/internal/otlp"
	"lockstep/configs"
	"lockstep/locks"
	"lockstep/locks/space"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/queue"
)

// The level of a finding: as it should be, worth knowing, worse than it could be, or wrong.
const (
	levelOK      = "ok"
	levelNote    = "note"
	levelWarning = "warning"
	levelError   = "error"
)

// finding is one line of doctor's report.
type finding struct {
	Level   string     `json:"level"`
	Topic   string     `json:"topic"`
	On      admin.Text `json:"on"` // a worker, a queue or a node of a cluster; null: everything
	Finding string     `json:"finding"`
}

// clocksApart is how far off a clock may be before doctor reports it. Ticks and locks follow the
// clock of Redis, but people read logs, and asynq dates its tasks by the sender's clock.
const clocksApart = 2 * time.Second

func (t *tool) doctorCommand() *cobra.Command {
	var strict, acl bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find problems and possible improvements in config, Redis and workers",
		Long: `Check the config; Redis (its version, its behavior when memory is full, what it stores on disk, its replicas,
whether the lease outlives a failover); the clocks of this host and of the workers; workers with another config than
the others; queues that no worker serves or that belong to another namespace; parked runs, and lists of requests that
dead senders have left; the memory that finished runs take; messages that could not be sent; and the variables for the
export of spans. Also check what this Redis user may do, which keys sign definitions, and whether there are definitions
of a newer build. Nothing is changed.

With --acl, print the Redis users that an installation needs, as lines for redis-cli: worker, operator, reader and
producer, each with the least keys, channels and commands that it needs.

Exits with 1 if something is wrong, with 3 if the config has errors, with 2 if Redis holds data of a format that
this build does not know, with 4 if Redis is unreachable; warnings alone exit with 0, unless --strict turns them
into errors.`,
		Args: noArgs,
	}
	cmd.Flags().BoolVar(&acl, "acl", false, "print the Redis users that an installation needs, with their least rights, and check nothing")
	cmd.Flags().BoolVar(&strict, "strict", false, "treat warnings as errors")
	output := outputFlag(cmd, tables, asJSON, asYAML)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if acl {
			config, err := t.load(cmd, configs.Find(t.configPaths, nil), false)
			if err != nil {
				return err
			}
			return t.acl(config)
		}
		d := &doctor{tool: t}
		err := d.look(cmd)
		if printed := doctorView(t).print(t, *output, d.findings); printed != nil {
			return errors.Join(err, printed)
		}
		if err != nil {
			return err // the remaining checks were not possible
		}
		return d.verdict(strict)
	}
	return cmd
}

func doctorView(t *tool) view[finding] {
	return view[finding]{columns: []column[finding]{
		{title: "level", cell: func(f finding) string { return t.state(f.Level) }},
		{title: "topic", cell: func(f finding) string { return f.Topic }},
		{title: "on", cell: func(f finding) string { return string(f.On) }},
		{title: "finding", cell: func(f finding) string { return f.Finding }},
	}}
}

// doctor collects findings.
type doctor struct {
	*tool
	findings []finding
	code     int // of a config with errors
}

func (d *doctor) say(level, topic, on, format string, args ...any) {
	d.findings = append(d.findings, finding{level, topic, admin.Text(on), fmt.Sprintf(format, args...)})
}

// verdict prints how many errors and warnings were found, and returns the error to exit with.
func (d *doctor) verdict(strict bool) error {
	count := make(map[string]int)
	for _, f := range d.findings {
		count[f.Level]++
	}
	fmt.Fprintf(d.stderr, "%s, %s\n", many(count[levelError], "error"), many(count[levelWarning], "warning"))
	switch {
	case d.code != 0:
		return exit(d.code, nil)
	case count[levelError] > 0 || strict && count[levelWarning] > 0:
		return exit(exitFailed, nil)
	}
	return nil
}

func (d *doctor) look(cmd *cobra.Command) error {
	config := d.config(cmd)
	d.traces()
	conn, err := d.reach(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // it was only read from
	for _, look := range []func(context.Context, *connection, *configs.Config) error{
		d.redis, d.rights, d.format, d.definitions, d.signing, d.workers, d.queues, d.runs, d.history, d.messages,
	} {
		if err := look(cmd.Context(), conn, config); err != nil {
			return conn.away(err)
		}
	}
	return nil
}

// traces checks what exports spans, if the environment asks for it. It sends nothing.
func (d *doctor) traces() {
	on, err := otlp.On(os.Getenv)
	if err == nil && on {
		err = otlp.Check(os.Getenv)
	}
	switch {
	case err != nil:
		for _, line := range strings.Split(err.Error(), "\n") {
			d.say(levelError, "traces", "", "a worker with this environment does not start: %s", line)
		}
	case on:
		d.say(levelOK, "traces", "", "spans go to %s", cmp.Or(otlp.Endpoint(os.Getenv), "http://localhost:4318"))
	}
}

// messages looks for messages that could not be sent.
func (d *doctor) messages(ctx context.Context, conn *connection, config *configs.Config) error {
	var names []string
	if config != nil {
		for _, target := range config.Targets {
			names = append(names, target.Name)
		}
	}
	mail, err := conn.ledger.Mail(ctx, names)
	if err != nil {
		return err
	}
	now, err := conn.now(ctx)
	if err != nil {
		return err
	}
	for _, m := range mail {
		if m.Error != "" {
			d.say(levelWarning, "messages", m.Target, "%s, the last request failed %s ago: %s; lockstep notify test %s shows whether it works now",
				plural(m.Waiting, "1 message waits", "%d messages wait"), admin.Age(now.Sub(m.Failed)), m.Error, m.Target)
		} else if config != nil && m.Waiting > 0 && !slices.Contains(names, m.Target) {
			d.say(levelWarning, "messages", m.Target, "%s, and this config does not declare the target: declare it under notify, or the audit gets them after a day",
				plural(m.Waiting, "1 message waits", "%d messages wait"))
		}
		if m.Unsent > 0 {
			d.say(levelWarning, "messages", m.Target, "%s could not be sent within a day: lockstep audit lists them", many(m.Unsent, "message"))
		}
		if m.Dropped > 0 {
			d.say(levelWarning, "messages", m.Target, "%s were dropped, since too many were waiting", many(m.Dropped, "message"))
		}
	}
	return nil
}

// format compares the format of the stored data with those that this build and the live sessions
// know. It returns an error for a format that this build does not know, so nothing else is read.
func (d *doctor) format(ctx context.Context, conn *connection, _ *configs.Config) error {
	stored := conn.ledger.Space()
	if err := stored.Check(ctx); err != nil {
		if errors.Is(err, locks.ErrFormat) {
			d.say(levelError, "format", "", "%v", err)
		}
		return err
	}
	formats, err := stored.Formats(ctx)
	if err != nil {
		return err
	}
	sessions, _, err := stored.Sessions(ctx)
	if err != nil {
		return err
	}
	before := len(d.findings)
	for _, s := range sessions {
		switch {
		case s.Format > space.Format:
			d.say(levelWarning, "format", string(s.ID), "its build writes format %d, and this one knows format %d: when the last session of an "+
				"older build has ended, this build is refused; update it", s.Format, space.Format)
		case s.Format < formats.Written: // no build that checks the format opens such a session
			d.say(levelError, "format", string(s.ID), "its build writes format %d and does not check that format %d is written: it ends runs as "+
				"failed that it cannot read; stop it", s.Format, formats.Written)
		case s.Format < space.Format:
			d.say(levelWarning, "format", string(s.ID), "its build writes format %d: format %d is written only when it has ended", s.Format, space.Format)
		}
	}
	switch {
	case formats.Written == 0:
		d.say(levelOK, "format", "", "the stored data has no format number, which means format 1; the next worker numbers it")
	case len(d.findings) == before:
		d.say(levelOK, "format", "", "format %d is written, and every session and this build know it", formats.Written)
	}
	return nil
}

// config checks the config files and returns the config, or nil if there is none or it has errors.
func (d *doctor) config(cmd *cobra.Command) *configs.Config {
	paths := configs.Find(d.configPaths, nil)
	if len(paths) == 0 {
		d.say(levelOK, "config", "", "no config file here: settings come from the environment and from flags")
	}
	options := d.loadOptions(cmd, paths)
	options.Handlers, options.Rights = d.handlers.Names(), true
	config, err := configs.Load(options)
	var problems configs.Problems
	switch {
	case errors.As(err, &problems):
		d.code = exitConfig
		d.say(levelError, "config", "", "%s, %s; lockstep check lists them", many(problems.Errors(), "error"), many(problems.Warnings(), "warning"))
		return nil
	case err != nil:
		d.say(levelError, "config", "", "%v", err)
		return nil
	}
	others := 0
	for _, p := range config.Warnings.List {
		switch p.Code {
		case configs.CodeRights:
			d.say(levelWarning, "rights", p.File, "%s; %s", p.Message, p.Hint)
		case configs.CodeTLS:
			d.say(levelWarning, "tls", p.File, "%s; %s", p.Message, p.Hint)
		default:
			others++
		}
	}
	switch {
	case len(paths) == 0:
		return nil
	case others > 0:
		d.say(levelWarning, "config", "", "%s; lockstep check lists them", many(others, "warning"))
	default:
		d.say(levelOK, "config", "", "%s in %s", many(len(config.Jobs), "job"), many(config.Warnings.Files, "file"))
	}
	signIn, err := newSignIn(config.Settings.Admin, slog.New(slog.DiscardHandler))
	if err != nil { // the file may belong to another host
		d.say(levelWarning, "config", "", "a worker would not start on this host: %v", err)
		return config
	}
	weak, unroled := signIn.Warnings()
	for _, warning := range []string{weak, unroled} {
		if warning != "" {
			d.say(levelWarning, "config", "", "%s", warning)
		}
	}
	return config
}

// redis checks the server, and compares this host's clock with the server's.
func (d *doctor) redis(ctx context.Context, conn *connection, _ *configs.Config) error {
	before := time.Now()
	now, err := conn.now(ctx)
	if err != nil {
		return err
	}
	took := time.Since(before)
	d.say(levelOK, "redis", "", "%s answers in %s", conn.settings.Redis.SafeURL(), took.Round(10*time.Microsecond))
	findings, err := locks.CheckServer(ctx, conn.rdb, conn.settings.Locks.Lease)
	if err != nil {
		return err
	}
	levels := map[locks.Level]string{locks.Fine: levelOK, locks.Warning: levelWarning, locks.Fatal: levelError}
	for _, f := range findings {
		d.say(levels[f.Level], f.Topic, f.Node, "%s", f.Text)
	}
	// The server read its clock somewhere between the request and the reply.
	if off := before.Add(took / 2).Sub(now); off.Abs() > clocksApart+took {
		d.say(levelWarning, "clock", "", "this host's clock is %s Redis'; ticks and locks do not depend on it", apart(off))
	} else {
		d.say(levelOK, "clock", "", "this host's clock is within %s of Redis'", clocksApart)
	}
	return nil
}

// definitions looks for registered definitions with keys that this build does not know.
func (d *doctor) definitions(ctx context.Context, conn *connection, _ *configs.Config) error {
	records, err := conn.ledger.Jobs(ctx)
	if err != nil {
		return err
	}
	for _, record := range records {
		if err := record.Job.CheckKeys(); err != nil {
			d.say(levelWarning, "definitions", record.Job.Name, "%v; update the workers of this build, or start one of the newer build", err)
		}
	}
	return nil
}

// signing checks which keys sign definitions: here, in the registered ones, and in the workers.
func (d *doctor) signing(ctx context.Context, conn *connection, _ *configs.Config) error {
	keys, err := conn.settings.Redis.SignKeys()
	if err != nil { // connect has accepted the key; this user just has no right to read it
		d.say(levelNote, "signing", "", "this user has no right to read the key that signs definitions: %v", err)
		return nil
	}
	workers, err := conn.reader.Workers(ctx)
	if err != nil {
		return err
	}
	if keys == nil {
		d.say(levelNote, "signing", "", "definitions are not signed: %s; set redis.sign_key_file in every worker and command line", unsignedMeans)
	} else {
		d.say(levelOK, "signing", "", "definitions are signed here with key %s; %s accepted", keys.ID(), many(keys.Count(), "key"))
	}
	for _, w := range workers {
		id := string(w.ID)
		switch {
		case w.State == admin.Gone:
		case keys != nil && w.Key == "":
			d.say(levelError, "signing", id, "it has no key, so it runs what any client writes to Redis, and workers with a key refuse those runs; "+
				"set redis.sign_key_file there")
		case keys == nil && w.Key != "":
			d.say(levelWarning, "signing", id, "it signs definitions with key %s, and this config has no key: an enqueue of a job that no worker "+
				"has registered is refused there", w.Key)
		case keys != nil && w.Key != keys.ID():
			d.say(levelWarning, "signing", id, "it signs definitions with key %s: fine while keys are replaced", w.Key)
		}
		if w.Refused > 0 && w.State != admin.Gone {
			d.say(levelError, "signing", id, "it has refused %s: the definitions are unsigned, or signed with another key; "+
				"its log names the last one, and run ls lists them with their reasons", many(w.Refused, "run"))
		}
	}
	if keys == nil {
		return nil
	}
	records, err := conn.ledger.Jobs(ctx)
	if err != nil {
		return err
	}
	var wrong []string
	for _, record := range records {
		if conn.ledger.Trust(record.Job) != nil {
			wrong = append(wrong, record.Job.Name)
		}
	}
	if n := len(wrong); n > 0 {
		d.say(levelWarning, "signing", "", "the registered definition of %s is not signed with a key of this config (%s): a worker "+
			"that has the key signs it when it starts", many(n, "job"), strings.Join(wrong[:min(n, 5)], " "))
	}
	return nil
}

// runs looks for runs that no worker can do, and for parked ones.
func (d *doctor) runs(ctx context.Context, conn *connection, _ *configs.Config) error {
	unable, err := conn.reader.Unable(ctx)
	if err != nil {
		return err
	}
	for _, u := range unable {
		d.say(levelError, "runs", u.Queue, "%s: %s; start a worker that has it, or cancel them: lockstep run cancel", many(u.Runs, "due run"), u.Why)
	}
	lists, err := conn.ledger.Staged(ctx)
	if err != nil {
		return err
	}
	if len(lists) > 0 && lists[0].For >= time.Minute { // else a worker may be about to record them
		d.say(levelError, "runs", "", "%s of requests, all or none, still to be recorded, the oldest one for %s: their senders have died; start a worker, or look "+
			"into the log of one for the reason", many(len(lists), "list"), lists[0].For.Round(time.Second))
	}
	parked, all, err := conn.reader.Parked(ctx)
	if err != nil || len(parked) == 0 {
		return err
	}
	names := make([]string, 0, 5)
	for _, id := range parked[:min(len(parked), cap(names))] {
		names = append(names, string(id))
	}
	atLeast := ""
	if !all {
		atLeast = "at least "
	}
	d.say(levelError, "runs", "", "%s%s parked, since Redis refuses the history of the job (%s): lockstep run show has the reason; "+
		"once the cause is removed, a worker moves them there within a minute", atLeast, many(len(parked), "failed run"), strings.Join(names, " "))
	return nil
}

// history checks how much memory finished runs take.
func (d *doctor) history(ctx context.Context, conn *connection, _ *configs.Config) error {
	size, err := conn.ledger.HistorySize(ctx, func(ctx context.Context) error { return ctx.Err() })
	if err != nil {
		return err
	}
	limits := conn.settings.Limits
	level, what := levelOK, fmt.Sprintf("%s of %s take about %s of Redis' memory; limits.history allows %s", many(size.Runs, "finished run"),
		many(size.Jobs, "job"), memory(size.Bytes), memory(limits.HistoryBytes()))
	if most := limits.HistoryBytes(); size.Bytes > most {
		level = levelWarning
		what += ": the worker on duty removes the oldest ones within a few minutes; if it does not, it has a higher limit"
	}
	d.say(level, "history", "", "%s", what)
	return nil
}

// memory formats a number of bytes in the largest unit that makes it at least 1.
func memory(bytes int64) string {
	unit, units := float64(bytes), []string{"KiB", "MiB", "GiB"}
	name := "B"
	for len(units) > 0 && unit >= 1024 {
		unit, name, units = unit/1024, units[0], units[1:]
	}
	return strconv.FormatFloat(math.Round(unit*10)/10, 'f', -1, 64) + " " + name
}

// apart describes how far one clock is from another.
func apart(off time.Duration) string {
	if off < 0 {
		return admin.Age(-off) + " behind"
	}
	return admin.Age(off) + " ahead of"
}

// workers checks which workers exist, their clocks and their configs.
func (d *doctor) workers(ctx context.Context, conn *connection, config *configs.Config) error {
	workers, err := conn.reader.Workers(ctx)
	if err != nil {
		return err
	}
	workers = slices.DeleteFunc(workers, func(w admin.Worker) bool { return w.State == admin.Gone })
	if len(workers) == 0 {
		d.say(levelWarning, "workers", "", "no worker is up: nothing runs")
		return nil
	}
	slots, apartBy := 0, false
	digests, versions := make(map[string][]string), make(map[string][]string)
	for _, w := range workers {
		id := string(w.ID)
		slots += w.Slots
		digests[w.Config] = append(digests[w.Config], id)
		versions[w.Version] = append(versions[w.Version], id)
		if off := time.Duration(w.Clock); off.Abs() > clocksApart {
			apartBy = true
			d.say(levelWarning, "clock", id, "its clock is %s Redis'; ticks and locks do not depend on it, but its log does", apart(off))
		}
		if w.Drifted > 0 {
			d.say(levelWarning, "drift", id, "%s of its config: another definition is the active one", many(w.Drifted, "job"))
		}
	}
	d.say(levelOK, "workers", "", "%s, %s", many(len(workers), "worker"), many(slots, "slot"))
	if !apartBy {
		d.say(levelOK, "clock", "", "all their clocks are within %s of Redis'", clocksApart)
	}
	d.differences("configs", digests)
	d.differences("versions", versions)
	if config != nil && len(digests) == 1 && digests[digest(config.Jobs)] == nil {
		d.say(levelWarning, "drift", "", "the workers have another config than this one; lockstep config diff shows the differences")
	}
	return nil
}

// differences reports which workers have which value, unless all have the same.
func (d *doctor) differences(what string, who map[string][]string) {
	if len(who) == 1 {
		d.say(levelOK, "drift", "", "the workers have the same %s", strings.TrimSuffix(what, "s"))
		return
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(who)) {
		parts = append(parts, fmt.Sprintf("%s: %s", name, strings.Join(who[name], " ")))
	}
	d.say(levelWarning, "drift", "", "the workers have %d %s (%s): fine while a new one is rolled out", len(who), what, strings.Join(parts, "; "))
}

// queues checks which namespace owns each queue, and whether a worker serves it.
func (d *doctor) queues(ctx context.Context, conn *connection, config *configs.Config) error {
	infos, err := conn.queue.Queues(ctx)
	if err != nil {
		return err
	}
	workers, err := conn.reader.Workers(ctx)
	if err != nil {
		return err
	}
	served, disputed := make(map[string]bool), make(map[string]bool)
	for _, w := range workers {
		for name := range w.Queues {
			served[name] = served[name] || w.State != admin.Gone
		}
		for name := range w.Disputed {
			disputed[name] = disputed[name] || w.State != admin.Gone
		}
	}
	// used counts the config's jobs by queue; meant has the queues that a worker with this config
	// would serve.
	used, meant := make(map[string]int), make(map[string]bool)
	if config != nil {
		for _, job := range config.Jobs {
			used[job.Queue]++
		}
		for name := range conn.settings.Worker.Queues {
			meant[name] = true
		}
	}
	before, own := len(d.findings), conn.settings.Redis.Namespace
	for _, info := range infos {
		ours := info.Namespace == own
		switch {
		case info.Namespace != "" && !ours && disputed[info.Name]:
			d.say(levelError, "queue", info.Name, "it was given to namespace %q while workers of %q serve it: they keep serving it, and the next one "+
				"does not start; find out which client wrote to lockstep:queues; to undo it: redis-cli HSET lockstep:queues %s %s",
				info.Namespace, own, info.Name, own)
		case info.Namespace != "" && !ours && (meant[info.Name] || used[info.Name] > 0):
			d.say(levelError, "queue", info.Name, "it belongs to namespace %q, and this config, of %q, names it: a worker with it does not start; "+
				"choose another name", info.Namespace, own)
		case ours && info.Paused:
			d.say(levelWarning, "queue", info.Name, "it is paused: lockstep queue resume %s", info.Name)
		}
		if ours && info.Archived > 0 {
			d.say(levelWarning, "queue", info.Name, "%s of plain asynq clients archived: asynq stopped retrying them", many(int(info.Archived), "task"))
		}
		if ours && used[info.Name] == 0 && !served[info.Name] && info.Pending > 0 {
			d.say(levelError, "queue", info.Name, "%s for a worker, and no worker serves it", plural(int(info.Pending), "1 delivery waits", "%d deliveries wait"))
		}
	}
	if len(workers) > 0 {
		for _, name := range slices.Sorted(maps.Keys(used)) {
			if !served[name] {
				d.say(levelError, "queue", name, "%s, and no worker serves it", plural(used[name], "1 job uses it", "%d jobs use it"))
			}
		}
	}
	if len(d.findings) == before {
		d.say(levelOK, "queues", "", "%s of namespace %s", many(len(slices.DeleteFunc(infos, func(i queue.Info) bool { return i.Namespace != own })), "queue"), own)
	}
	return nil
}

// unsignedMeans is the consequence of having no key.
const unsignedMeans = "any client that can write to this Redis can run any command on every worker, and read the files that workers can read"
