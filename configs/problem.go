package configs

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// Severity tells whether a problem keeps the config from being used.
type Severity string

const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

// The codes of problems. A code names the kind of mistake, for scripts and for looking it up; it does not change when
// the sentence does.
const (
	CodeUnreadable      = "unreadable"       // a file or folder cannot be read
	CodeNoFiles         = "no-files"         // a folder or an include has no file
	CodeIncludeCycle    = "include-cycle"    // a file includes itself, by way of others
	CodeYAML            = "yaml-syntax"      // not YAML, or YAML that a config may not use
	CodeSecondDocument  = "second-document"  // a file holds one YAML document
	CodeAliases         = "alias-limit"      // aliases stand for more than a config can mean
	CodeUnknownKey      = "unknown-key"      // a key that nothing reads
	CodeDuplicateKey    = "duplicate-key"    // a key twice in one map
	CodeDuplicateJob    = "duplicate-job"    // a job defined twice
	CodeMissingKey      = "missing-key"      // a key that must be there
	CodeEmpty           = "empty"            // a key without a value, or a value that is empty
	CodeType            = "bad-type"         // a list where a map is expected, and the like
	CodeNumber          = "bad-number"       // not a whole number
	CodeRange           = "out-of-range"     // a number or duration that is too small or too large
	CodeDuration        = "bad-duration"     // not a duration, most often for want of a unit
	CodeEnum            = "bad-enum"         // not one of the words that are possible here
	CodeName            = "bad-name"         // a name with characters it may not have
	CodeQueue           = "bad-queue"        // not a name for a queue
	CodeUnknownQueue    = "unknown-queue"    // a queue that no worker of this config serves
	CodeURL             = "bad-url"          // not a URL that can be used here
	CodeAddress         = "bad-address"      // not host:port
	CodeSchedule        = "bad-schedule"     // cron text or an interval that cannot be used
	CodeTimezone        = "bad-timezone"     // not the name of a time zone
	CodeTriggers        = "two-triggers"     // both schedule and every
	CodeNoWork          = "no-work"          // none of command, http and handler
	CodeTwoKinds        = "two-kinds"        // more than one of them
	CodeRetry           = "bad-retry"        // pauses between attempts that contradict each other
	CodeJitter          = "bad-jitter"       // a jitter that reaches the next tick, or the start deadline
	CodeLockKey         = "bad-lock-key"     // a lock key that cannot be read, or whose field is not in the args
	CodeDuplicatePermit = "duplicate-permit" // permits that are declared twice
	CodeUnknownPermit   = "unknown-permit"   // permits that are not declared
	CodePermits         = "bad-permits"      // more permits than there are, permits that are taken as a lock, or a limit without a version of its own
	CodeAuth            = "bad-auth"         // a way to sign in that lacks what it needs
	CodeUnused          = "unused"           // a key that has no effect here
	CodeUnsetVariable   = "unset-variable"   // ${VAR} without a value and without a default
	CodePlaceholder     = "bad-placeholder"  // a ${...} that cannot be read
	CodeSecretFile      = "secret-file"      // ${file:...} of a file that cannot be read
	CodeSecretInRedis   = "secret-in-redis"  // ${file:...} in a value that is stored in Redis
	CodeUnknownSetting  = "unknown-setting"  // an environment variable that looks like a setting and is none
	CodeCharacter       = "bad-character"    // a character that no program, or no HTTP header, can be given
	CodeMore            = "and-more"         // there are so many problems that only the first are told

	// What is doubtful: see lint.go.
	CodeStarMinute      = "cron-star-minute"  // a star for the minute of a fixed hour: sixty runs
	CodeStarSecond      = "cron-star-second"  // the same of a fixed minute
	CodeUnevenStep      = "cron-uneven-step"  // a step that does not divide its unit, so that it begins anew
	CodeTwoDays         = "cron-two-days"     // both day of month and weekday: either one matches
	CodeShortMonth      = "cron-short-month"  // a day that not every month has
	CodeRare            = "cron-rare"         // the next tick is about a year away, or more
	CodeClockChange     = "cron-clock-change" // a time that the clocks of its zone skip, or show twice
	CodeEveryUneven     = "every-uneven"      // an interval that does not divide a day
	CodeFixedZone       = "fixed-zone"        // a time zone without the summer time that its place has
	CodeTimeoutInterval = "timeout-interval"  // a timeout longer than the time between two ticks
	CodeSilenceInterval = "silence-interval"  // a max_silence that is shorter than the time between ticks
	CodeConstantLock    = "constant-lock"     // a lock that all runs of an enqueued job share
	CodeTickConcurrency = "tick-concurrency"  // a concurrency that the ticks of a job cannot use, because of its overlap
	CodeHoldLimits      = "hold-limits"       // limits of a hold that get in each other's way
	CodeNoShell         = "no-shell"          // a command that was written for a shell
	CodePlainDollar     = "plain-dollar"      // $VAR, which is not replaced
	CodeInlineSecret    = "inline-secret"     // a secret that is written in a file
	CodeUnknownHandler  = "unknown-handler"   // a handler that this binary does not have
	CodeWeakHash        = "weak-hash"         // a password hash of the users file that is cheap to guess from
	CodeRights          = "file-rights"       // a config that every user of the host can write, or a secret that others can read
	CodeShortLease      = "short-lease"       // a lease that is shorter than what Redis may need to come back
)

