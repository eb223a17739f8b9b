package configs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Severity is the weight of a problem: an error makes the config unusable, a warning does not.
type Severity string

const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// The codes of problems. A code identifies the kind of mistake, for scripts and for looking it up.
// It does not change when the message changes.
const (
	CodeUnreadable      = "unreadable"       // a file or folder cannot be read
	CodeNoFiles         = "no-files"         // a folder or an include has no file
	CodeIncludeCycle    = "include-cycle"    // a file includes itself, through other files
	CodeYAML            = "yaml-syntax"      // not YAML, or YAML that a config must not use
	CodeSecondDocument  = "second-document"  // a second YAML document in a file
	CodeAliases         = "alias-limit"      // aliases expand to more than the limit
	CodeUnknownKey      = "unknown-key"      // a key that nothing reads
	CodeDuplicateKey    = "duplicate-key"    // a duplicate key in a map
	CodeDuplicateJob    = "duplicate-job"    // a job that is defined twice
	CodeMissingKey      = "missing-key"      // a required key that is missing
	CodeEmpty           = "empty"            // a key without a value, or an empty value
	CodeType            = "bad-type"         // a value of the wrong type, such as a list for a map
	CodeNumber          = "bad-number"       // not a whole number
	CodeRange           = "out-of-range"     // a number or duration that is too small or too large
	CodeDuration        = "bad-duration"     // not a duration, usually because the unit is missing
	CodeEnum            = "bad-enum"         // not one of the accepted words
	CodeName            = "bad-name"         // a name with invalid characters
	CodeQueue           = "bad-queue"        // not a valid name for a queue
	CodeUnknownQueue    = "unknown-queue"    // a queue that no worker of this config serves
	CodeURL             = "bad-url"          // not a usable URL
	CodeAddress         = "bad-address"      // not host:port
	CodeSchedule        = "bad-schedule"     // cron text or an interval that cannot be used
	CodeTimezone        = "bad-timezone"     // not the name of a time zone
	CodeTriggers        = "two-triggers"     // both schedule and every
	CodeNoWork          = "no-work"          // no command, http, handler or other kind of work
	CodeTwoKinds        = "two-kinds"        // more than one of them
	CodeRetry           = "bad-retry"        // contradictory pauses between attempts
	CodeJitter          = "bad-jitter"       // a jitter that reaches the next tick or the deadline
	CodeLockKey         = "bad-lock-key"     // an invalid lock key, or one that reads missing args
	CodeDuplicatePermit = "duplicate-permit" // permits that are declared twice
	CodeUnknownPermit   = "unknown-permit"   // permits that are not declared
	CodeDuplicateTarget = "duplicate-target" // a target of messages that is declared twice
	CodeUnknownTarget   = "unknown-target"   // a target of messages that is not declared
	CodeTarget          = "target"           // a target with keys that exclude each other
	// more permits than exist, permits that are used as a lock, or a limit without its own version
	CodePermits        = "bad-permits"
	CodeAuth           = "bad-auth"        // a mode of authentication that lacks a required key
	CodeUnused         = "unused"          // a key that has no effect here
	CodeUnsetVariable  = "unset-variable"  // ${VAR} without a value and without a default
	CodePlaceholder    = "bad-placeholder" // a ${...} that cannot be parsed
	CodeSecretFile     = "secret-file"     // ${file:...} of a file that cannot be read
	CodeSecretInRedis  = "secret-in-redis" // ${file:...} in a value that is stored in Redis
	CodeUnknownSetting = "unknown-setting" // a variable that looks like a setting but is not
	CodeCharacter      = "bad-character"   // a character that no program or header can receive
	CodeMore           = "and-more"        // only the first problems are reported

	// Warnings: see lint.go.
	CodeStarMinute      = "cron-star-minute"  // a star for the minute of a fixed hour: sixty runs
	CodeStarSecond      = "cron-star-second"  // the same for the second of a fixed minute
	CodeUnevenStep      = "cron-uneven-step"  // a step that does not divide its unit
	CodeTwoDays         = "cron-two-days"     // both day of month and weekday: either one matches
	CodeShortMonth      = "cron-short-month"  // a day that some months lack
	CodeRare            = "cron-rare"         // the next tick is about a year away, or more
	CodeClockChange     = "cron-clock-change" // a time that a clock change skips or repeats
	CodeEveryUneven     = "every-uneven"      // an interval that does not divide a day
	CodeFixedZone       = "fixed-zone"        // a time zone that ignores its daylight saving time
	CodeTimeoutInterval = "timeout-interval"  // a timeout longer than the time between two ticks
	CodeSilenceInterval = "silence-interval"  // a max_silence below the time between ticks
	CodeConstantLock    = "constant-lock"     // a lock that all runs of an enqueued job share
	CodeTickConcurrency = "tick-concurrency"  // a concurrency that overlap does not let ticks use
	CodeHoldLimits      = "hold-limits"       // contradictory limits of a hold
	CodeNoShell         = "no-shell"          // a command that was written for a shell
	CodePlainDollar     = "plain-dollar"      // $VAR, which is not replaced
	CodeInlineSecret    = "inline-secret"     // a secret in plain text in a file
	CodeUnknownHandler  = "unknown-handler"   // a handler that this binary does not have
	CodeWeakHash        = "weak-hash"         // a password hash that is cheap to brute-force
	CodeNoRole          = "no-role"           // users without a role in the file that has the users
	CodeTLS             = "bad-tls"           // redis.tls without TLS, or with an unusable file
	// a config that every user of the host can write, or a secret that others can read
	CodeRights     = "file-rights"
	CodeShortLease = "short-lease" // a lease shorter than a failover of Redis
)

