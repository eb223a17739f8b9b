package configs

import (
	"encoding/json"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
)

// The types of this file define the content of a config file: each field is a key. A nil pointer,
// map or slice is a key that was not written. [Settings] have no pointers: the decoder records
// which of them a file sets ([source].settings), and every other layer sets keys of the same types.
//
// Add a key here and nowhere else: the decoder, the defaults, the JSON Schema
// (lockstep.schema.json) and the reference (README.md) are derived from these types. The comment
// above a field is the key's description in both files, which go generate writes. The tags define
// the rest:
//
//	yaml      the key; ",inline" for a struct with keys of the surrounding struct
//	enum      the accepted words
//	min, max  limits of a number, a duration, or each value of a map
//	check     a function of checks (checks.go), for the value or each element of a list
//	keys      the same, for the keys of a map
//	shape     a pattern of shapes (generate_test.go), if it differs from that of the check because
//	          the value also depends on other keys
//	size      the minimum number of elements of a list or map
//	default   the value of a key that was not written, in the syntax of environment variables
//	unset     a description of the default of a key without a default tag
//	example   a value for the reference, as YAML
//	scalar    a list that may also be written as its only element
//	secret    the value is never quoted, printed or shown
//	required  what to write, for a key that the work of a job must have
//
// A string is replaced (see the package doc) when it is loaded, a text when the job runs, and prose
// never.

//go:generate go test -run ^TestGeneratedFilesAreCurrent$ . -update

// text is a value of a job that keeps its ${...} until the job runs.
type text string

// prose is a value in which ${...} has no meaning.
type prose string

// file is one config file.
type file struct {
	Settings `yaml:",inline"`

	// More files, folders and patterns, relative to this file. A pattern that matches nothing is a
	// warning. A name that does not exist is an error.
	Include []string `yaml:"include" example:"[conf.d/*.yaml]"`

	// Policies of every job in every file that does not set them itself.
	Defaults *policies `yaml:"defaults"`

	// Limits on how many runs may use something at a time, over all workers, by name. Jobs take
	// permits with lock.permits. Permits must be declared in one place.
	Permits map[string]*permitFile `yaml:"permits" keys:"permit" unset:"none" example:"{partner-api: {limit: 3}}"`

	// Where messages about jobs go, by name: a-z, 0-9 and inner "-", up to 63 characters. Jobs and
	// the defaults name their targets. A target must be declared in one place, and in every worker:
	// those that have it send to it.
	Notify map[string]*targetFile `yaml:"notify" keys:"target" unset:"none" example:"{hook: {webhook: https://ops.internal/lockstep}}"`

	// The jobs, by name: a-z, 0-9 and inner "-", up to 63 characters. A job must be defined in one
	// place.
	Jobs map[string]*jobFile `yaml:"jobs"`
}

// Settings configure one worker, or one call of the command line. The rest of a config is jobs.
type Settings struct {
	// The Redis that has the lock space, the ledger and the queues.
	Redis Redis `yaml:"redis"`

	// How much work one worker does at a time, and from which queues.
	Worker Worker `yaml:"worker"`

	// Limits on sizes.
	Limits Limits `yaml:"limits"`

	// How a worker keeps its locks.
	Locks Locks `yaml:"locks"`

	// The address of the API and the pages.
	Admin Admin `yaml:"admin"`

	// The metrics for Prometheus.
	Metrics Metrics `yaml:"metrics"`

	// The level and format of the log.
	Log Log `yaml:"log"`
}

