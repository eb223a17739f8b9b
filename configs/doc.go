// Package configs reads the settings of a worker and the definitions of its jobs.
//
// Start with [Load]: files, environment and flags in, a [Config] out, or everything that is wrong with them. A worker
// calls [Expand] right before each attempt, and [Watch] tells when another Load would see something else. [Find] tells
// which files are meant when nobody named any. [Schema] is for editors; [ImportCrontab] and [ImportCronJobs] make files of
// what runs elsewhere.
//
// # The problem
//
// Whoever edits a job file wants to know, before it is merged, that it is right. So nothing is guessed, nothing is
// silently corrected, and one pass finds all there is to find: an unknown key is an error, and so are a duration
// without a unit, a number in quotes and a key written twice. Each [Problem] has file, line and column, quotes the line,
// and says what to write instead.
//
// # The way through
//
//	files -> YAML nodes -> file types ---------------------> jobs + defaults -> rules -> lints -> jobs.Job
//	                          |                                                 |
//	                          +-> koanf: defaults < files < environment < flags +-> Settings
//
// The file types (file.go) are plain Go structs, and the only place where a key is written down. Their tags say what a
// key may hold and what it has by default; one decoder (decode.go) reads any YAML node into any of them and is as strict
// for the settings as for the jobs. The JSON Schema and the reference (README.md) are made of the same types by go
// generate; a test tries every key and every wrong file of testdata against both and finds them of one mind. Load does not
// use the schema: what a schema's checker says of a mistake helps nobody to find it. Nodes keep their positions, so a rule
// that compares keys looks up the place of the key it complains about only when it complains. Environment and flags
// are read by the same types: what is wrong in a file is wrong there too, and the problem names the variable or flag.
// koanf merges the layers of the settings; it never sees text that was not checked before, because by itself it takes
// "lease: 30" for 30 nanoseconds.
//
// Rules find what cannot be used, and are errors. Lints (lint.go) find what can be used and was probably not meant, and
// are warnings: a star in the minute field, a step that does not divide the hour, a time that a clock change skips. Lints
// look ahead from [Options.Now], so a warning may come with a new year's clock changes. A secret that stands in a file is
// one too, and is blotted out in every line that is quoted.
//
// # Files
//
// A path is a file, or a folder whose *.yaml and *.yml are read in the order of their names, without those that begin
// with a dot. A file may include others, relative to itself; they are read after it. A file is read once, however often
// it is named. A job is defined in one place. Of two files that set the same setting or default the one that is read
// later wins. An empty file is fine, a second YAML document is not. A key without a value counts as not written, and is
// a warning.
//
// # ${...}
//
// ${VAR}, ${VAR:-default} and ${file:/path} are replaced inside values, never in keys; $$ is a dollar sign; any other
// dollar sign is itself. The default stands for a variable that is unset or empty. When they are replaced depends on
// where they stand:
//
//   - in settings, when they are loaded;
//   - in the texts of a job (command, http.url, http.headers, env, args), by [Expand], on the worker that runs it, in
//     memory only: Redis, the definition's hash and the pages hold the text as written, so no secret gets there and
//     hosts do not differ. [Load] checks that each of them could be replaced here. Expand also returns the values, by
//     which the worker redacts what the job prints;
//   - in all other values of a job (trigger, queue, timeout, lock keys, ...), when they are loaded. These reach Redis,
//     so ${file:...}, which is for secrets, is refused in them;
//   - nowhere in a description: it is prose.
//
// A problem quotes a line as it stands in the file, without secrets, and never what ${...} became.
//
// # Settings
//
// The later in this list, the stronger:
//
//	defaults      see [Settings]
//	files         in the order they are read
//	REDIS_URL     for redis.url alone
//	LOCKSTEP_...  names with a double underscore, which nests: LOCKSTEP_REDIS__URL, LOCKSTEP_WORKER__QUEUES=a=6,b=1
//	flags         those that were given
//
// A variable that is empty counts as unset. LOCKSTEP_ names without a double underscore are no settings (Kubernetes sets
// LOCKSTEP_PORT for a service called lockstep); one with it that is unknown is a warning. A map, such as
// worker.queues, is replaced as a whole by a stronger layer.
//
// # Loading again
//
// A Load keeps nothing, and a Config is never changed: whoever wants a newer one loads again, and goes on with the old one
// when that fails. [Inputs] are what a Load looked at: files, folders, patterns, and secrets that were not there. [Watch]
// compares what they say, not when they were written, so it does not matter how a file came to change. A change is
// looked at when nothing more has happened for a quarter of a second; a file that was there and is gone has two seconds
// to come back.
//
// The config that goes on is in the memory of its process alone. A process that is started while the files are wrong has
// none, whatever ran before: it says what is wrong and ends, and lockstep start, when that happens after a crash, tries
// again until the files are mended.
//
// # What is not promised
//
// Values that depend on the host (a variable used in a schedule) are this host's. What ${...} gives may change between
// [Load] and [Expand]; then the attempt fails and says so. Load reads files one after the other: a set of files that is
// changed meanwhile may be read half old, half new, which the next load puts right.
package configs
