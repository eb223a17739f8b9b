package configs

import (
	"fmt"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// builtin returns the defaults of a job that neither the job nor the files' defaults override:
// those of the tags, and zero values for keys without a default. Each call makes new values,
// because they are overlaid in place. Timeout is nil, because its default depends on the work.
func builtin() policies {
	var p policies
	fillDefaults(reflect.ValueOf(&p).Elem())
	p.Timeout = nil
	return p
}

// timeout returns the timeout of a job. If its kind of work has a timeout, then only the job itself
// or the defaults can remove it, with 0s.
func timeout(p policies, job *jobs.Job) time.Duration {
	if p.Timeout != nil {
		return *p.Timeout
	}
	if kind := job.Kind(); kind != nil {
		return kind.Timeout
	}
	return 0
}

func fillDefaults(v reflect.Value) {
	for _, f := range fieldsOf(v.Type()).list {
		to := reflect.New(valueType(f.typ))
		switch {
		case to.Elem().Kind() == reflect.Struct:
			fillDefaults(to.Elem())
		case f.rules.initial != "":
			to.Elem().Set(f.defaultValue())
		}
		v.FieldByIndex(f.index).Set(to)
	}
}

// defaultOf returns the default of a key of a file type, as text.
func defaultOf[T any](key string) string {
	return fieldsOf(reflect.TypeFor[T]()).byName[key].rules.initial
}

// valueOr returns the value of a key, or otherwise if it was not written.
func valueOr[T any](written *T, otherwise T) T {
	if written == nil {
		return otherwise
	}
	return *written
}

// overlay sets the keys of over on a copy of base. base remains unchanged.
func overlay(base, over policies) policies {
	overlayStruct(reflect.ValueOf(&base).Elem(), reflect.ValueOf(&over).Elem())
	return base // a copy, because it was passed by value
}

func overlayStruct(laid, over reflect.Value) {
	for i := range laid.NumField() {
		lower, upper := laid.Field(i), over.Field(i)
		switch {
		case upper.IsNil():
		case upper.Type().Elem().Kind() == reflect.Struct && !lower.IsNil():
			merged := reflect.New(upper.Type().Elem())
			merged.Elem().Set(lower.Elem())
			overlayStruct(merged.Elem(), upper.Elem())
			lower.Set(merged)
		default:
			lower.Set(upper)
		}
	}
}

// JobOrigin returns the place where a job is defined, or the zero Origin.
func (c *Config) JobOrigin(name string) Origin { return c.written[name] }

// register adds the jobs of a file. If two have the same name, the first is kept.
func (l *loader) register(s *source) {
	for _, name := range slices.Sorted(maps.Keys(s.file.Jobs)) {
		job := s.file.Jobs[name]
		if first, ok := l.jobs[name]; ok {
			l.duplicateJob(name, place{first.src, first.key}, place{s, job.key})
			continue
		}
		l.jobs[name] = job
	}
}

func (l *loader) duplicateJob(name string, first, second place) {
	l.errorAt(second.src, second.node, CodeDuplicateJob,
		fmt.Sprintf("job %q is already defined at %s", name, first.src.origin(first.node)), "")
}

// buildJobs makes the jobs of all files, and reports mistakes that involve several keys.
func (l *loader) buildJobs() []*jobs.Job {
	base := builtin()
	for _, s := range l.sources {
		if s.file.Defaults == nil {
			continue
		}
		base = overlay(base, *s.file.Defaults)
		_, node := find(s.root, "defaults")
		if retry := s.file.Defaults.Retry; retry != nil && retry.pauses() {
			l.checkRetry(base, place{s, node}, " of defaults")
		}
		if targets := s.file.Defaults.Notify; targets != nil {
			_, at := find(node, "notify")
			l.knownTargets(*targets, place{s, at}, "defaults")
		}
	}
	files := make([]*jobFile, 0, len(l.jobs))
	for _, f := range l.jobs {
		if !f.broken {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b *jobFile) int { return strings.Compare(a.name, b.name) })

	// Use all cores, because the jobs are independent.
	const few = 100 // too few to be worth a goroutine
	list := make([]*jobs.Job, len(files))
	share := max(few, (len(files)+runtime.GOMAXPROCS(0)-1)/runtime.GOMAXPROCS(0))
	var parts []*loader
	var building sync.WaitGroup
	for from := 0; from < len(files); from += share {
		part := l.aside()
		parts = append(parts, part)
		building.Go(func() {
			for i := from; i < min(from+share, len(files)); i++ {
				list[i] = part.buildJob(files[i], base)
			}
		})
	}
	building.Wait()
	for _, part := range parts {
		// in the order of names, regardless of which part was done first
		l.take(part)
	}
	for i, f := range files {
		if kind := list[i].Kind(); base.Timeout == nil && f.policies.Timeout == nil && kind != nil && kind.Timeout > 0 {
			l.workTimeouts = append(l.workTimeouts, f.name)
		}
	}
	return list
}

// buildJob makes one job. Values that could not be decoded were already reported. Rules about keys
// only check whether a key is present, so that one mistake does not cause two problems.
func (l *loader) buildJob(f *jobFile, base policies) *jobs.Job {
	if err := jobs.ValidName(f.name); err != nil {
		reason := strings.TrimPrefix(err.Error(), fmt.Sprintf("job name %q: ", f.name))
		hint := ""
		if likely := likelyName(f.name); jobs.ValidName(likely) == nil && 2*len(likely) > len([]rune(f.name)) {
			hint = didYouMean(likely)
		}
		l.errorAt(f.src, f.key, CodeName, fmt.Sprintf("bad job name %s: %s", quote(f.name), reason), hint)
	}
	p := overlay(base, f.policies)
	job := &jobs.Job{
		Name:        f.name,
		Description: string(valueOr(f.Description, "")),
		Timezone:    *p.Timezone,
		Env:         plainMap(f.Env),
		Args:        f.Args,
		SecretArgs:  f.SecretArgs,
		Queue:       *p.Queue,
		Retry:       jobs.Retry{Max: *p.Retry.Max, Backoff: *p.Retry.Backoff, Initial: *p.Retry.Initial, MaxDelay: *p.Retry.MaxDelay},
		Concurrency: valueOr(f.Concurrency, 0),
		Overlap:     *p.Overlap,
		MaxQueued:   *p.MaxQueued,
		OnMissed:    *p.OnMissed,
		OnCrash:     *p.OnCrash,
		MaxCrashes:  *p.MaxCrashes,
		History:     jobs.History{Runs: *p.History.Runs, For: *p.History.For},
		Output:      p.Output.output(),

		StartDeadline: *p.StartDeadline,
		Jitter:        *p.Jitter,
		MaxSilence:    *p.MaxSilence,
		Paused:        valueOr(f.Paused, false),
		Notify:        l.notify(*p.Notify),
		Ping:          string(valueOr(f.Ping, "")),
	}
	if targets := f.policies.Notify; targets != nil {
		_, at := f.find("notify")
		l.knownTargets(*targets, place{f.src, at}, fmt.Sprintf("job %q", f.name))
	}
	f.setWork(job)
	job.Timeout = timeout(p, job)
	l.trigger(f, job)
	l.work(f)
	if retry := f.policies.Retry; retry != nil && retry.pauses() {
		l.checkRetry(p, place{f.src, f.node}, fmt.Sprintf(" of job %q", f.name))
	}
	l.checkJitter(f, job)
	if f.Lock != nil {
		job.Lock = f.Lock.lock()
		l.lockKeys(f, job)
		l.lockPermits(f, job)
	}
	l.unused(f, job)
	l.lintJob(f, job)
	return job
}

// lock returns the written lock with its defaults.
func (f *lockFile) lock() jobs.Lock {
	lock := jobs.Lock{
		Exclusive:  f.Exclusive,
		Shared:     f.Shared,
		Permits:    f.Permits,
		MaxHold:    valueOr(f.MaxHold, 0),
		MinHold:    valueOr(f.MinHold, 0),
		CrashDelay: valueOr(f.CrashDelay, 0),
	}
	if wait := valueOr(f.Wait, 0); wait > 0 {
		lock.Wait, lock.OnBusy = wait, valueOr(f.OnBusy, jobs.OnBusy(defaultOf[lockFile]("on_busy")))
	}
	return lock
}

// output returns how much output is kept: nothing is set for the default, so that workers of builds
// from before this key run the job, too.
func (f *outputFile) output() jobs.Output {
	n, err := tailSizes.parse(*f.Keep)
	if err != nil || n == jobs.DefaultTail { // a wrong size was reported when it was decoded
		return jobs.Output{}
	}
	return jobs.Output{Keep: int(n)}
}

// likelyName turns a name into a valid name for a job.
func likelyName(name string) string {
	name = strings.ReplaceAll(plainKey(strings.TrimSpace(name)), "_", "-")
	name = strings.Map(func(r rune) rune {
		switch {
		case r == '.' || r == '/' || r == ':' || r == '-':
			return '-'
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, name)
	return strings.Trim(name, "-")
}

func plainMap(m map[string]text) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for name, value := range m {
		out[name] = string(value)
	}
	return out
}

// has reports whether a key of the job was written with a value, right or wrong.
func (f *jobFile) has(keys ...string) bool {
	_, value := f.find(keys...)
	return value != nil
}

// find returns the key and value at a path of keys, or nils.
func (f *jobFile) find(keys ...string) (key, value *yaml.Node) {
	return written(f.node, keys...)
}

// trigger sets when the job runs.
func (l *loader) trigger(f *jobFile, job *jobs.Job) {
	report := func(key, kind, want string, err error) {
		_, node := f.find(key)
		d := decoder{loader: l, src: f.src}
		fault := cronFault(err, CodeSchedule, kind, want)
		list, _ := jobs.Pieces(node.Value)
		replaced := slices.ContainsFunc(list, isReference)
		d.fault(node, node.Value, fmt.Sprintf("in job %q", f.name), fault, replaced, false)
	}
	if f.Schedule != nil {
		job.Schedule = *f.Schedule
		if info := l.schedule(job.Schedule, job.Timezone); info.err != nil {
			report("schedule", "schedule", "valid cron text", info.err)
		}
	}
	if f.Every != nil {
		job.Every = *f.Every
		if _, err := cronspec.Every(job.Every); err != nil {
			report("every", "interval", "at least 1s, in whole seconds", err)
		}
	}
	if f.Schedule != nil || f.Every != nil {
		schedule, _ := f.find("schedule")
		every, _ := f.find("every")
		if schedule != nil && every != nil {
			second := every
			if schedule.Line > every.Line || schedule.Line == every.Line && schedule.Column > every.Column {
				second = schedule
			}
			l.errorAt(f.src, second, CodeTriggers, fmt.Sprintf("job %q has both schedule and every", f.name), "keep one of them")
		}
	}
}

// work checks that the job has exactly one kind of work.
func (l *loader) work(f *jobFile) {
	// Most jobs are correct, and their keys need no search in the file.
	n, complete := 0, true
	for _, kind := range workKeys() {
		if !reflect.ValueOf(f).Elem().FieldByIndex(kind.index).IsNil() {
			n++
			complete = complete && len(f.missing(kind)) == 0
		}
	}
	if n != 1 || !complete {
		l.workProblems(f)
	}
	if len(f.Command) > 0 && f.Command[0] == "" {
		if _, list := f.find("command"); list.Content[0].Tag == "!!str" && deref(list.Content[0]).Value == "" {
			l.errorAt(f.src, list.Content[0], CodeEmpty, fmt.Sprintf("command of job %q names no program", f.name), "")
		}
	}
}

// workKeys returns the keys of a job that give it work.
var workKeys = sync.OnceValue(func() []*field {
	var list []*field
	for _, name := range jobs.KindNames() {
		list = append(list, fieldsOf(jobFileType.Elem()).byName[name])
	}
	return list
})

// missing returns the keys that a kind of work requires and the job has no value for.
func (f *jobFile) missing(kind *field) []*field {
	work := reflect.ValueOf(f).Elem().FieldByIndex(kind.index)
	if valueType(kind.typ).Kind() != reflect.Struct || work.IsNil() {
		return nil
	}
	var missing []*field
	for _, key := range fieldsOf(valueType(kind.typ)).list {
		if key.rules.required != "" && work.Elem().FieldByIndex(key.index).IsNil() {
			missing = append(missing, key)
		}
	}
	return missing
}

func (l *loader) workProblems(f *jobFile) {
	var kinds []string
	var last *yaml.Node
	for _, kind := range jobs.KindNames() {
		key, _ := f.find(kind)
		if key == nil {
			continue
		}
		kinds = append(kinds, kind)
		if last == nil || key.Line > last.Line || key.Line == last.Line && key.Column > last.Column {
			last = key
		}
	}
	switch len(kinds) {
	case 0:
		if slices.ContainsFunc(f.likely, func(key string) bool { return slices.Contains(jobs.KindNames(), key) }) {
			return
		}
		l.errorAt(f.src, f.key, CodeNoWork, fmt.Sprintf("job %q has nothing to do", f.name),
			"give it one of "+strings.Join(jobs.KindNames(), ", "))
	case 1:
	default:
		l.errorAt(f.src, last, CodeTwoKinds, fmt.Sprintf("job %q has %s", f.name, enumerate(kinds)), "keep one of them")
	}
	for _, kind := range workKeys() {
		for _, wanted := range f.missing(kind) {
			if key, _ := f.find(kind.name); !f.has(kind.name, wanted.name) {
				l.errorAt(f.src, key, CodeMissingKey, fmt.Sprintf("%s of job %q has no %s", kind.name, f.name, wanted.name), wanted.rules.required)
			}
		}
	}
}

func enumerate(words []string) string {
	if len(words) == 2 {
		return "both " + words[0] + " and " + words[1]
	}
	return strings.Join(words[:len(words)-1], ", ") + " and " + words[len(words)-1]
}

// pauses reports whether any key about the pauses between attempts was written.
func (r *retryFile) pauses() bool { return r.Backoff != nil || r.Initial != nil || r.MaxDelay != nil }

// checkRetry compares the pauses between attempts. at is the map with the key retry, and of is its
// name.
func (l *loader) checkRetry(p policies, at place, of string) {
	r := p.Retry
	// A fixed pause has no limit, and a limit of 0 means none.
	if *r.Backoff == jobs.BackoffFixed || *r.MaxDelay == 0 || *r.Initial <= *r.MaxDelay {
		return
	}
	var node *yaml.Node
	for _, key := range []string{"backoff", "max_delay", "initial"} {
		if _, value := find(at.node, "retry", key); value != nil {
			node = value
		}
	}
	l.errorAt(at.src, node, CodeRetry, fmt.Sprintf("retry.initial%s is %s, longer than retry.max_delay, which is %s",
		of, cronspec.FormatInterval(*r.Initial), cronspec.FormatInterval(*r.MaxDelay)), "set both")
}

// checkJitter checks that jitter is less than the time between ticks and less than the start
// deadline.
func (l *loader) checkJitter(f *jobFile, job *jobs.Job) {
	if job.Jitter == 0 || !job.Scheduled() {
		return
	}
	report := func(than, hint string) {
		at, _ := f.find("jitter")
		if at == nil {
			at = f.key
			if s, _, node := l.ofDefaults("jitter"); node != nil && hint == "" {
				hint = fmt.Sprintf("the defaults set it, at %s: give this job its own", s.origin(node))
			}
		}
		l.errorAt(f.src, at, CodeJitter, fmt.Sprintf("jitter of job %q is %s, %s", f.name, cronspec.FormatInterval(job.Jitter), than), hint)
	}
	if job.StartDeadline > 0 && job.Jitter >= job.StartDeadline {
		report("not shorter than start_deadline, which is "+cronspec.FormatInterval(job.StartDeadline), "some runs would never start")
		return
	}
	var trigger *cronspec.Schedule
	var err error
	if job.Every > 0 {
		trigger, err = cronspec.Every(job.Every)
	} else if zone, zoneErr := cronspec.LoadZone(job.Timezone); zoneErr == nil {
		trigger, err = cronspec.Parse(job.Schedule, zone)
	}
	if trigger == nil || err != nil {
		return // reported when it was decoded
	}
	if gap := trigger.ShortestGap(); job.Jitter >= gap {
		report("not shorter than the shortest time between two of its ticks, which is "+cronspec.FormatInterval(gap), "")
	}
}

// lockKeys checks that a job with a trigger has the args that its lock keys read. For an enqueued
// job the args are known only later. It also checks that no name is requested in two modes.
func (l *loader) lockKeys(f *jobFile, job *jobs.Job) {
	alone := make(map[string]bool)
	for _, keys := range []struct {
		name string
		list []string
	}{{"exclusive", job.Lock.Exclusive}, {"shared", job.Lock.Shared}} {
		for i, template := range keys.list {
			key, err := jobs.ParseKey(template)
			if err != nil || template == "" {
				continue // reported when it was decoded
			}
			names, err := key.Expand(job.Args)
			report := func(code, reason, hint string) {
				_, list := f.find("lock", keys.name)
				shown := template
				if at := deref(list.Content[i]); at.Value != template {
					shown = at.Value // as written
				}
				l.errorAt(f.src, list.Content[i], code, fmt.Sprintf("bad lock key %s in lock.%s of job %q: %s",
					quote(shown), keys.name, f.name, reason), hint)
			}
			if secret := slices.IndexFunc(key.Fields(), job.IsSecretArg); secret >= 0 {
				report(CodeLockKey, fmt.Sprintf("it reads the secret arg %s, and every user sees the names of locks", quote(key.Fields()[secret])),
					"read another arg, such as an ID")
				continue
			}
			if err != nil && job.Scheduled() {
				reason := strings.TrimPrefix(err.Error(), fmt.Sprintf("lock key %.100q: ", template))
				report(CodeLockKey, reason, "a job with a schedule runs with its own args: add the values that the key reads")
			}
			if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "${") }) {
				report(CodeLockKey, "it reads a value of the args that contains ${...}, which is replaced only when the job runs",
					"a lock has the same name on every host: write the value out")
			}
			for _, name := range names {
				switch {
				case l.permits[name] != nil:
					report(CodePermits, fmt.Sprintf("%s is declared as permits at %s", quote(name), l.permits[name].src.origin(l.permits[name].key)),
						"take some of them with lock.permits, or give the lock another name")
				case keys.name == "shared" && alone[name]:
					report(CodeLockKey, fmt.Sprintf("lock.exclusive has %s too", quote(name)), "keep one of them")
				default:
					alone[name] = alone[name] || keys.name == "exclusive"
					continue
				}
				break // for a list of names, one problem is enough
			}
		}
	}
}