// Redis locates the lock space, the ledger and the queues. It prints without its password.
// [Redis.Password] and [Redis.SignKeys] read its files.
type Redis struct {
	// redis://[user:password@]host:port/db,
	// redis-sentinel://[user:password@]host:port,host:port/db?master=NAME,
	// redis-cluster://[user:password@]host:port,host:port or unix:///path?db=N. With TLS: rediss://,
	// rediss-sentinel:// or rediss-cluster://. Other parameters are errors. The word embedded starts
	// a Redis inside this one process that ends with it, for a first try. $REDIS_URL takes
	// precedence over a file.
	URL string `yaml:"url" check:"redis-url" secret:"true" default:"redis://127.0.0.1:6379/0" example:"${REDIS_URL:-redis://127.0.0.1:6379/0}"`

	// A file with the password, so that no config contains it. It is read for each connection. The
	// user, if there is one, stays in url: redis://user@host:port/0.
	PasswordFile string `yaml:"password_file" unset:"none" example:"/run/secrets/redis_password"`

	// The certificates of rediss://, rediss-sentinel:// and rediss-cluster://.
	TLS TLS `yaml:"tls"`

	// The login at the sentinels, which is not that at the servers.
	Sentinel Sentinel `yaml:"sentinel"`

	// A file with the key that signs definitions, at least 32 bytes. A newline at its end is
	// ignored. Workers with a key refuse definitions that were not signed with it, so a client that
	// can write to Redis cannot make them run a command of its own. To replace the key, use a list
	// of two files: the first signs, and both verify. The files are read at the start.
	SignKeyFile []string `yaml:"sign_key_file" scalar:"true" size:"1" unset:"none: any client that can write to Redis can run any command" example:"/run/secrets/lockstep_sign"`

	// The key itself, instead of sign_key_file. Use it for the environment variable
	// LOCKSTEP_REDIS__SIGN_KEY, not in a file.
	SignKey string `yaml:"sign_key" secret:"true" unset:"none" example:"${SIGN_KEY:-made-by-openssl-rand-hex-32-in-your-environment}"`

	// Separates this installation from others on the same Redis: it has its own lock space and
	// ledger. A queue belongs to one namespace. 1 to 64 letters, digits, - and _.
	Namespace string `yaml:"namespace" check:"namespace" default:"lockstep" example:"shop"`
}

// TLS configures the certificates of connections to Redis. All certificates are verified; there is
// no setting that turns it off. [TLS.Config] reads the files.
type TLS struct {
	// A PEM file with the certificates of the authorities that sign the certificates of Redis and
	// of the sentinels. The files of redis.tls are read for each connection, so renewed
	// certificates need no restart.
	CAFile string `yaml:"ca_file" unset:"the authorities that this host trusts" example:"/etc/ssl/redis-ca.pem"`

	// A PEM file with the certificate of this client, followed by those of intermediate
	// authorities. Redis asks for one by default.
	CertFile string `yaml:"cert_file" unset:"none" example:"/etc/ssl/redis-client.pem"`

	// A PEM file with the private key of cert_file, without a passphrase.
	KeyFile string `yaml:"key_file" unset:"none" example:"/run/secrets/redis_client.key"`

	// The name that the certificates of all servers and sentinels must have. Set it where clients
	// reach Redis by an address that its certificate does not name, as in a Cluster whose nodes
	// announce IP addresses.
	ServerName string `yaml:"server_name" check:"server-name" unset:"the host of each address" example:"redis.internal"`
}

// Sentinel is the login at the sentinels. [Sentinel.Login] returns the password.
type Sentinel struct {
	// The user, if the sentinels have users. Without it, only the password is sent.
	User string `yaml:"user" unset:"none" example:"lockstep-sentinel"`

	// A file with the password. It is read at the start.
	PasswordFile string `yaml:"password_file" unset:"none: no login" example:"/run/secrets/sentinel_password"`

	// The password itself, instead of password_file. Use it for the environment variable
	// LOCKSTEP_REDIS__SENTINEL__PASSWORD, not in a file.
	Password string `yaml:"password" secret:"true" unset:"none" example:"${SENTINEL_PASSWORD:-from-your-environment}"`
}

