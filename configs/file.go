package configs

import (
	"encoding/json"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
)

// The types of this file are what a config file may say: each field is a key. A nil pointer, map or slice is a key that
// was not written.
//
// A key is added here and nowhere else: the decoder, the defaults, the JSON Schema (lockstep.schema.json) and the
// reference (README.md) are made of these types. The comment above a field is the key's description in both; go generate
// writes them anew. The tags say the rest:
//
//	yaml      the key; ",inline" for a struct whose keys stand among those of the struct around it
//	enum      the words that are possible
//	min, max  bounds of a number, a duration, or each value of a map
//	check     a function of checks (checks.go), for the value or each element of a list
//	keys      the same, for the keys of a map
//	shape     a pattern of shapes (generate_test.go), where it is not that of the check: for what other keys have a say in
//	size      the least number of elements of a list or map
//	default   the value of a key that was not written, as environment variables would have it
//	unset     in words, what holds when a key without a default is not written
//	example   a value for the reference, as YAML
//	scalar    a list that may also be written as its only element
//	secret    the value is never quoted, printed or shown
//
// A string is replaced (see the package doc) when it is loaded, a text when the job runs, and prose never.

//go:generate go test -run ^TestGeneratedFilesAreCurrent$ . -update

// text is a value of a job that keeps its ${...} until the job runs.
type text string

// prose is a value in which ${...} means nothing.
type prose string

// file is one config file.
type file struct {
	settingsFile `yaml:",inline"`

	// More files, folders and patterns, relative to this file. A pattern that matches nothing is a warning, a name that
	// does not exist an error.
	Include []string `yaml:"include" example:"[conf.d/*.yaml]"`

	// What holds for every job of every file that does not say otherwise.
	Defaults *policies `yaml:"defaults"`

	// What only so many may use at a time, over all workers, by name. Jobs take of it by lock.permits. It is declared in
	// one place.
	Permits map[string]*permitFile `yaml:"permits" keys:"permit" unset:"none" example:"{partner-api: {limit: 3}}"`

	// The jobs, by name: a-z, 0-9 and inner "-", up to 63 characters. A job is defined in one place.
	Jobs map[string]*jobFile `yaml:"jobs"`
}

// settingsFile is the part of a file that becomes [Settings], with the same keys.
type settingsFile struct {
	// Where the lock space, the ledger and the queues are.
	Redis *redisFile `yaml:"redis"`

	// How much one worker does at a time, and of what.
	Worker *workerFile `yaml:"worker"`

	// How large things may be.
	Limits *limitsFile `yaml:"limits"`

	// How a worker keeps what it holds.
	Locks *locksFile `yaml:"locks"`

	// Where the API and the pages are.
	Admin *adminFile `yaml:"admin"`

	// What is logged and how.
	Log *logFile `yaml:"log"`
}

type redisFile struct {
	// redis://[user:password@]host:port/db, rediss:// (TLS), redis-sentinel://host:port,host:port/db?master=NAME,
	// redis-cluster://host:port,host:port or unix:///path?db=N; other parameters are errors. The word embedded is a Redis
	// inside this one process, gone when it ends: for a first try. $REDIS_URL goes before a file.
	URL *string `yaml:"url" check:"redis-url" secret:"true" default:"redis://127.0.0.1:6379/0" example:"${REDIS_URL:-redis://127.0.0.1:6379/0}"`

	// A file with the password, so that it stands in no config. It is read for each connection.
	PasswordFile *string `yaml:"password_file" unset:"none" example:"/run/secrets/redis_password"`

	// A file with the key that signs definitions, at least 32 bytes; a newline at its end does not count. Workers with a key
	// refuse definitions that were not signed with it, so that a client which can write to Redis cannot have a command of its
	// own run. A list of two files replaces the key: the first one signs, both verify. It is read at the start.
	SignKeyFile []string `yaml:"sign_key_file" scalar:"true" size:"1" unset:"none: any client that can write to Redis can have any command run" example:"/run/secrets/lockstep_sign"`

	// The key itself, in place of sign_key_file: for the environment variable LOCKSTEP_REDIS__SIGN_KEY, not for a file.
	SignKey *string `yaml:"sign_key" secret:"true" unset:"none" example:"${SIGN_KEY:-made-by-openssl-rand-hex-32-in-your-environment}"`

	// Parts this installation from others on the same Redis: one lock space and one ledger. A queue belongs to one
	// namespace. 1 to 64 letters, digits, - and _.
	Namespace *string `yaml:"namespace" check:"namespace" default:"lockstep" example:"shop"`
}

