package configs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"lockstep/jobs"
)

// Config is the checked content of files, environment and flags, with all defaults filled in.
type Config struct {
	Settings Settings

	// Jobs are sorted by name. Their texts contain ${...} as written: see [Expand].
	Jobs []*jobs.Job

	// HTTPTimeouts are the names of http jobs with the default timeout of one hour, because no file
	// sets one.
	HTTPTimeouts []string

	// Permits are keyed by name.
	Permits map[string]Permit

	// Targets of messages are sorted by name.
	Targets []Target

	// Files are the files that were read, in that order.
	Files []string

	// Origins has the source of each setting's value, by key ("redis.url"). A key that is missing
	// here has its default.
	Origins map[string]Origin

	// Warnings has no errors.
	Warnings Problems

	written  map[string]Origin // of jobs
	declared map[string]Origin // of permits
	origins  *loader           // for JobValues; nil unless Options.Origins is set
}

// Options are the sources of a config.
type Options struct {
	// Paths are files, and folders with *.yaml and *.yml files. Without paths, the config
	// consists of the defaults, the environment and the flags. See [Find].
	Paths []string

	// Environ is the environment as "NAME=value". nil means that of the process.
	Environ []string

	// Flags are the flags of the command line. FlagKeys maps each flag to its setting:
	// "concurrency" -> "worker.concurrency". Only flags that were given count. A map is given as
	// a=6,b=1, either as text or by a flag of the type stringToInt.
	Flags    *pflag.FlagSet
	FlagKeys map[string]string

	// SettingsOnly skips the jobs and their defaults, so that a wrong job, or a secret that is
	// missing on this machine, does not stop a command that only inspects a running system.
	// Config.Jobs is then empty.
	SettingsOnly bool

	// Permits reads the permits even with SettingsOnly.
	Permits bool

	// Targets reads the targets of messages even with SettingsOnly.
	Targets bool

	// Partial makes Load return, together with the [Problems], the settings that have no error: for
	// a command that needs one of them whether or not the config is right. A setting with an error
	// has the value of the next source, or its default. The other fields of that Config are empty,
	// except for Files and Origins.
	Partial bool

	// Rights warns of files that other users of this host can read or write but should not: see
	// CodeRights. It is for checks on the host that uses the config.
	Rights bool

	// Handlers are the names of the Go handlers of this binary. A job that names another handler is
	// a warning. If Handlers is empty, no name is checked, because the handlers are in another
	// binary.
	Handlers []string

	// Origins keeps the data for [Config.JobValues]: the nodes of all files, which are many times
	// as large as the jobs.
	Origins bool

	// Inputs, if not nil, records what Load reads, even if the config is wrong: see [Watch].
	Inputs *Inputs

	// Now is the instant from which warnings look ahead for clock changes and rare dates. The
	// default is the current time.
	Now time.Time
}

// Find returns the paths of the config. named are the values of the flag -c. Without them Find
// returns the paths in $LOCKSTEP_CONFIG (separated like those of $PATH), then ./lockstep.yaml if it
// exists, then none. environ is as in [Options].
func Find(named, environ []string) []string {
	if len(named) > 0 {
		return named
	}
	if paths := filepath.SplitList(variables(environ)["LOCKSTEP_CONFIG"]); len(paths) > 0 {
		return paths
	}
	if _, err := os.Stat("lockstep.yaml"); err == nil {
		return []string{"lockstep.yaml"}
	}
	return nil
}