// Worker configures how much work one replica does at a time, and from which queues.
// [Worker.Inherited] applies Env.
type Worker struct {
	// The prefix of the worker's ID. 1 to 64 letters, digits, -, _ and dots.
	Name string `yaml:"name" check:"worker-name" unset:"the host's name" example:"web-1"`

	// (The default is 8 on any number of cores, because most jobs wait for something else, and a
	// number that depends on the host would be a surprise.)

	// The number of slots: how many attempts run at a time.
	Concurrency int `yaml:"concurrency" min:"1" max:"100000" default:"8" example:"16"`

	// How long running attempts may continue after SIGTERM. Give Kubernetes a grace period of 10s
	// more.
	DrainTimeout time.Duration `yaml:"drain_timeout" min:"0s" default:"50s" example:"2m"`

	// (A weight is at most 100 because asynq shuffles as many names as the weights add up to.)

	// The queues that this worker serves, with their weights. A queue with a higher weight is tried
	// first more often.
	Queues map[string]int `yaml:"queues" keys:"queue" min:"1" max:"100" size:"1" default:"default=1" example:"{critical: 6, default: 3, low: 1}"`

	// (The default has the variables that programs need to find their files and to print in the
	// right language and time zone, and none that usually contains a secret.)

	// The variables of the worker's environment that commands inherit: names, or the beginning of
	// names followed by a *. Commands also get the variables of their run and of the job's env, but
	// no others. REDIS_URL and settings (LOCKSTEP_REDIS__URL) are refused here and match no *: a
	// job that needs Redis gets it from its own env.
	Env []string `yaml:"env" check:"inherited" default:"PATH,HOME,USER,LOGNAME,SHELL,LANG,LANGUAGE,LC_*,TZ,TMPDIR,HOSTNAME,SSL_CERT_FILE,SSL_CERT_DIR" example:"[PATH, HOME, LANG, TZ, \"AWS_*\"]"`
}

// Limits limits sizes, which are texts here: see [Limits.ArgsBytes] and [Limits.HistoryBytes].
type Limits struct {
	// The maximum size of a run's args, as JSON without blanks: B, KiB or MiB, up to 16MiB.
	// Requests with larger args are refused. A command gets args that do not fit into an
	// environment variable (on Linux 128KiB) in the file LOCKSTEP_ARGS_FILE.
	Args string `yaml:"args" check:"size" default:"128KiB" example:"64KiB"`

	// How much of Redis' memory all finished runs of the namespace may take, in MiB or GiB. The
	// value is approximate, because the size is estimated from samples. Above it, the runs that
	// ended first are removed, whatever their job. The limits of each job's history also apply. The
	// worker on duty uses its own setting.
	History string `yaml:"history" check:"space" default:"2GiB" example:"512MiB"`
}

// Locks configures how a worker keeps its holds. [Locks.GraceTime] returns Grace as a duration.
type Locks struct {
	// How long the locks of a dead host stay held before its work moves to another worker. The
	// watchdog renews every third of it.
	Lease time.Duration `yaml:"lease" min:"2s" max:"10m" default:"15s" example:"40s"`

	// (For "not at all", locks.Options has a negative value.)

	// How long later requests may pass a waiting bundle. 0s means not at all.
	ReserveAfter time.Duration `yaml:"reserve_after" min:"0s" default:"1s" example:"0s"`

	// How long nothing is granted after Redis has lost data, while workers re-assert their holds.
	// auto is the longest lease in use and, on Sentinel and Cluster, the time for which two masters
	// may exist. A duration must be at least the lease. Every new space waits for it too, so that a
	// worker that never knew an emptied space cannot be faster than the workers that did.
	Grace string `yaml:"grace" check:"grace" default:"auto" example:"30s"`
}

// Admin configures the address of the API and the pages.
type Admin struct {
	// The address, host:port. 0.0.0.0 and an empty host mean all addresses of the machine. If its
	// port is taken, the default moves to the next free port, but an explicit address does not.
	Listen string `yaml:"listen" check:"address" default:"127.0.0.1:9620" example:"127.0.0.1:9700"`

	// ListenSet means that Listen was set explicitly. It is not a key.
	ListenSet bool

	// The path under which a reverse proxy shows the pages and the API, such as /lockstep. All
	// links begin with it. The proxy may remove it from the requests that it passes on, or keep it.
	// The worker also serves everything without it: probes and the command line need not know it.
	BasePath string `yaml:"base_path" check:"base-path" default:"/" example:"/lockstep"`

	// Names that browsers and scripts use for the API and the pages, without a port. IP addresses
	// and localhost need not be listed. In modes none and proxy, requests for other names are
	// refused, so that a web page cannot point a name of its own here and read the replies. In
	// modes basic and token, they are refused only if this list is set.
	Hosts []string `yaml:"hosts" check:"host" size:"1" unset:"none" example:"[lockstep.example.org]"`

	// Makes every user a viewer, so that the pages and the API change nothing. The command line,
	// which works on Redis, is not affected.
	ReadOnly bool `yaml:"read_only" default:"false" example:"true"`

	// Authentication for everything except /livez, /readyz and /metrics, which are public. A user
	// has one of three roles. A viewer reads everything and changes nothing. An operator also
	// starts, pauses and resumes jobs, replays and skips their ticks, enqueues, cancels and retries
	// runs, pauses and resumes queues, and asks the holder of a lock to release it. An admin also
	// releases locks by force, drains workers, makes them load or check a config, and forgets jobs
	// and permits.
	Auth Auth `yaml:"auth"`

	// The history of locks: what Redis keeps of holds and waits that have ended. All workers and
	// other users of a namespace share it, with the settings of the worker that started last.
	Keep Keep `yaml:"keep"`
}