type workerFile struct {
	// Begins the worker's id. 1 to 64 letters, digits, -, _ and dots.
	Name *string `yaml:"name" check:"worker-name" unset:"the host's name" example:"web-1"`

	// Slots: how many attempts run at a time.
	Concurrency *int `yaml:"concurrency" min:"1" max:"100000" default:"8" example:"16"`

	// How long running attempts may go on after SIGTERM. Give Kubernetes a grace period of 10s more.
	DrainTimeout *time.Duration `yaml:"drain_timeout" min:"0s" default:"50s" example:"2m"`

	// The queues that this worker serves, with their weights: how often each is asked first.
	Queues map[string]int `yaml:"queues" keys:"queue" min:"1" max:"100" size:"1" default:"default=1" example:"{critical: 6, default: 3, low: 1}"` // asynq shuffles as many names as the weights add up to

	// Which variables of the worker's environment commands inherit: names, or the beginning of names with a * behind it.
	// They get no other variable but those of their run and of the job's env. REDIS_URL and settings
	// (LOCKSTEP_REDIS__URL) are refused here and match no *: a job that needs Redis gets it by its own env.
	Env []string `yaml:"env" check:"inherited" default:"PATH,HOME,USER,LOGNAME,SHELL,LANG,LANGUAGE,LC_*,TZ,TMPDIR,HOSTNAME,SSL_CERT_FILE,SSL_CERT_DIR" example:"[PATH, HOME, LANG, TZ, \"AWS_*\"]"`
}

type limitsFile struct {
	// The largest args of a run, as JSON without blanks: B, KiB or MiB, up to 16MiB. Larger ones are refused on entry. A
	// command gets those that do not fit into an environment variable (on Linux 128KiB) in the file LOCKSTEP_ARGS_FILE.
	Args *string `yaml:"args" check:"size" default:"128KiB" example:"64KiB"`

	// How much of Redis' memory all finished runs of the namespace may take, in MiB or GiB; about, since it is estimated from
	// samples. When they take more, those that ended first are removed, of whatever job. Each job's history has its own
	// bounds beside this one. The worker on duty decides by its own setting.
	History *string `yaml:"history" check:"space" default:"2GiB" example:"512MiB"`
}

type locksFile struct {
	// After this the work of a dead host moves on; the watchdog renews every third of it.
	Lease *time.Duration `yaml:"lease" min:"2s" max:"10m" default:"15s" example:"40s"`

	// How long later requests may pass a bundle that waits. 0s: not at all.
	ReserveAfter *time.Duration `yaml:"reserve_after" min:"0s" default:"1s" example:"0s"`

	// How long nothing is granted after Redis has lost data, while workers say again what they hold. auto is the longest
	// lease in use and, on Sentinel and Cluster, the time for which there may be two masters. A duration is at least the
	// lease; every new space waits for it, too, so that nobody who never knew an emptied one is faster than those who did.
	Grace *string `yaml:"grace" check:"grace" default:"auto" example:"30s"`
}

type adminFile struct {
	// The address, host:port; 0.0.0.0 and no host at all are all addresses of the machine. The default moves on to the
	// next free port when it is taken; an address that was set does not.
	Listen *string `yaml:"listen" check:"address" default:"127.0.0.1:9620" example:"127.0.0.1:9700"`

	// Names under which browsers and scripts reach the API and the pages, without a port. IP addresses and localhost need
	// not be listed. In modes none and proxy, requests under other names are refused, so that no web page can make a name of
	// its own point here and read along; in modes basic and token only if this list is set.
	Hosts []string `yaml:"hosts" check:"host" size:"1" unset:"none" example:"[lockstep.example.org]"`

	// Who may see and do more than /livez, /readyz and /metrics tell, which are for everybody.
	Auth *authFile `yaml:"auth"`
}

// authFile has files in place of secrets, so that none stands in a config. They are read for each request.
type authFile struct {
	// How users sign in. none: not at all; an address that is not loopback then serves /livez, /readyz and /metrics only,
	// and requests that a reverse proxy passes on are refused. basic: with user and password, as browsers ask for them.
	// token: by Authorization: Bearer, for scripts. proxy: a reverse proxy has signed users in and names them in a header.
	Mode *string `yaml:"mode" enum:"none,basic,token,proxy" default:"none" example:"basic"`

	// The name that signs in with password_file, or whom the audit names for the one of token_file.
	User *string `yaml:"user" check:"user" default:"admin" example:"ops"`

	// basic: a file with the password of user.
	PasswordFile *string `yaml:"password_file" unset:"none" example:"/run/secrets/lockstep_password"`

	// basic, in place of password_file: a file with a line for each user, as htpasswd -B -C 12 writes it.
	UsersFile *string `yaml:"users_file" unset:"none" example:"/etc/lockstep/users"`

	// token: a file with the token.
	TokenFile *string `yaml:"token_file" unset:"none" example:"/run/secrets/lockstep_token"`

	// proxy: the header in which the proxy names the user. The proxy has to remove one that its clients send.
	Header *string `yaml:"header" check:"header" default:"X-Forwarded-User" example:"Remote-User"`

	// proxy: the addresses and networks that the proxy's requests come from; others are not let in.
	Proxies []string `yaml:"proxies" check:"network" size:"1" default:"127.0.0.0/8,::1/128" example:"[10.1.0.0/16]"`
}