// Origin is the source of a value or a problem: a file, an environment variable or a flag. The zero
// Origin means the defaults.
type Origin struct {
	// File is the path as the operator wrote it, or as derived from the including file.
	File string `json:"file,omitempty"`
	// Line counts from 1. 0 means the file as a whole.
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Variable string `json:"variable,omitempty"`
	Flag     string `json:"flag,omitempty"` // without dashes
}

// String returns "conf.d/billing.yaml:14:5", "LOCKSTEP_REDIS__URL", "--redis" or "default".
func (o Origin) String() string {
	switch {
	case o.Variable != "":
		return o.Variable
	case o.Flag != "":
		return "--" + o.Flag
	case o.File != "" && o.Line > 0:
		return fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Column)
	case o.File != "":
		return o.File
	}
	return "default"
}

// Problem is one error or warning about a config.
type Problem struct {
	Origin
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"` // what to do about it
	// Excerpt is the line in the file, or "" without a file.
	Excerpt string `json:"excerpt,omitempty"`
	// Width is the number of characters from Column on that the problem is about.
	Width int `json:"width,omitempty"`
}

// excerptLimit limits, in characters, how much of a line is shown, because a file may be one long
// line.
const excerptLimit = 160

// String returns the problem as text, without a trailing newline:
//
//	conf.d/billing.yaml:14:5: error: unknown key "shedule" in job "invoice-run" [unknown-key]
//	   14 |     shedule: "0 2 * * *"
//	      |     ^^^^^^^ did you mean "schedule"?
func (p Problem) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s", p.Origin, p.Severity, p.Message)
	if p.Excerpt == "" && p.Hint != "" {
		b.WriteString("; " + p.Hint)
	}
	fmt.Fprintf(&b, " [%s]", p.Code)
	if p.Excerpt == "" {
		return b.String()
	}

	line, column := clip([]rune(printable(p.Excerpt)), p.Column-1)
	indent := make([]rune, 0, column)
	for i := range column {
		if i < len(line) && line[i] == '\t' {
			indent = append(indent, '\t') // keeps the caret aligned for any tab width
		} else {
			indent = append(indent, ' ')
		}
	}
	width := max(1, min(p.Width, len(line)-column))
	fmt.Fprintf(&b, "\n%5d | %s\n      | %s%s", p.Line, string(line), string(indent), strings.Repeat("^", width))
	if p.Hint != "" {
		b.WriteString(" " + p.Hint)
	}
	return b.String()
}

// printable replaces characters that would break a line or that a terminal would interpret as a
// command.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return '?'
		}
		return r
	}, s)
}

// clip cuts a long line to a part around the given column (from 0), and returns the column in that
// part.
func clip(line []rune, column int) ([]rune, int) {
	column = min(max(column, 0), len(line))
	if start := column - excerptLimit/2; start > 0 && len(line) > excerptLimit {
		line, column = append([]rune("..."), line[start:]...), column-start+3
	}
	if len(line) > excerptLimit {
		line = append(line[:excerptLimit:excerptLimit], []rune("...")...)
	}
	return line, column
}

// Problems are the findings of one pass over a config, in the order of files and lines. Problems of
// the environment and of flags come last. It is the error of [Load] and the type of
// [Config.Warnings].
type Problems struct {
	List  []Problem `json:"problems"`
	Files int       `json:"files"` // number of files read
	Jobs  int       `json:"jobs"`  // number of jobs they define
}