// Keep configures the history of holds and waits.
type Keep struct {
	// For how long. 0s turns the history off, and removes it.
	Holds time.Duration `yaml:"holds" min:"0s" max:"2160h" default:"48h" example:"168h"`

	// How many holds and waits at most. Each takes up to 150 bytes of Redis' memory, so 100,000
	// take 15 MiB. A long list of lock names counts several times. 0 turns the history off, and
	// removes it.
	Entries int `yaml:"entries" min:"0" max:"1000000" default:"100000" example:"20000"`
}

// Auth configures authentication for the API and the pages. It has files instead of secrets, so
// that no config contains one. They are read for each request. Load does not read them, because the
// machine that checks a config may not have them.
type Auth struct {
	// How users sign in. none: not at all; an address that is not loopback then serves only /livez,
	// /readyz and /metrics, and requests that a reverse proxy forwards are refused. basic: with
	// user and password, which browsers ask for. token: with Authorization: Bearer, for scripts.
	// proxy: a reverse proxy has authenticated the user and sends the name in a header.
	Mode string `yaml:"mode" enum:"none,basic,token,proxy" default:"none" example:"basic"`

	// The user that signs in with password_file, and the name in the audit for token_file. Both are
	// admins.
	User string `yaml:"user" check:"user" default:"admin" example:"ops"`

	// basic: a file with the password of user.
	PasswordFile string `yaml:"password_file" unset:"none" example:"/run/secrets/lockstep_password"`

	// basic, instead of password_file: a file with a line for each user, in the format of htpasswd
	// -B -C 12, and the role after another colon: viewer, operator or admin. A user without a role
	// is a viewer, but in a file without any role all users are admins. htpasswd removes the role
	// from the line that it changes.
	UsersFile string `yaml:"users_file" unset:"none" example:"/etc/lockstep/users"`

	// token: a file with the token of admins. At least one of the three files is required.
	TokenFile string `yaml:"token_file" unset:"none" example:"/run/secrets/lockstep_token"`

	// token: a file with the token of operators. The audit names them operator.
	OperatorTokenFile string `yaml:"operator_token_file" unset:"none" example:"/run/secrets/lockstep_operator_token"`

	// token: a file with the token of viewers.
	ViewerTokenFile string `yaml:"viewer_token_file" unset:"none" example:"/run/secrets/lockstep_viewer_token"`

	// proxy: the header with the name of the user. The proxy must remove this header from its
	// clients' requests.
	Header string `yaml:"header" check:"header" default:"X-Forwarded-User" example:"Remote-User"`

	// proxy: the addresses and networks of the proxy. Other clients are refused.
	Proxies []string `yaml:"proxies" check:"network" size:"1" default:"127.0.0.0/8,::1/128" example:"[10.1.0.0/16]"`

	// proxy: the header with the groups of the user, separated by commas or by |. The proxy must
	// remove this header from its clients' requests.
	GroupsHeader string `yaml:"groups_header" check:"header" unset:"none: every user is an admin" example:"X-Forwarded-Groups"`

	// proxy: the groups of admins. * is a group of every user. Of several roles, the highest one
	// counts. A user without a role is refused.
	Admins []string `yaml:"admins" check:"group" size:"1" unset:"none" example:"[sre]"`

	// proxy: the groups of operators.
	Operators []string `yaml:"operators" check:"group" size:"1" unset:"none" example:"[on-call, dev]"`

	// proxy: the groups of viewers.
	Viewers []string `yaml:"viewers" check:"group" size:"1" unset:"none" example:"[\"*\"]"`
}

// Metrics configures the metrics for Prometheus at /metrics.
type Metrics struct {
	// How many jobs have labels of their own: the first ones by name. The others are summed up
	// under _other. Each job takes about 25 series of the worker on duty, and 14 of each worker on
	// which it runs.
	Jobs int `yaml:"jobs" min:"0" max:"100000" default:"1000" example:"200"`
}