// Origin is the place a value or a problem comes from: a file, an environment variable or a flag. The zero Origin is
// the defaults.
type Origin struct {
	File     string `json:"file,omitempty"` // as the operator named it, or as the including file led to it
	Line     int    `json:"line,omitempty"` // from 1; 0 when it is about the file as a whole
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

// Problem is one thing that is wrong, or doubtful, with a config.
type Problem struct {
	Origin
	Severity Severity `json:"severity"`
	Code     string   `json:"code"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`    // what to do about it
	Excerpt  string   `json:"excerpt,omitempty"` // the line, as it stands in the file; "" without a file
	Width    int      `json:"width,omitempty"`   // how many characters from Column on are meant
}

// excerptLimit bounds, in characters, how much of a line is shown: a file may be one long line.
const excerptLimit = 160

// String returns the problem as text, without a newline at the end:
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
			indent = append(indent, '\t') // so that the caret stands right however wide a tab is shown
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

// printable replaces what would break a line, or what a terminal would take for a command.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r != '\t' && unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return '?'
		}
		return r
	}, s)
}

// clip cuts a long line to a stretch around the given column (from 0), and returns the column in it.
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

// Problems is what one pass over a config found, in the order of files and lines; what comes from the environment and
// from flags stands at the end. It is the error of [Load], and what [Config.Warnings] holds.
type Problems struct {
	List  []Problem `json:"problems"`
	Files int       `json:"files"` // how many files were read
	Jobs  int       `json:"jobs"`  // how many jobs they define
}

// Strict returns the same problems with every warning made an error.
func (p Problems) Strict() Problems {
	p.List = slices.Clone(p.List)
	for i := range p.List {
		p.List[i].Severity = SeverityError
	}
	return p
}

// Errors returns how many of the problems keep the config from being used.
func (p Problems) Errors() int { return p.count(SeverityError) }

// Warnings returns how many of the problems do not.
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

// problemsMost bounds how many problems are kept: a file of another program may have one in each of its million lines.
const problemsMost = 100_000

// dropped are the problems beyond that.
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

// problem tells how many there are; it is an error when one of them is.
func (d *dropped) problem() Problem {
	p := Problem{Origin: d.origin, Severity: SeverityWarning, Code: CodeMore,
		Message: fmt.Sprintf("from here on there are %s and %s more, which are not told", plural(d.errors, "error"), plural(d.warnings, "warning"))}
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

// problemKey tells two problems apart. A mistake in a map that several jobs merge, or in the defaults, is met once for
// each of them and is still one mistake, though the sentences differ by the job.
type problemKey struct {
	origin  Origin
	code    string
	subject string
}

// add takes in a problem. Of two with the same code at the same place, and with the same subject, the first stays.
func (r *report) add(p Problem, subject string) {
	key := problemKey{p.Origin, p.Code, subject}
	switch {
	case r.seen[key]:
		return
	case len(r.list) < problemsMost: // below
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
	p.Message, p.Hint = printable(p.Message), printable(p.Hint) // a value may be quoted in them by another package
	r.list = append(r.list, reported{p, subject})
}

// sorted returns the problems file by file, in the order in which the files were read, and from top to bottom.
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
		return len(files) + 1 // a path that was given and could not be read
	}
	slices.SortStableFunc(r.list, func(a, b reported) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		if d := a.Line - b.Line; d != 0 {
			return d
		}
		return a.Column - b.Column
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