// unused warns of keys that have no effect in combination with the other keys of their job.
func (l *loader) unused(f *jobFile, job *jobs.Job) {
	const noTicks = "the job has neither schedule nor every"
	ticks := job.Scheduled() || f.has("schedule") || f.has("every")
	for _, rule := range []struct {
		key    string
		unused bool
		why    string
	}{
		{"env", f.Env != nil && f.Command == nil && !f.has("command"), "only a command has an environment"},
		{"timezone", f.policies.Timezone != nil && f.Schedule == nil && !f.has("schedule"), "only a schedule has a time zone"},
		{"max_queued", f.policies.MaxQueued != nil && job.Overlap != jobs.OverlapQueue, "it only applies to overlap: queue"},
		{"max_crashes", f.policies.MaxCrashes != nil && job.OnCrash == jobs.CrashAbandon, "with on_crash: abandon the first crash is the last"},
		{"overlap", f.policies.Overlap != nil && !ticks, noTicks},
		{"on_missed", f.policies.OnMissed != nil && !ticks, noTicks},
		{"start_deadline", f.policies.StartDeadline != nil && !ticks, noTicks},
		{"jitter", f.policies.Jitter != nil && !ticks, noTicks},
		{"paused", f.Paused != nil && !ticks, noTicks},
	} {
		if rule.unused {
			at, _ := f.find(rule.key)
			l.warnAt(f.src, at, CodeUnused, fmt.Sprintf("%s of job %q has no effect: %s", rule.key, f.name, rule.why), "remove it")
		}
	}
	if f.Lock != nil && f.Lock.OnBusy != nil && job.Lock.Wait == 0 && !f.has("lock", "wait") {
		at, _ := f.find("lock", "on_busy")
		l.warnAt(f.src, at, CodeUnused, fmt.Sprintf("lock.on_busy of job %q has no effect: it only applies when lock.wait is over", f.name), "add lock.wait")
	}
}