// Log configures the log.
type Log struct {
	// The minimum level of log lines.
	Level string `yaml:"level" enum:"debug,info,warn,error" default:"info" example:"debug"`

	// auto is text on a terminal, otherwise json.
	Format string `yaml:"format" enum:"auto,text,json" default:"auto" example:"json"`

	// Log each line that jobs print, too, with job, run and attempt: up to 4KiB of a line, and up
	// to 1000 lines of an attempt in a second after its first 5000. The values of ${...} are
	// redacted as in the stored output. An http job prints its response.
	Output bool `yaml:"output" default:"false" example:"true"`
}

// definition is the place where a file defines a job or permits.
type definition struct {
	name   string
	src    *source
	key    *yaml.Node // the name
	node   *yaml.Node // the keys and values; nil without any
	broken bool       // not a map of keys, which was reported
	likely []string   // the keys that were probably meant by unknown ones
}

func (d *definition) defined() *definition { return d }

type permitFile struct {
	// The number of permits. Required.
	Limit *int `yaml:"limit" min:"1" max:"1000000" example:"3"`

	// Increase it to change the limit: the highest version of any worker counts, so that a worker
	// with an older config cannot restore the old limit.
	Version *int `yaml:"version" min:"0" max:"9007199254740991" default:"0" example:"1"`

	// A description in your own words.
	Description *prose `yaml:"description" unset:"none" example:"The partner allows three parallel calls"`

	definition
}

type targetFile struct {
	// A service, as shoutrrr writes it: slack://, smtp://, telegram://, ntfy:// and so on. A target
	// has either url or webhook.
	URL *text `yaml:"url" check:"service-url" secret:"true" unset:"none" example:"slack://${file:/run/secrets/slack}"`

	// A URL that gets CloudEvents: one for each message, or one for several that come within ten
	// seconds. It must reply with 2xx within ten seconds.
	Webhook *text `yaml:"webhook" check:"http-url" secret:"true" unset:"none" example:"https://ops.internal/lockstep"`

	// A file with the key that signs the requests to a webhook. It is read for each request.
	SecretFile *string `yaml:"secret_file" unset:"none: they are not signed" example:"/run/secrets/hook"`

	// The events that it receives messages about. failed, lost, missed: a run has ended like that.
	// late: a job had no success for longer than its max_silence. recovered: the first success
	// after a message about one of these. config_refused: a worker has kept its old config, since
	// the new one has errors.
	On []jobs.Event `yaml:"on" enum:"failed,lost,missed,late,recovered,config_refused" scalar:"true" size:"1" unset:"failed, lost, missed, late, recovered" example:"[failed, lost, recovered]"`

	definition
}

// policies are the keys that a job and the defaults share.
type policies struct {
	// The time zone of the schedule, as an IANA name.
	Timezone *string `yaml:"timezone" check:"timezone" unset:"UTC" example:"Europe/Berlin"`

	// The queue in which runs wait for a worker that serves it.
	Queue *string `yaml:"queue" check:"queue" default:"default" example:"critical"`

	// The limit of each attempt. 0s means no limit and overrides the defaults and the 1h of an http
	// job.
	Timeout *time.Duration `yaml:"timeout" min:"0s" unset:"1h for http, else no limit" example:"15m"`

	// How failed attempts are retried.
	Retry *retryFile `yaml:"retry"`

	// What happens to a tick that becomes due before the job's previous run has finished: it is
	// skipped (skip), waits (queue), runs at the same time (allow), or replaces the previous run
	// (replace): a run that has begun is asked to stop, and the new one waits for that.
	Overlap *jobs.Overlap `yaml:"overlap" enum:"skip,queue,allow,replace" default:"skip" example:"queue"`

	// How many ticks may wait with overlap: queue. Further ticks are skipped.
	MaxQueued *int `yaml:"max_queued" min:"1" max:"1000" default:"10" example:"3"`

	// What happens to ticks that were decided more than a minute late because no worker was
	// running: none of them runs, the last one does, or all do (at most 100).
	OnMissed *jobs.OnMissed `yaml:"on_missed" enum:"skip,last,all" default:"last" example:"skip"`

	// What happens to a run after its worker died or lost its lease: another worker reruns it, or
	// it is marked lost and a person decides.
	OnCrash *jobs.OnCrash `yaml:"on_crash" enum:"rerun,abandon" default:"rerun" example:"abandon"`

	// A run that has crashed this often fails. A crash is the death of the worker's process; a lost
	// lease does not count.
	MaxCrashes *int `yaml:"max_crashes" min:"1" default:"3" example:"1"`

	// Which finished runs are kept.
	History *historyFile `yaml:"history"`

	// How much of the output of runs is kept.
	Output *outputFile `yaml:"output"`

	// A tick's run that has not started this long after its tick is missed. 0s means no limit and
	// overrides the defaults.
	StartDeadline *time.Duration `yaml:"start_deadline" min:"0s" unset:"no limit" example:"3h"`

	// Runs become due up to this long after their tick, each at its own time, which is the same on
	// every replica.
	Jitter *time.Duration `yaml:"jitter" min:"0s" default:"0s" example:"20s"`

	// A job without a success for this long is shown as late. 0s means never and overrides the
	// defaults.
	MaxSilence *time.Duration `yaml:"max_silence" min:"0s" unset:"never late" example:"26h"`

	// The targets that receive messages about the job. They must be declared under notify at the
	// top level. An empty list means none and overrides the defaults. Workers of builds from before
	// this key leave the job to others.
	Notify *[]string `yaml:"notify" check:"target" unset:"none" example:"[ops]"`
}