type logFile struct {
	// The least severe lines that are logged.
	Level *string `yaml:"level" enum:"debug,info,warn,error" default:"info" example:"debug"`

	// auto is text on a terminal, else json.
	Format *string `yaml:"format" enum:"auto,text,json" default:"auto" example:"json"`
}

type permitFile struct {
	// How many permits there are. It has to be there.
	Limit *int `yaml:"limit" min:"1" max:"1000000" example:"3"`

	// Raise it to change the limit: the highest version that a worker brings counts, so that one with an older config
	// cannot set the limit back.
	Version *int `yaml:"version" min:"0" max:"9007199254740991" default:"0" example:"1"`

	// What it is for, in your words.
	Description *prose `yaml:"description" unset:"none" example:"The partner allows three parallel calls"`

	src  *source
	key  *yaml.Node // the name, where it is declared
	node *yaml.Node // its keys and values

	broken      bool // it is no map of keys, which was reported
	likelyLimit bool // a misspelled key is probably its limit
}

// policies are the keys that a job and the defaults share.
type policies struct {
	// Whose wall clock the schedule means, by its IANA name.
	Timezone *string `yaml:"timezone" check:"timezone" unset:"UTC" example:"Europe/Berlin"`

	// Where runs wait for a worker that serves it.
	Queue *string `yaml:"queue" check:"queue" default:"default" example:"critical"`

	// Bounds each attempt; 0s is no bound, against one of the defaults or the 1h of an http job.
	Timeout *time.Duration `yaml:"timeout" min:"0s" unset:"1h for http, else no bound" example:"15m"`

	// How failed attempts are repeated.
	Retry *retryFile `yaml:"retry"`

	// What happens to a tick that comes while an earlier one's run is not finished: it is skipped, or waits, or runs beside
	// it (allow), or takes its place: a run that has begun is asked to stop, and the new one waits for that.
	Overlap *jobs.Overlap `yaml:"overlap" enum:"skip,queue,allow,replace" default:"skip" example:"queue"`

	// How many ticks may wait, for overlap: queue; more are skipped.
	MaxQueued *int `yaml:"max_queued" min:"1" default:"10" example:"3"`

	// What happens to ticks that were decided more than a minute late because nobody was there: none of them runs, the
	// last one, or all (at most 100).
	OnMissed *jobs.OnMissed `yaml:"on_missed" enum:"skip,last,all" default:"last" example:"skip"`

	// What happens to a run whose worker died or lost its lease: another one runs it again, or it is lost, for a person to
	// decide.
	OnCrash *jobs.OnCrash `yaml:"on_crash" enum:"rerun,abandon" default:"rerun" example:"abandon"`

	// The crash that reaches it ends the run as failed. A crash is the death of the worker's process; a lost lease does not
	// count.
	MaxCrashes *int `yaml:"max_crashes" min:"1" default:"3" example:"1"`

	// What is kept of finished runs.
	History *historyFile `yaml:"history"`

	// A tick's run that has not started so long after its tick is missed; 0s is no bound, against one of the defaults.
	StartDeadline *time.Duration `yaml:"start_deadline" min:"0s" unset:"no bound" example:"3h"`

	// Runs become due up to so long after their tick, each at its own time, which is the same on every replica.
	Jitter *time.Duration `yaml:"jitter" min:"0s" default:"0s" example:"20s"`

	// Without a success for so long the job shows as late; 0s is never, against one of the defaults.
	MaxSilence *time.Duration `yaml:"max_silence" min:"0s" unset:"never late" example:"26h"`
}

type retryFile struct {
	// Retries after the first attempt; 0 means a single attempt. Crashes do not count.
	Max *int `yaml:"max" min:"0" default:"3" example:"5"`

	// How the pause before a retry grows.
	Backoff *jobs.Backoff `yaml:"backoff" enum:"fixed,linear,exponential" default:"exponential" example:"fixed"`

	// The first pause.
	Initial *time.Duration `yaml:"initial" min:"0s" default:"5s" example:"1m"`

	// The longest pause; 0s: no limit.
	MaxDelay *time.Duration `yaml:"max_delay" min:"0s" default:"5m" example:"10m"`
}

type historyFile struct {
	// At most so many of them.
	Runs *int `yaml:"runs" min:"1" default:"1000" example:"200"`

	// None older than this.
	For *time.Duration `yaml:"for" min:"1s" default:"168h" example:"24h"`
}