// largeArgs refuses args that exceed the limit for runs.
func (l *loader) largeArgs(c *Config) {
	for _, job := range c.Jobs {
		if err := jobs.CheckArgs(len(job.Args), c.Settings.Limits.ArgsBytes()); err != nil {
			f := l.jobs[job.Name]
			_, node := f.find("args")
			l.errorAt(f.src, node, CodeRange, err.Error(), "or raise limits.args")
		}
	}
}

// unknownQueues warns of jobs that no worker of this config would run.
func (l *loader) unknownQueues(c *Config) {
	served := c.Settings.Worker.Queues
	names := slices.Sorted(maps.Keys(served))
	for _, job := range c.Jobs {
		if _, ok := served[job.Queue]; ok {
			continue
		}
		f := l.jobs[job.Name]
		at, who := place{f.src, f.key}, fmt.Sprintf("job %q", job.Name)
		if _, node := f.find("queue"); node != nil {
			if f.policies.Queue == nil {
				continue // its queue was already reported
			}
			at.node = node
		} else {
			for _, s := range l.sources {
				if s.file.Defaults != nil && s.file.Defaults.Queue != nil {
					_, node := find(s.root, "defaults", "queue")
					at, who = place{s, node}, "the default of jobs"
				}
			}
		}
		hint := "add it there, unless other workers serve it"
		if likely := nearest(job.Queue, names); likely != "" {
			hint = didYouMean(likely)
		}
		l.warnAt(at.src, at.node, CodeUnknownQueue, fmt.Sprintf("%s goes to the queue %s, which worker.queues does not name",
			who, quote(job.Queue)), hint)
	}
}
