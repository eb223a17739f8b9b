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

// Config is what files, environment and flags say, checked and with all defaults filled in.
type Config struct {
	Settings Settings

	// Jobs are sorted by name. Their texts hold ${...} as written: see [Expand].
	Jobs []*jobs.Job

	// HTTPTimeouts are the names of http jobs that have the default timeout of one hour, since nothing sets one.
	HTTPTimeouts []string

	// Permits are by name.
	Permits map[string]Permit

	// Files are those that were read, in this order.
	Files []string

	// Origins tells where the value of a setting comes from, by its key ("redis.url"). A key that is not in it has
	// its default.
	Origins map[string]Origin

	// Warnings are what is doubtful; there are no errors in it.
	Warnings Problems

	declared map[string]Origin // of permits
	origins  *loader           // for JobValues; nil unless they were asked for
}

// Options says where a config comes from.
type Options struct {
	// Paths are files, and folders whose *.yaml and *.yml are read. Without any, there are only the defaults, the
	// environment and the flags. See [Find].
	Paths []string

	// Environ is the environment as "NAME=value"; nil is the process's own.
	Environ []string

	// Flags are those of the command line, and FlagKeys says which setting each is for: "concurrency" ->
	// "worker.concurrency". Only flags that were given count. A map is given as a=6,b=1, either as text or by a flag
	// of the type stringToInt.
	Flags    *pflag.FlagSet
	FlagKeys map[string]string

	// SettingsOnly leaves the jobs and their defaults unread, so that who only looks at a running system is not
	// stopped by a job that is wrong, or by a secret that is not on this machine. Config.Jobs is then empty.
	SettingsOnly bool

	// Permits reads the permits with SettingsOnly, too.
	Permits bool

	// Rights warns of files that other users of this host can read or write although they should not: see CodeRights.
	// It is for people who look at a config on the host that uses it.
	Rights bool

	// Handlers are the names of the Go handlers of this binary. A job that names another one is a warning, unless there
	// are none at all: then they are in somebody's own binary.
	Handlers []string

	// Origins keeps what [Config.JobValues] needs: the nodes of all files, which are many times as large as the jobs.
	Origins bool

	// Inputs, if not nil, takes in what Load looks at, whether or not the config is right: see [Watch].
	Inputs *Inputs

	// Now is the instant from which warnings look ahead, for clock changes and rare dates. Default: the time.
	Now time.Time
}

// Find returns the paths that are meant when named are those of the flag -c: these, else $LOCKSTEP_CONFIG (several are
// parted like those of $PATH), else ./lockstep.yaml if it exists, else none. environ is as in [Options].
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

// Load reads a config. The error is a [Problems] with all errors and warnings of all files, environment and flags, if
// there is at least one error among them. Load reads what it is told to and changes nothing.
func Load(o Options) (*Config, error) {
	l := &loader{
		settingsOnly: o.SettingsOnly,
		withPermits:  o.Permits,
		rights:       o.Rights,
		env:          variables(o.Environ),
		known:        make(map[string]bool),
		jobs:         make(map[string]*jobFile),
		permits:      make(map[string]*permitFile),
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
	c := &Config{Settings: settings, Origins: origins, Permits: l.buildPermits(), Jobs: l.buildJobs(), declared: make(map[string]Origin)}
	c.HTTPTimeouts = l.httpTimeouts
	for name, f := range l.permits {
		c.declared[name] = f.src.origin(f.key)
	}
	// With a flag or a variable this worker serves some queues, and others the rest.
	if origin, set := origins["worker.queues"]; (!set || origin.File != "") && !l.queuesWrong {
		l.unknownQueues(c)
		l.largeArgs(c)
	}
	l.lintSettings(c)
	for _, path := range l.secrets.missing() {
		l.inputs.missing(path)
	}
	for _, s := range l.sources {
		c.Files = append(c.Files, s.path)
	}
	l.maskSecrets()
	found := Problems{List: l.sorted(c.Files), Files: len(c.Files), Jobs: len(l.jobs)}
	if found.Errors() > 0 {
		return nil, found
	}
	c.Warnings = found
	if o.Origins {
		c.origins = l
	}
	return c, nil
}

// loader is one pass over a config, or a part of one: see [loader.aside].
type loader struct {
	report
	flawed   bool // problems were found before this part began
	replacer replacer

	settingsOnly bool
	withPermits  bool // also with settingsOnly
	rights       bool // look at those of the files
	env          map[string]string

	sources []*source       // in the order they were read
	known   map[string]bool // identities of the files that were read, or could not be
	open    []openFile      // the files whose includes are being read, the outermost first

	queuesWrong bool // there are errors in worker.queues, so that it is not known which there are
	authWrong   bool // the same of admin

	jobs    map[string]*jobFile
	permits map[string]*permitFile
	secrets *secretCache

	schedules map[[2]string]*scheduleInfo // by cron text and time zone
	handlers  []string
	now       time.Time
	inputs    *Inputs

	httpTimeouts []string // jobs with httpTimeout by default
}

// aside returns a loader for a part of the work that is done while other parts are. It knows what has been read up to now
// and collects problems of its own, until [loader.take] brings them in.
func (l *loader) aside() *loader {
	part := *l
	part.report, part.flawed = report{}, l.flawed || len(l.list) > 0
	part.schedules = make(map[[2]string]*scheduleInfo)
	return &part
}

// take brings in what a part has found.
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

// secretCache has a file that many jobs name read once.
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

// found returns the files that were read, sorted.
func (c *secretCache) found() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var paths []string
	for path, s := range c.files {
		if s.err == nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// missing returns the files that could not be read, sorted.
func (c *secretCache) missing() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var paths []string
	for path, s := range c.files {
		if s.err != nil {
			paths = append(paths, path)
		}
	}
	slices.Sort(paths)
	return paths
}

// variables turns an environment into a map. Of a name that is there twice the last one counts.
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