type jobFile struct {
	// What it is for, in your words.
	Description *prose `yaml:"description" unset:"none" example:"Dump the shop database"`

	// When it runs: minute, hour, day of month, month and weekday, with seconds as a sixth field in front if need be; or
	// @hourly, @daily, @weekly, @monthly, @yearly. A job with a schedule runs once at a time over all workers. Without
	// schedule and every it runs when it is enqueued.
	Schedule *string `yaml:"schedule" shape:"cron" unset:"none" example:"\"0 2 * * *\""`

	// The same by the clock, counted from 1970-01-01T00:00Z: 15m is :00, :15, :30 and :45 on every replica. In whole
	// seconds.
	Every *time.Duration `yaml:"every" min:"1s" unset:"none" example:"15m"`

	// A program with its arguments: a list, not a text for a shell. For a shell write [sh, -c, "a | b"]. A job has
	// exactly one of command, http and handler.
	Command []text `yaml:"command" size:"1" unset:"none" example:"[pg_dump, --file=/backup/shop.dump, shop]"`

	// A request to send; the args are its JSON body.
	HTTP *httpFile `yaml:"http"`

	// A Go handler, registered in your own binary.
	Handler *string `yaml:"handler" check:"handler" unset:"none" example:"reports.daily"`

	// The arguments of runs that bring none: any JSON value.
	Args json.RawMessage `yaml:"args" unset:"none" example:"{format: pdf}"`

	// The environment of a command, beside what worker.env lets it inherit. ${...} is replaced on the worker, so no secret
	// reaches Redis.
	Env map[string]text `yaml:"env" keys:"env" unset:"none" example:"{PGPASSFILE: /run/secrets/pgpass}"`

	// What a run holds while it runs, all or none of it.
	Lock *lockFile `yaml:"lock"`

	// How many runs of the job may work side by side, over all workers. Runs of its ticks do so only with overlap: queue or
	// allow: with skip and replace, one tick runs at a time.
	Concurrency *int `yaml:"concurrency" min:"1" max:"1000000" unset:"one run of a tick, any number of others" example:"3"`

	// Its ticks are skipped. lockstep job pause does that without a deploy.
	Paused *bool `yaml:"paused" default:"false" example:"true"`

	policies `yaml:",inline"`

	name string
	src  *source
	key  *yaml.Node // the job's name, where it is defined
	node *yaml.Node // its keys and values; nil for a job without any

	broken     bool // it is no map of keys, which was reported
	likelyWork bool // a misspelled key is probably what it does
}

type httpFile struct {
	// The method.
	Method *string `yaml:"method" enum:"GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS" default:"POST" example:"PUT"`

	// Where to. It has to be there.
	URL *text `yaml:"url" check:"http-url" example:"https://shop.internal/cache/warm"`

	// Headers, beside those that every run sends.
	Headers map[string]text `yaml:"headers" keys:"header" unset:"none" example:"{Authorization: \"Bearer ${file:/run/secrets/token}\"}"`
}

type lockFile struct {
	// Names that are held alone. They may read the args: {a.b}, {list[0]}; a list gives one name per element: {list[*]}.
	Exclusive []string `yaml:"exclusive" check:"lock-key" unset:"none" example:"[\"bill:{bill_ids[*]}\", \"account:{account.id}\"]"`

	// Names that runs may hold side by side, while nobody holds them alone. They are written the same way.
	Shared []string `yaml:"shared" check:"lock-key" unset:"none" example:"[\"rates:{month}\"]"`

	// How many permits a run takes, of those that are declared at the top, under permits.
	Permits map[string]int `yaml:"permits" keys:"permit" min:"1" max:"1000000" unset:"none" example:"{partner-api: 1}"`

	// How long a run waits for all of them, not counting pauses of its queue; 0s is without limit.
	Wait *time.Duration `yaml:"wait" min:"0s" unset:"no limit" example:"2m"`

	// What becomes of a run that has waited so long: it waits again, at the end of the line, or is skipped, or has failed.
	OnBusy *jobs.OnBusy `yaml:"on_busy" enum:"requeue,skip,fail" default:"requeue" example:"skip"`

	// An attempt that holds them for longer has failed, and gives them up. 0s is no bound.
	MaxHold *time.Duration `yaml:"max_hold" min:"0s" unset:"no bound" example:"30m"`

	// They stay taken so long from the start of an attempt, even when it ends before.
	MinHold *time.Duration `yaml:"min_hold" min:"0s" default:"0s" example:"10s"`

	// After a crash nobody gets them for so long.
	CrashDelay *time.Duration `yaml:"crash_delay" min:"0s" default:"0s" example:"1m"`
}