// Load loads a config. If there is at least one error, it returns a [Problems] with all errors and
// warnings of all files, environment and flags, and no config unless Options.Partial is set. Load
// only reads, and changes nothing.
func Load(o Options) (*Config, error) {
	l := &loader{
		settingsOnly: o.SettingsOnly,
		withPermits:  o.Permits,
		withTargets:  o.Targets,
		rights:       o.Rights,
		env:          variables(o.Environ),
		known:        make(map[string]bool),
		jobs:         make(map[string]*jobFile),
		permits:      make(map[string]*permitFile),
		targets:      make(map[string]*targetFile),
		secrets:      &secretCache{files: make(map[string]secret)},
		schedules:    make(map[[2]string]*scheduleInfo),
		handlers:     o.Handlers,
		inputs:       o.Inputs,
		now:          o.Now,
	}
	if l.now.IsZero() {
		l.now = time.Now()
	}
	l.replacer = replacer{lookup: l.variable, read: l.secrets.read}

	for _, path := range o.Paths {
		l.readPath(path, nil)
	}
	settings, origins, err := l.loadSettings(o)
	if err != nil {
		return nil, err
	}
	c := &Config{Settings: settings, Origins: origins, Permits: l.buildPermits(), Targets: l.buildTargets(), Jobs: l.buildJobs(), declared: make(map[string]Origin)}
	c.HTTPTimeouts = l.workTimeouts
	c.written = make(map[string]Origin, len(c.Jobs))
	for _, job := range c.Jobs {
		f := l.jobs[job.Name]
		c.written[job.Name] = f.src.origin(f.key)
	}
	for name, f := range l.permits {
		c.declared[name] = f.src.origin(f.key)
	}
	// With a flag or a variable, this worker may serve some queues while others serve the rest.
	if origin, set := origins["worker.queues"]; (!set || origin.File != "") && !l.queuesWrong {
		l.unknownQueues(c)
		l.largeArgs(c)
	}
	l.lintSettings(c)
	for _, path := range l.secrets.paths(false) {
		l.inputs.missing(path)
	}
	for _, s := range l.sources {
		c.Files = append(c.Files, s.path)
	}
	l.maskSecrets()
	found := Problems{List: l.sorted(c.Files), Files: len(c.Files), Jobs: len(l.jobs)}
	switch {
	case found.Errors() == 0:
	case o.Partial:
		return &Config{Settings: settings, Origins: origins, Files: c.Files}, found
	default:
		return nil, found
	}
	c.Warnings = found
	if o.Origins {
		c.origins = l
	}
	return c, nil
}

// loader is one pass over a config, or over a part of one: see [loader.aside].
type loader struct {
	report
	// Problems were found before this part began.
	flawed   bool
	replacer replacer

	settingsOnly bool
	withPermits  bool // even with settingsOnly
	withTargets  bool // the same
	rights       bool // check the permissions of the files
	env          map[string]string

	sources []*source // in the order they were read
	// Identities of the files that were read or could not be read.
	known map[string]bool
	// The files for which includes are being read, outermost first.
	open []openFile

	// worker.queues has errors, so the queues are not known.
	queuesWrong bool
	authWrong   bool // the same for admin

	jobs    map[string]*jobFile
	permits map[string]*permitFile
	targets map[string]*targetFile
	secrets *secretCache

	schedules map[[2]string]*scheduleInfo // by cron text and time zone
	handlers  []string
	now       time.Time
	inputs    *Inputs

	workTimeouts []string // jobs with the default timeout of their kind of work
}

// aside returns a loader for a part of the work that runs in parallel with other parts. It knows
// what was read so far and collects its own problems, until [loader.take] merges them.
func (l *loader) aside() *loader {
	part := *l
	part.report, part.flawed = report{}, l.flawed || len(l.list) > 0
	part.schedules = make(map[[2]string]*scheduleInfo)
	return &part
}

// take merges the results of a part.
func (l *loader) take(part *loader) {
	for _, f := range part.list {
		l.add(f.Problem, f.subject)
	}
	if m := part.more; m != (dropped{}) {
		l.more.add(m.errors, m.warnings, m.origin)
	}
	l.queuesWrong = l.queuesWrong || part.queuesWrong
	l.authWrong = l.authWrong || part.authWrong
}

func (l *loader) variable(name string) (string, bool) {
	value, set := l.env[name]
	return value, set
}

// secretCache reads a file once that many jobs name.
type secretCache struct {
	mu    sync.Mutex // guards files
	files map[string]secret
}

type secret struct {
	value string
	err   error
}

func (c *secretCache) read(path string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, ok := c.files[path]
	if !ok {
		s.value, s.err = readSecret(path)
		c.files[path] = s
	}
	return s.value, s.err
}

// paths returns the files that were read, or those that could not be read, sorted.
func (c *secretCache) paths(read bool) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var paths []string
	for path, s := range c.files {
		if read == (s.err == nil) {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// variables turns an environment into a map. The last entry of a name counts.
func variables(environ []string) map[string]string {
	if environ == nil {
		environ = os.Environ()
	}
	m := make(map[string]string, len(environ))
	for _, pair := range environ {
		if name, value, ok := strings.Cut(pair, "="); ok {
			m[name] = value
		}
	}
	return m
}