// Strict returns the same problems with every warning turned into an error.
func (p Problems) Strict() Problems {
	p.List = slices.Clone(p.List)
	for i := range p.List {
		p.List[i].Severity = SeverityError
	}
	return p
}

// Errors returns the number of problems that make the config unusable.
func (p Problems) Errors() int { return p.count(SeverityError) }

// Warnings returns the number of other problems.
func (p Problems) Warnings() int { return p.count(SeverityWarning) }

func (p Problems) count(s Severity) int {
	n := 0
	for _, problem := range p.List {
		if problem.Severity == s {
			n++
		}
	}
	return n
}

// Error returns all problems as text, and the [Problems.Summary] as the last line.
func (p Problems) Error() string {
	var b strings.Builder
	for _, problem := range p.List {
		b.WriteString(problem.String())
		b.WriteByte('\n')
	}
	b.WriteString(p.Summary())
	return b.String()
}

// Summary returns the closing line: "2 errors, 1 warning in 3 files, 6 jobs".
func (p Problems) Summary() string {
	var found []string
	if n := p.Errors(); n > 0 {
		found = append(found, plural(n, "error"))
	}
	if n := p.Warnings(); n > 0 {
		found = append(found, plural(n, "warning"))
	}
	if found == nil {
		found = []string{"no problems"}
	}
	return fmt.Sprintf("%s in %s, %s", strings.Join(found, ", "), plural(p.Files, "file"), plural(p.Jobs, "job"))
}

func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// report collects problems during a pass.
type report struct {
	list []reported
	seen map[problemKey]bool
	more dropped
}

// problemsMost limits how many problems are kept: a file of another program may have one in each of
// its million lines.
const problemsMost = 100_000

// dropped counts the problems beyond that limit.
type dropped struct {
	errors, warnings int
	origin           Origin // of the first
}

func (d *dropped) add(errors, warnings int, origin Origin) {
	if d.errors+d.warnings == 0 {
		d.origin = Origin{File: origin.File, Variable: origin.Variable, Flag: origin.Flag}
	}
	d.errors, d.warnings = d.errors+errors, d.warnings+warnings
}

// problem reports the dropped problems. It is an error if one of them is.
func (d *dropped) problem() Problem {
	p := Problem{Origin: d.origin, Severity: SeverityWarning, Code: CodeMore,
		Message: fmt.Sprintf("%s and %s more follow, and are not listed", plural(d.errors, "error"), plural(d.warnings, "warning"))}
	if d.errors > 0 {
		p.Severity = SeverityError
	}
	return p
}

// reported is a problem with its subject: see [problemKey].
type reported struct {
	Problem
	subject string
}

// problemKey identifies a problem. A mistake in a map that several jobs merge, or in the defaults,
// is found once for each job but is still one mistake, although the messages name different jobs.
type problemKey struct {
	origin  Origin
	code    string
	subject string
}

// add adds a problem. If two have the same code, place and subject, the first is kept.
func (r *report) add(p Problem, subject string) {
	key := problemKey{p.Origin, p.Code, subject}
	switch {
	case r.seen[key]:
		return
	case len(r.list) < problemsMost:
		// added below
	case p.Severity == SeverityError:
		r.more.add(1, 0, p.Origin)
		return
	default:
		r.more.add(0, 1, p.Origin)
		return
	}
	if r.seen == nil {
		r.seen = make(map[problemKey]bool)
	}
	r.seen[key] = true
	// they may contain a value that another package quoted
	p.Message, p.Hint = printable(p.Message), printable(p.Hint)
	r.list = append(r.list, reported{p, subject})
}

// sorted returns the problems file by file, in the order in which the files were read, and from top
// to bottom.
func (r *report) sorted(files []string) []Problem {
	order := make(map[string]int, len(files))
	for i, f := range files {
		order[f] = i + 1
	}
	rank := func(p reported) int {
		if p.File == "" {
			return len(files) + 2
		}
		if at, ok := order[p.File]; ok {
			return at
		}
		return len(files) + 1 // a path that was given but could not be read
	}
	slices.SortStableFunc(r.list, func(a, b reported) int {
		return cmp.Or(rank(a)-rank(b), a.Line-b.Line, a.Column-b.Column)
	})
	var list []Problem
	for _, f := range r.list {
		list = append(list, f.Problem)
	}
	if r.more != (dropped{}) {
		list = append(list, r.more.problem())
	}
	return list
}