type retryFile struct {
	// Retries after the first attempt; 0 means a single attempt. Crashes do not count.
	Max *int `yaml:"max" min:"0" default:"3" example:"5"`

	// How the pause before a retry grows.
	Backoff *jobs.Backoff `yaml:"backoff" enum:"fixed,linear,exponential" default:"exponential" example:"fixed"`

	// The first pause.
	Initial *time.Duration `yaml:"initial" min:"0s" default:"5s" example:"1m"`

	// The longest pause. 0s means no limit.
	MaxDelay *time.Duration `yaml:"max_delay" min:"0s" default:"5m" example:"10m"`
}

type historyFile struct {
	// The maximum number of runs.
	Runs *int `yaml:"runs" min:"1" default:"1000" example:"200"`

	// The maximum age.
	For *time.Duration `yaml:"for" min:"1s" default:"168h" example:"24h"`
}

type outputFile struct {
	// How much of the end of each attempt's output is kept: B, KiB or MiB, from 1KiB to 1MiB. It is
	// stored in Redis when the attempt ends, and kept as long as the run. A run keeps the outputs
	// of its last 8 attempts, up to 1MiB together, the last one in any case. They count toward
	// limits.history.
	Keep *string `yaml:"keep" check:"tail" shape:"size" default:"16KiB" example:"256KiB"`
}

type jobFile struct {
	// A description in your own words.
	Description *prose `yaml:"description" unset:"none" example:"Dump the shop database"`

	// When the job runs: minute, hour, day of month, month and weekday, optionally with seconds in
	// front; or @hourly, @daily, @weekly, @monthly, @yearly. A job with a schedule runs once at a
	// time over all workers. Without schedule and every it runs when it is enqueued.
	Schedule *string `yaml:"schedule" shape:"cron" unset:"none" example:"\"0 2 * * *\""`

	// An interval, aligned to the clock since 1970-01-01T00:00Z: 15m means :00, :15, :30 and :45 on
	// every replica. In whole seconds.
	Every *time.Duration `yaml:"every" min:"1s" unset:"none" example:"15m"`

	// A program with its arguments: a list, not a text for a shell. For a shell write [sh, -c, "a |
	// b"]. A job has one kind of work: beside command, it has none of the others, such as http.
	Command []text `yaml:"command" size:"1" unset:"none" example:"[pg_dump, --file=/backup/shop.dump, shop]"`

	// A request to send. The args are its JSON body.
	HTTP *httpFile `yaml:"http"`

	// A Go handler, registered in your own binary.
	Handler *string `yaml:"handler" check:"handler" unset:"none" example:"reports.daily"`

	// The default arguments of runs: any JSON value.
	Args json.RawMessage `yaml:"args" unset:"none" example:"{format: pdf}"`

	// Names of args with secret values, at any depth of the args. The pages, the API and the
	// command line show (hidden) in their place, and so do the output and the errors of a run. Lock
	// keys must not read them. Redis has the values: what must not reach Redis belongs in a
	// ${...} of args or env.
	SecretArgs []string `yaml:"secret_args" check:"arg" size:"1" unset:"none" example:"[password]"`

	// The environment of a command, in addition to the variables that worker.env lets it inherit.
	// The worker replaces ${...}, so no secret reaches Redis.
	Env map[string]text `yaml:"env" keys:"env" unset:"none" example:"{PGPASSFILE: /run/secrets/pgpass}"`

	// The locks of a run, which it holds all or none while it runs.
	Lock *lockFile `yaml:"lock"`

	// How many runs of the job may overlap, over all workers. Runs of its ticks overlap only with
	// overlap: queue or allow. With skip and replace, one tick runs at a time.
	Concurrency *int `yaml:"concurrency" min:"1" max:"1000000" unset:"one run of a tick, any number of others" example:"3"`

	// A dead man's switch, in the way of Healthchecks: the worker requests URL/start when an
	// attempt starts, URL when the run has succeeded, and URL/fail when it has failed or is lost.
	Ping *text `yaml:"ping" check:"http-url" unset:"none" example:"https://hc.example/5f1e9c6a"`

	// Skips the ticks of the job. lockstep job pause does that without a deploy.
	Paused *bool `yaml:"paused" default:"false" example:"true"`

	policies `yaml:",inline"`

	definition
}

