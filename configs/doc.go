// Package configs loads the settings of a worker and the definitions of its jobs.
//
// Start with [Load]: it reads files, environment and flags, and returns a [Config] or every mistake
// in them. A worker calls [Expand] right before each attempt. [Watch] reports when another Load
// would return a different config. [Find] returns the default files if the command line names none.
// [Schema] is for editors. [ImportCrontab] and [ImportCronJobs] convert the jobs of other
// schedulers to config files.
//
// # The problem
//
// The author of a job file wants to know that it is correct before it is merged. So the package
// guesses nothing, corrects nothing silently, and finds all mistakes in one pass: an unknown key is
// an error, and so are a duration without a unit, a number in quotes and a key written twice. Each
// [Problem] has file, line and column, quotes the line, and says what to write instead.
//
// # From file to job
//
//	files -> YAML nodes -> file types --------------> jobs + defaults -> rules -> lints -> jobs.Job
//	                          |                                           |
//	                          +-> koanf: defaults < files < environment < flags +-> Settings
//
// The file types (file.go) are plain Go structs, and the only place that lists the keys. Their tags
// define the values and the default of each key. One decoder (decode.go) decodes any YAML node into
// any of them and is as strict for the settings as for the jobs. go generate makes the JSON Schema
// and the reference (README.md) from the same types. A test checks every key and every wrong file
// of testdata against both the schema and the decoder, and requires that they agree. Load does not
// use the schema, because the messages of a schema validator do not help to find a mistake. Nodes
// keep their positions, so a rule that compares keys looks up a position only when it reports a
// problem. The same types decode environment and flags: a mistake in a file is a mistake there too,
// and the problem names the variable or flag. koanf merges the layers of the settings. It only sees
// checked text, because by itself it reads "lease: 30" as 30 nanoseconds.
//
// Rules find configs that cannot work, and report errors. Lints (lint.go) find configs that work
// but were probably not meant that way, and report warnings: a star in the minute field, a step
// that does not divide the hour, a time that a clock change skips. Lints look ahead from
// [Options.Now], so the clock changes of a new year can cause a new warning. A secret in a file is
// also a warning, and is masked in every quoted line.
//
// # Files
//
// A path is a file or a folder. The *.yaml and *.yml files of a folder are read in the order of
// their names, except those that begin with a dot. A file may include others, relative to itself;
// they are read after it. A file is read once, however often it is named. A job must be defined in
// one place. If two files set the same setting or default, the one that is read later takes
// precedence. An empty file is valid, but a second YAML document is not. A key without a value
// counts as not written, and is a warning.
//
// # ${...}
//
// ${VAR}, ${VAR:-default} and ${file:/path} are replaced inside values, never in keys. $$ is a
// dollar sign, and any other dollar sign means itself. The default replaces a variable that is
// unset or empty. The time of replacement depends on the value:
//
//   - in settings, when they are loaded;
//   - in the texts of a job (command, http.url, http.headers, env, args), by [Expand], on the
//     worker that runs the job, and only in memory: Redis, the definition's hash and the pages have
//     the text as written, so no secret gets there, and the definitions of all hosts are equal.
//     [Load] checks that this host could replace each of them. Expand also returns the values, so
//     that the worker can redact the output of the job;
//   - in all other values of a job (trigger, queue, timeout, lock keys, ...), when they are loaded.
//     These values reach Redis, so ${file:...}, which is meant for secrets, is refused in them;
//   - not in a description, which is prose.
//
// A problem quotes a line of the file without secrets, and never the values that replaced ${...}.
//
// # Settings
//
// Later entries of this list take precedence:
//
//	defaults      see [Settings]
//	files         in the order they are read
//	REDIS_URL     for redis.url alone
//	LOCKSTEP_...  a double underscore separates keys: LOCKSTEP_REDIS__URL,
//	              LOCKSTEP_WORKER__QUEUES=a=6,b=1
//	flags         those that were given
//
// An empty variable counts as unset. LOCKSTEP_ names without a double underscore are not settings
// (Kubernetes sets LOCKSTEP_PORT for a service called lockstep). An unknown name with a double
// underscore is a warning. A higher layer replaces a whole map, such as worker.queues.
//
// # Reloading
//
// Load keeps no state, and a Config never changes. A worker that wants a newer config loads again,
// and keeps the old one if that fails. [Inputs] are everything that a Load read: files, folders,
// patterns, and secrets that did not exist. [Watch] compares contents, not modification times, so
// it does not matter how a file was changed. Half of a file may be a valid config, so Watch reports
// a change when nothing more has happened for a quarter of a second. A file that has disappeared
// has two seconds to come back.
//
// The old config exists only in the memory of its process. A process that starts while the files
// are wrong has no config, whatever ran before: it reports the problems and exits. If that happens
// after a crash, lockstep start retries until the files are correct.
//
// # What is not promised
//
// Values that depend on the host (a variable used in a schedule) are those of this host. The values
// of ${...} may change between [Load] and [Expand]; if one is then missing, the attempt fails with
// an error that names it. Load reads files one after another, so files that change meanwhile may be
// read half old and half new. The next load corrects that.
package configs