type httpFile struct {
	// The method.
	Method *string `yaml:"method" enum:"GET,HEAD,POST,PUT,PATCH,DELETE,OPTIONS" default:"POST" example:"PUT"`

	// The URL of the request. Required.
	URL *text `yaml:"url" check:"http-url" required:"write url: https://host/path" example:"https://shop.internal/cache/warm"`

	// Headers, in addition to those that every run sends.
	Headers map[string]text `yaml:"headers" keys:"header" unset:"none" example:"{Authorization: \"Bearer ${file:/run/secrets/token}\"}"`
}

// setWork copies the work of a job.
func (f *jobFile) setWork(job *jobs.Job) {
	for _, argument := range f.Command {
		job.Command = append(job.Command, string(argument))
	}
	if f.HTTP != nil {
		job.HTTP = &jobs.HTTP{
			Method:  valueOr(f.HTTP.Method, defaultOf[httpFile]("method")),
			URL:     string(valueOr(f.HTTP.URL, "")),
			Headers: plainMap(f.HTTP.Headers),
		}
	}
	job.Handler = valueOr(f.Handler, "")
}

type lockFile struct {
	// Names that the run locks exclusively. They may read the args: {a.b}, {list[0]}. A list gives
	// one name per element: {list[*]}.
	Exclusive []string `yaml:"exclusive" check:"lock-key" unset:"none" example:"[\"bill:{bill_ids[*]}\", \"account:{account.id}\"]"`

	// Names that several runs may hold at the same time, while no run holds them exclusively. The
	// syntax is the same.
	Shared []string `yaml:"shared" check:"lock-key" unset:"none" example:"[\"rates:{month}\"]"`

	// How many permits a run takes. They must be declared under permits at the top level.
	Permits map[string]int `yaml:"permits" keys:"permit" min:"1" max:"1000000" unset:"none" example:"{partner-api: 1}"`

	// How long a run waits for all of its locks, not counting pauses of its queue. 0s means no
	// limit.
	Wait *time.Duration `yaml:"wait" min:"0s" unset:"no limit" example:"2m"`

	// What happens to a run that has waited this long: it waits again at the end of the queue, is
	// skipped, or fails.
	OnBusy *jobs.OnBusy `yaml:"on_busy" enum:"requeue,skip,fail" default:"requeue" example:"skip"`

	// An attempt that holds its locks longer than this fails and releases them. 0s means no limit.
	MaxHold *time.Duration `yaml:"max_hold" min:"0s" unset:"no limit" example:"30m"`

	// The locks stay taken this long after the start of an attempt, even if it ends earlier.
	MinHold *time.Duration `yaml:"min_hold" min:"0s" default:"0s" example:"10s"`

	// After a crash, no run gets the locks for this long.
	CrashDelay *time.Duration `yaml:"crash_delay" min:"0s" default:"0s" example:"1m"`
}
