package configs

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/cronspec"
)

// The lints warn of a config that is valid but probably not what the author meant. Each is about a
// mistake that users of cron files and job runners make. Merely unusual configs cause no warning,
// so that --strict remains usable.

// lintJob checks one valid job.
func (l *loader) lintJob(f *jobFile, job *jobs.Job) {
	l.lintTrigger(f, job)
	l.lintTimeout(f, job)
	l.lintSilence(f, job)
	l.lintConcurrency(f, job)
	l.lintLock(f, job)
	l.lintCommand(f)
	l.lintTexts(f, job)
	l.lintHandler(f)
}

func (l *loader) lintTrigger(f *jobFile, job *jobs.Job) {
	if f.Schedule != nil {
		if info := l.schedule(job.Schedule, job.Timezone); info.err == nil && len(info.findings) > 0 {
			_, node := f.find("schedule")
			for _, finding := range info.findings {
				part := finding.part
				if node.Value != job.Schedule {
					part = "" // it contains ${...}
				}
				l.partProblem(f.src, node, part, finding.offset, SeverityWarning, finding.code, finding.message, finding.hint)
			}
		}
	}
	if f.Every != nil {
		if day := 24 * time.Hour; job.Every >= time.Second && day%job.Every != 0 && job.Every%day != 0 {
			_, node := f.find("every")
			l.warnAt(f.src, node, CodeEveryUneven, fmt.Sprintf("every %s does not divide a day: its times differ from day to day, counted from 1970",
				cronspec.FormatInterval(job.Every)), "write "+cronspec.FormatInterval(evenInterval(job.Every))+", or a schedule")
		}
	}
	if fixed := map[string]string{"EST": "America/New_York", "MST": "America/Denver", "HST": "Pacific/Honolulu"}[job.Timezone]; fixed != "" && f.Schedule != nil {
		s, node := f.src, (*yaml.Node)(nil)
		if _, node = f.find("timezone"); node == nil {
			if s, _, node = l.ofDefaults("timezone"); node == nil {
				return
			}
		}
		l.warnAt(s, node, CodeFixedZone, fmt.Sprintf("time zone %s has no daylight saving time", job.Timezone),
			fmt.Sprintf("did you mean %q?", fixed))
	}
}

// ofDefaults returns the last place where the files' defaults set a key, or nils.
func (l *loader) ofDefaults(path ...string) (s *source, key, value *yaml.Node) {
	for _, one := range l.sources {
		if one.file.Defaults == nil {
			continue
		}
		if k, v := written(one.root, append([]string{"defaults"}, path...)...); v != nil {
			s, key, value = one, k, v
		}
	}
	return s, key, value
}

// evenInterval returns the next longer interval, in whole units of its size, that divides a day or
// is a multiple of a day.
func evenInterval(d time.Duration) time.Duration {
	const day = 24 * time.Hour
	unit := time.Second
	for _, larger := range []time.Duration{time.Minute, time.Hour, day} {
		if d > larger {
			unit = larger
		}
	}
	d = (d + unit - 1) / unit * unit
	for day%d != 0 && d%day != 0 {
		d += unit
	}
	return d
}

// lintTimeout compares the job's own timeout with the time between its ticks. It ignores a timeout
// from the defaults, which is meant for the longest of many jobs.
func (l *loader) lintTimeout(f *jobFile, job *jobs.Job) {
	if f.policies.Timeout == nil || job.Timeout == 0 || job.Overlap != jobs.OverlapSkip && job.Overlap != jobs.OverlapQueue {
		return
	}
	interval := job.Every
	if f.Schedule != nil {
		interval = l.schedule(job.Schedule, job.Timezone).shortest(job.Timeout, l.now)
	}
	if interval <= 0 || job.Timeout <= interval {
		return
	}
	outcome := "the ticks meanwhile are skipped"
	if job.Overlap == jobs.OverlapQueue {
		outcome = "the ticks meanwhile pile up"
	}
	_, node := f.find("timeout")
	l.warnAt(f.src, node, CodeTimeoutInterval, fmt.Sprintf("timeout %s of job %q is longer than the %s between two ticks: when a run takes that long, %s",
		cronspec.FormatInterval(job.Timeout), f.name, cronspec.FormatInterval(interval), outcome), "")
}

// lintSilence compares the job's own max_silence with the time between its ticks. It ignores one
// from the defaults, which is meant for many jobs.
func (l *loader) lintSilence(f *jobFile, job *jobs.Job) {
	if f.policies.MaxSilence == nil || job.MaxSilence == 0 {
		return
	}
	interval := job.Every
	if f.Schedule != nil {
		interval = l.schedule(job.Schedule, job.Timezone).between(l.now).longest
	}
	if interval < job.MaxSilence || interval <= 0 {
		return
	}
	_, node := f.find("max_silence")
	l.warnAt(f.src, node, CodeSilenceInterval, fmt.Sprintf("max_silence %s of job %q is not longer than the %s between two ticks: it is shown as late although nothing failed",
		cronspec.FormatInterval(job.MaxSilence), f.name, cronspec.FormatInterval(interval)), "")
}

// lintConcurrency warns of a concurrency that the ticks of a job cannot use, because its overlap
// allows one run at a time.
func (l *loader) lintConcurrency(f *jobFile, job *jobs.Job) {
	if job.Concurrency < 2 || !job.Scheduled() {
		return
	}
	why := ""
	switch job.Overlap {
	case jobs.OverlapSkip:
		why = "a tick is skipped while an earlier run is not finished"
	case jobs.OverlapReplace:
		why = "a tick stops the run before it"
	case jobs.OverlapQueue, jobs.OverlapAllow:
		return
	}
	_, node := f.find("concurrency")
	l.warnAt(f.src, node, CodeTickConcurrency, fmt.Sprintf("concurrency %d of job %q lets only one tick run at a time: with overlap: %s, %s",
		job.Concurrency, f.name, job.Overlap, why), "write overlap: allow, or overlap: queue to keep their order")
}

// lintLock warns of locks that make all runs of an enqueued job wait for each other, and of
// contradictory limits of the hold.
func (l *loader) lintLock(f *jobFile, job *jobs.Job) {
	l.lintHold(f, job)
	if f.Lock == nil || job.Scheduled() || f.has("schedule") || f.has("every") {
		return
	}
	for i, key := range f.Lock.Exclusive {
		if key == "" || strings.Contains(key, "{") {
			continue
		}
		_, list := f.find("lock", "exclusive")
		l.warnAt(f.src, list.Content[i], CodeConstantLock, fmt.Sprintf("lock key %s of job %q is the same for all its runs: they wait for each other",
			quote(key), f.name), `name the locks of a run by its args: "bill:{bill_id}"`)
	}
}

// lintHold compares the limits of a hold. It ignores a timeout from the defaults, which is meant
// for many jobs.
func (l *loader) lintHold(f *jobFile, job *jobs.Job) {
	most := job.Lock.MaxHold
	if most == 0 {
		return
	}
	warn := func(than, hint string) {
		_, node := f.find("lock", "max_hold")
		l.warnAt(f.src, node, CodeHoldLimits, fmt.Sprintf("lock.max_hold of job %q is %s, shorter than %s", f.name, cronspec.FormatInterval(most), than), hint)
	}
	if f.policies.Timeout != nil && job.Timeout > most {
		warn("its timeout, which is "+cronspec.FormatInterval(job.Timeout), "an attempt never reaches its timeout")
	}
	if job.Lock.MinHold > most {
		warn("lock.min_hold, which is "+cronspec.FormatInterval(job.Lock.MinHold), "")
	}
}

var (
	// ssh starts a shell on the remote side.
	shells       = []string{"sh", "bash", "dash", "ash", "zsh", "ksh", "fish", "pwsh", "ssh"}
	shellWords   = []string{"|", "||", "&", "&&", ";", ">", ">>", "<", "2>&1", "2>", "&>"}
	plainDollar  = pattern(`(?:^|[^$])\$([A-Za-z_][A-Za-z0-9_]*)`)
	dollarPrefix = pattern(`^\$[A-Za-z_][A-Za-z0-9_]*(/|$)`)
)

// lintCommand warns of a command that was written for a shell.
func (l *loader) lintCommand(f *jobFile) {
	if len(f.Command) == 0 || slices.Contains(shells, filepath.Base(string(f.Command[0]))) {
		return
	}
	warn := func(i int, what, hint string) {
		_, list := f.find("command")
		l.warnAt(f.src, list.Content[i], CodeNoShell, fmt.Sprintf("command of job %q: there is no shell, so %s", f.name, what), hint)
	}
	const shell = `write [sh, -c, "..."]`
	for i, word := range f.Command {
		switch word := string(word); {
		case i == 0 && secrecyOfLine(word) >= mustHide:
			// the message would quote it
		case i == 0 && len(f.Command) == 1 && strings.ContainsAny(word, " \t") && !strings.HasPrefix(word, "/") && !strings.Contains(word, "${"):
			warn(i, fmt.Sprintf("%s is taken as the name of a program, including its blanks", quote(word)),
				"write ["+strings.Join(strings.Fields(word), ", ")+"]")
		case slices.Contains(shellWords, word):
			warn(i, word+" is an argument like any other", shell)
		case strings.HasPrefix(word, "~/"):
			warn(i, "~ is not replaced by a home folder", "write ${HOME}"+word[1:])
		case dollarPrefix().MatchString(word):
			warn(i, plainDollar().FindString(word)+" is not replaced", "write ${"+plainDollar().FindStringSubmatch(word)[1]+"}")
		}
	}
}

// lintTexts searches for secrets in the file, and for variables in shell syntax.
func (l *loader) lintTexts(f *jobFile, job *jobs.Job) {
	// The args are JSON, because the decoder made them.
	must(job.MapTexts(!l.flawed && mayHoldSecrets(job.Args), func(t jobs.Text) (string, error) {
		l.lintText(f, t)
		return t.Value, nil
	}))
	if l.flawed && f.has("args") {
		// Parts of the args that are wrong were not decoded, but their secrets must be hidden too.
		_, args := f.find("args")
		eachSecret(args, "", func(n *yaml.Node, found secrecy) { l.foundSecret(f, n, "args", found) })
	}
}

func (l *loader) lintText(f *jobFile, t jobs.Text) {
	found := secrecyOf(t)
	switch {
	case found >= mustHide:
		where := t.Key()
		if t.Role == jobs.Word || t.Role == jobs.Arg {
			where = t.Path[0]
		}
		_, node := f.find(t.Path...)
		l.foundSecret(f, node, where, found)
	case t.Role == jobs.URL && len(jobs.URLSecrets(t.Value)) > 0:
		_, node := f.find(t.Path...)
		f.src.hide(deref(node))
	}
	if found == mustWarn || t.Role == jobs.Word || t.Role == jobs.Arg || !strings.Contains(t.Value, "$") || !plainDollar().MatchString(t.Value) {
		return
	}
	if _, references := plainParts(t.Value); !references {
		_, node := f.find(t.Path...)
		variable := plainDollar().FindStringSubmatch(t.Value)[1]
		l.warnAt(f.src, node, CodePlainDollar, fmt.Sprintf("$%s in %s of job %q is not replaced", variable, t.Key(), f.name),
			fmt.Sprintf("write ${%s}, or $$%s for the text as it is", variable, variable))
	}
}

// foundSecret hides a value of a job in every excerpt, and warns of it if its author can do better.
func (l *loader) foundSecret(f *jobFile, n *yaml.Node, where string, found secrecy) {
	if found < mustWarn {
		f.src.hide(deref(n))
		return
	}
	l.inlineSecret(place{f.src, n}, fmt.Sprintf("%s of job %q", where, f.name))
}

// eachSecret visits each apparent secret in a value of any shape under a key with the given name.
// It is for values that may not have been decoded. For those of a job see [secrecyOf].
func eachSecret(n *yaml.Node, name string, visit func(n *yaml.Node, found secrecy)) {
	switch n = deref(n); n.Kind {
	case yaml.MappingNode:
		for _, e := range entries(n, nil, nil) {
			eachSecret(e.value, e.key.Value, visit)
		}
	case yaml.SequenceNode:
		for _, c := range n.Content {
			eachSecret(c, name, visit)
		}
	default:
		if n.Tag != "!!str" {
			return
		}
		if found := judge(n.Value, isSecretName(name), isSecretValue); found >= mustHide {
			visit(n, found)
		}
	}
}

var (
	secretName = pattern(`(?i)passwo?r?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential`)

	// Suffixes of names that describe the location of a secret, or a property of it.
	noSecretName = pattern(`(?i)([_-]?(file|path|dir|name|url|uri|id|header|type|ttl|count|limit)|tokens)$`)

	// Prefixes with which providers mark their keys, so that scanners can find them.
	secretPrefixes = []string{"ghp_", "gho_", "ghs_", "github_pat_", "glpat-", "xoxa-", "xoxb-", "xoxp-", "xoxs-", "sk_live_",
		"rk_live_", "AKIA", "ASIA", "AIza"}

	privateKey = pattern(`-----BEGIN [A-Z ]*PRIVATE KEY`)
	secretFlag = pattern(`^--?([A-Za-z][A-Za-z0-9_-]*)$`)

	shellVariable = pattern(`^\$\$(\w+|\{\w+\})$`)
)

func isSecretName(name string) bool {
	return secretName().MatchString(name) && !noSecretName().MatchString(name)
}

func isSecretHeader(name string) bool {
	switch strings.ToLower(name) {
	case "authorization", "proxy-authorization", "cookie":
		return true
	}
	return isSecretName(name)
}

// isSecretValue reports whether the value under a secret's name may be a secret. A path is only its
// location, and a number or a boolean is not a secret. A value with a $, or with nothing but a
// $$VARIABLE, was probably written for a shell.
func isSecretValue(s string) bool {
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return false
	}
	_, err := strconv.ParseBool(s)
	return err != nil && s != "" && !strings.HasPrefix(s, "/") && !strings.Contains(literalDollars.Replace(s), "$") &&
		!shellVariable().MatchString(s)
}

// literalDollars removes each $$, and each ${ without an end.
var literalDollars = strings.NewReplacer("$$", "", "${", "")

// isSecretParameter is isSecretValue for the value of a command's flag. A $$ may be for a shell,
// too.
func isSecretParameter(s string) bool { return isSecretValue(s) && !strings.Contains(s, "$") }

// mayHoldSecrets reports whether args need a closer look.
func mayHoldSecrets(args json.RawMessage) bool {
	return secretName().Match(args) || isSecretText(string(args))
}

// secrecy is what must happen to a text.
type secrecy int

const (
	clean    secrecy = iota
	mustHide         // it contains an apparent secret, perhaps only the prefix of a ${...}
	mustWarn         // also: its author can do better
)

// secrecyOf judges a text of a job.
func secrecyOf(t jobs.Text) secrecy {
	switch t.Role {
	case jobs.Word:
		found := secrecyOfWord(t.Before, t.Value)
		if found < mustWarn && strings.ContainsFunc(t.Value, unicode.IsSpace) {
			found = max(found, secrecyOfLine(t.Value))
		}
		return found
	case jobs.URL:
		if _, references := plainParts(t.Value); !references && hasPassword(t.Value) {
			return mustWarn
		}
		return judge(t.Value, false, nil)
	case jobs.Header:
		return judge(t.Value, isSecretHeader(t.Name()), isSecretValue)
	}
	return judge(t.Value, isSecretName(t.Name()), isSecretValue)
}

// judge judges a value. named says that it has the name of a secret, and may reports whether a
// value under such a name may be one. A part beside a ${...} may be a prefix, so it causes no
// warning unless it has the form of a secret.
func judge(value string, named bool, may func(string) bool) secrecy {
	parts, references := plainParts(value)
	rest := strings.Join(parts, "")
	if references {
		rest = strings.TrimSpace(scheme().ReplaceAllString(rest, ""))
		// else it only separates the ${...}
		named = named && strings.ContainsFunc(rest, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) })
	}
	switch {
	case slices.ContainsFunc(parts, isSecretText):
		return mustWarn
	case !named || !may(rest):
		return clean
	case references:
		return mustHide
	}
	return mustWarn
}

// scheme matches the word before the credentials in a header.
var scheme = pattern(`(?i)^\s*(bearer|basic|token)\s`)

// plainParts returns the parts of a text besides its ${...}, as written. references is false if
// there is no ${...}. A text with a mistake counts as one part and a ${...}, because the mistake is
// reported.
func plainParts(text string) (parts []string, references bool) {
	list, err := jobs.Pieces(text)
	if err != nil || list == nil {
		return []string{text}, err != nil
	}
	from := 0
	for _, p := range list {
		if isReference(p) {
			parts, from, references = append(parts, text[from:p.From]), p.To, true
		}
	}
	return append(parts, text[from:]), references
}

func isReference(p jobs.Piece) bool { return p.Source != "" }

// isSecretText reports whether a text contains a word with the prefix and length of a provider's
// key, or a private key. It checks every text of every job, so it avoids regular expressions where
// it can.
func isSecretText(s string) bool {
	const least = 12 // characters after the prefix
	for i := 0; i+least < len(s); i++ {
		if i > 0 && isKeyCharacter(s[i-1]) && s[i-1] != '-' {
			continue // inside a word
		}
		for _, prefix := range secretPrefixes {
			rest, ok := strings.CutPrefix(s[i:], prefix)
			if ok && len(rest) >= least && strings.IndexFunc(rest[:least], func(r rune) bool { return r >= utf8.RuneSelf || !isKeyCharacter(byte(r)) }) < 0 {
				return true
			}
		}
	}
	return strings.Contains(s, "PRIVATE KEY") && privateKey().MatchString(s)
}

func isKeyCharacter(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// secrecyOfWord judges a word of a command: a secret by its form, or the value of a flag such as
// --password.
func secrecyOfWord(before, word string) secrecy {
	if !strings.HasPrefix(word, "-") {
		return judge(word, isSecretFlag(before), isSecretParameter)
	}
	found := judge(word, false, nil)
	if flag, value, joined := strings.Cut(word, "="); joined && isSecretFlag(flag) {
		found = max(found, judge(value, true, isSecretParameter))
	}
	return found
}

// secretFlagOf splits --password=VALUE at the sign. It returns false for any other word.
func secretFlagOf(word string) (flag, value string, ok bool) {
	flag, value, joined := strings.Cut(word, "=")
	if !joined || !isSecretFlag(flag) || isSecretText(flag) {
		return "", "", false
	}
	return flag, value, judge(value, true, isSecretParameter) >= mustHide
}

func isSecretFlag(flag string) bool {
	if !strings.HasPrefix(flag, "-") {
		return false
	}
	m := secretFlag().FindStringSubmatch(flag)
	return m != nil && isSecretName(m[1])
}

// secrecyOfLine judges a command line, which should have been a list.
func secrecyOfLine(line string) secrecy {
	found, before := clean, ""
	for word := range strings.FieldsSeq(line) {
		found, before = max(found, secrecyOfWord(before, word)), word
	}
	return found
}

// hasPassword reports whether a URL has a password before the host.
func hasPassword(s string) bool {
	if !strings.Contains(s, "@") {
		return false
	}
	u, err := url.Parse(s)
	if err != nil || u.User == nil {
		return false
	}
	password, set := u.User.Password()
	return set && password != ""
}

// inlineSecret warns of a secret in the file, and hides it in every excerpt.
func (l *loader) inlineSecret(at place, where string) {
	at.src.hide(deref(at.node))
	l.warnAt(at.src, at.node, CodeInlineSecret, where+" contains a secret", "write ${VAR} or ${file:/path}, and put it there")
}

func (l *loader) lintHandler(f *jobFile) {
	if f.Handler == nil || len(l.handlers) == 0 || slices.Contains(l.handlers, *f.Handler) {
		return
	}
	hint := "this binary has " + strings.Join(l.handlers[:min(5, len(l.handlers))], ", ")
	if likely := nearest(*f.Handler, l.handlers); likely != "" {
		hint = didYouMean(likely)
	}
	_, node := f.find("handler")
	l.warnAt(f.src, node, CodeUnknownHandler, fmt.Sprintf("this binary has no handler %s for job %q", quote(*f.Handler), f.name), hint)
}

// lintSettings checks valid settings.
func (l *loader) lintSettings(c *Config) {
	const short = 5 * time.Second
	lease := c.Settings.Locks.Lease
	plain, _ := c.Settings.Redis.Topology()
	switch {
	case lease < short:
		l.settingProblem(c, SeverityWarning, "locks.lease", CodeShortLease, fmt.Sprintf("with a lease of %s, work is cut off when Redis is unreachable for about %s",
			cronspec.FormatInterval(lease), cronspec.FormatInterval(locks.Outage(lease).Truncate(100*time.Millisecond))), "the default is 15s")
	case lease < locks.ClusterLease && plain == "redis-cluster":
		key := "locks.lease"
		if _, set := c.Origins[key]; !set {
			key = "redis.url"
		}
		l.settingProblem(c, SeverityWarning, key, CodeShortLease, fmt.Sprintf("a lease of %s does not outlive the failover of a Redis Cluster, which takes 16s or more",
			cronspec.FormatInterval(lease)), "set locks.lease to "+cronspec.FormatInterval(locks.ClusterLease))
	}
	if grace := c.Settings.Locks.GraceTime(); grace != 0 && grace < lease {
		l.settingProblem(c, SeverityError, "locks.grace", CodeRange, fmt.Sprintf("a grace of %s is shorter than the lease, %s: a worker that is cut off from Redis may continue that long",
			cronspec.FormatInterval(grace), cronspec.FormatInterval(lease)), "write auto, or "+cronspec.FormatInterval(lease)+" at least")
	}
	if !l.authWrong {
		l.checkAuth(c)
	}
	if n := len(c.Settings.Redis.SignKeyFile); n > 2 {
		l.settingProblem(c, SeverityError, "redis.sign_key_file", CodeRange, fmt.Sprintf("redis.sign_key_file has %d files, two at most", n),
			"name the file of the new key, then that of the one it replaces")
	} else if n > 0 && c.Settings.Redis.SignKey != "" {
		l.settingProblem(c, SeverityWarning, "redis.sign_key_file", CodeUnused, "redis.sign_key_file has no effect: redis.sign_key is set", "keep one of them")
	}
	l.lintTLS(c)
	l.lintSentinel(c)
	if l.rights {
		l.lintRights(c)
	}
	for _, s := range l.sources {
		for _, setting := range settingList() {
			if !setting.field.rules.secret || setting.key == "redis.url" {
				continue
			}
			_, node := written(s.root, setting.path...)
			if node == nil {
				continue
			}
			if parts, references := plainParts(node.Value); strings.Join(parts, "") != "" {
				s.hide(node)
				if !references {
					l.warnAt(s, node, CodeInlineSecret, setting.key+" contains a secret",
						"put the "+strings.TrimPrefix(setting.field.name, "sign_")+" into a file, and name that in "+setting.key+"_file")
				}
			}
		}
		if s.settings.values["redis.url"] == nil {
			continue
		}
		_, node := find(s.root, "redis", "url")
		if len(jobs.URLSecrets(node.Value)) > 0 {
			s.hide(deref(node))
		}
		if !jobs.PasswordIsReplaced(node.Value) && hasPassword(node.Value) {
			l.warnAt(s, node, CodeInlineSecret, "redis.url contains a secret", "write ${VAR}, or put the password into redis.password_file")
		}
	}
}

// authKeys are the keys of admin.auth that each of its modes uses.
var authKeys = map[string][]string{
	"none":  nil,
	"basic": {"user", "password_file", "users_file"},
	"token": {"user", "token_file", "operator_token_file", "viewer_token_file"},
	"proxy": {"header", "proxies", "groups_header", "admins", "operators", "viewers"},
}

// checkAuth checks that the mode of authentication has the keys that it needs.
func (l *loader) checkAuth(c *Config) {
	const at = "admin.auth."
	auth := c.Settings.Admin.Auth
	roles := "" // the first key that gives groups a role
	switch {
	case len(auth.Admins) > 0:
		roles = "admins"
	case len(auth.Operators) > 0:
		roles = "operators"
	case len(auth.Viewers) > 0:
		roles = "viewers"
	}
	wrong := false
	problem := func(severity Severity, key, code, message, hint string) {
		wrong = wrong || severity == SeverityError
		l.settingProblem(c, severity, at+key, code, message, hint)
	}
	switch {
	case auth.Mode == "basic" && auth.PasswordFile == "" && auth.UsersFile == "":
		problem(SeverityError, "mode", CodeAuth, "admin.auth.mode is basic, and no file has the passwords",
			"add password_file: PATH, or users_file: PATH for several users")
	case auth.Mode == "basic" && auth.PasswordFile != "" && auth.UsersFile != "":
		problem(SeverityError, "users_file", CodeAuth, "admin.auth has both password_file and users_file", "keep one of them")
	case auth.Mode == "token" && auth.TokenFile == "" && auth.OperatorTokenFile == "" && auth.ViewerTokenFile == "":
		problem(SeverityError, "mode", CodeAuth, "admin.auth.mode is token, and no file has the token", "add token_file: PATH")
	case auth.Mode == "proxy" && auth.GroupsHeader == "" && roles != "":
		problem(SeverityError, roles, CodeAuth, fmt.Sprintf("admin.auth.%s has no effect without admin.auth.groups_header, so every user would be an admin", roles),
			"add groups_header: X-Forwarded-Groups")
	case auth.Mode == "proxy" && auth.GroupsHeader != "" && roles == "":
		problem(SeverityError, "groups_header", CodeAuth, "admin.auth has a groups_header, and no group has a role, so no user would have access",
			"add admins: [GROUP], operators: [GROUP] or viewers: [GROUP]")
	}
	_, chosen := c.Origins[at+"mode"]
	for _, setting := range settingList() {
		key, ok := strings.CutPrefix(setting.key, at)
		if _, set := c.Origins[setting.key]; !ok || !set || key == "mode" || slices.Contains(authKeys[auth.Mode], key) {
			continue
		}
		if chosen {
			// an environment variable may deliberately switch authentication off
			problem(SeverityWarning, key, CodeUnused, fmt.Sprintf("%s has no effect: admin.auth.mode is %s", setting.key, auth.Mode), "")
			continue
		}
		var modes []string
		for _, mode := range []string{"basic", "token", "proxy"} {
			if slices.Contains(authKeys[mode], key) {
				modes = append(modes, mode)
			}
		}
		problem(SeverityError, key, CodeAuth, setting.key+" has no effect without admin.auth.mode, so no user would need to sign in",
			"add mode: "+strings.Join(modes, " or "))
	}
	if !wrong && auth.Mode == "none" && c.Settings.Admin.ListenSet && !loopback(c.Settings.Admin.Listen) {
		l.settingProblem(c, SeverityWarning, "admin.listen", CodeAuth, fmt.Sprintf("other hosts can reach %s, and admin.auth.mode is none: only /livez, /readyz and /metrics are served there",
			c.Settings.Admin.Listen), "set admin.auth.mode to basic, token or proxy, or listen on 127.0.0.1")
	}
}

// loopback reports whether a valid address is reachable only from this host.
func loopback(address string) bool {
	host, _, _ := net.SplitHostPort(address)
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// settingProblem reports a setting at the place where it was set.
func (l *loader) settingProblem(c *Config, severity Severity, key, code, message, hint string) {
	origin := c.Origins[key]
	for _, s := range l.sources {
		if s.path == origin.File {
			_, node := find(s.root, strings.Split(key, ".")...)
			l.addAt(s, node, severity, code, message, hint)
			return
		}
	}
	l.add(Problem{Origin: origin, Severity: severity, Code: code, Message: message, Hint: hint}, "")
}

// LintSchedule returns warnings about valid cron text. They have no position. now is the instant
// from which it searches for clock changes and rare dates.
func LintSchedule(schedule *cronspec.Schedule, now time.Time) []Problem {
	var list []Problem
	for _, f := range lintSchedule(schedule, now) {
		list = append(list, Problem{Severity: SeverityWarning, Code: f.code, Message: f.message, Hint: f.hint})
	}
	return list
}

// scheduleInfo caches facts about one schedule in one zone, which many jobs may share.
type scheduleInfo struct {
	schedule *cronspec.Schedule
	err      error
	findings []finding

	gaps *gaps // between the next ticks; nil until needed
	// The minute is fixed, so no two ticks are in the same hour.
	coarse bool
}

// schedule returns the facts about cron text in a zone.
func (l *loader) schedule(text, timezone string) *scheduleInfo {
	key := [2]string{text, timezone}
	if info, ok := l.schedules[key]; ok {
		return info
	}
	zone, err := cronspec.LoadZone(timezone)
	if err != nil {
		zone = time.UTC // reported when it was decoded
	}
	info := new(scheduleInfo)
	if info.schedule, info.err = cronspec.Parse(text, zone); info.err == nil {
		info.findings = lintSchedule(info.schedule, l.now)
		if fields := info.schedule.Fields(); fields != nil {
			info.coarse = isNumber(fields[0].Text) && isNumber(fields[1].Text)
		}
	}
	l.schedules[key] = info
	return info
}

// shortest returns the shortest time between two of the next ticks if it may be below limit.
// Otherwise it returns 0.
func (i *scheduleInfo) shortest(limit time.Duration, now time.Time) time.Duration {
	if i.coarse && limit <= time.Hour {
		return 0
	}
	return i.between(now).shortest
}

// gaps are the times between ticks, or 0 if there are fewer than two ticks.
type gaps struct{ shortest, longest time.Duration }

// between returns the gaps between the next ticks.
func (i *scheduleInfo) between(now time.Time) *gaps {
	if i.gaps != nil {
		return i.gaps
	}
	i.gaps = new(gaps)
	if i.err != nil {
		return i.gaps
	}
	const looked = 16
	last := i.schedule.Next(now)
	for range looked {
		next := i.schedule.Next(last)
		if last.IsZero() || next.IsZero() {
			break
		}
		gap := next.Sub(last)
		if i.gaps.shortest == 0 || gap < i.gaps.shortest {
			i.gaps.shortest = gap
		}
		i.gaps.longest = max(i.gaps.longest, gap)
		last = next
	}
	return i.gaps
}

// finding is one warning about a schedule. Part is the field that it is about, and Offset is the
// position of that field.
type finding struct {
	code, message, hint string
	part                string
	offset              int
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// isFixed reports whether a field has only single values: "0", "9,12".
func isFixed(s string) bool { return s != "" && strings.Trim(s, "0123456789,") == "" }

func isStar(s string) bool { return s == "*" || s == "?" }

// lintSchedule returns warnings about a schedule.
func lintSchedule(schedule *cronspec.Schedule, now time.Time) []finding {
	var list []finding
	text := schedule.String()
	if fields := schedule.Fields(); fields != nil {
		list = append(list, lintStars(text, fields)...)
		list = append(list, lintSteps(fields)...)
		list = append(list, lintDays(fields)...)
		list = append(list, lintRare(text, schedule, now)...)
	}
	return append(list, lintClock(text, schedule, now)...)
}

// lintStars finds a star in a unit below a fixed one: "* 0 * * *" does not mean "at midnight", but
// every minute of that hour.
func lintStars(text string, fields []cronspec.Part) []finding {
	second, minute, hour := fields[0], fields[1], fields[2]
	times, code, star := 0, "", minute
	fixed := func(f cronspec.Part) int { return strings.Count(f.Text, ",") + 1 }
	span := ""
	switch {
	case minute.Text == "*" && isFixed(hour.Text):
		times, code = 60*fixed(hour), CodeStarMinute
		if second.Text == "*" {
			times, star = 60*times, second
		}
		if n, err := strconv.Atoi(hour.Text); err == nil {
			span = fmt.Sprintf(", every minute from %02d:00 to %02d:59", n, n)
			if second.Text == "*" {
				span = fmt.Sprintf(", every second from %02d:00:00 to %02d:59:59", n, n)
			}
		}
	case second.Text == "*" && isFixed(minute.Text):
		times, code, star = 60*fixed(minute), CodeStarSecond, second
		span = " an hour"
		if isFixed(hour.Text) {
			times, span = times*fixed(hour), ""
		}
	default:
		return nil
	}
	once := strings.Replace(text, "*", "0", 1)
	if code == CodeStarMinute && second.Text == "*" {
		once = strings.Replace(once, "*", "0", 1)
	}
	return []finding{{code, fmt.Sprintf("%q runs %d times%s", text, times, span), fmt.Sprintf("did you mean %q?", once), star.Text, star.Offset}}
}

// cronUnits are the fields with steps that restart with the next larger unit.
var cronUnits = [6]struct {
	name, anew  string
	first, size int
	every       time.Duration
}{
	{"second", "each minute", 0, 60, time.Second},
	{"minute", "each hour", 0, 60, time.Minute},
	{"hour", "each day", 0, 24, time.Hour},
	{"day of month", "each month", 1, 31, 24 * time.Hour},
	{"month", "each year", 1, 12, 0},
	{"weekday", "each week", 0, 7, 0},
}

// lintSteps finds steps that do not divide their unit.
func lintSteps(fields []cronspec.Part) []finding {
	var list []finding
	for i, f := range fields {
		unit := cronUnits[i]
		rest, ok := strings.CutPrefix(f.Text, "*/")
		step, err := strconv.Atoi(rest)
		if !ok || err != nil || step < 2 || unit.size%step == 0 {
			continue
		}
		last := (unit.size - 1) / step * step
		hint := ""
		if unit.every > 0 {
			hint = fmt.Sprintf("every: %s keeps the distance", cronspec.FormatInterval(time.Duration(step)*unit.every))
		}
		message := fmt.Sprintf("%s %s restarts %s: after %d comes %d", unit.name, f.Text, unit.anew, unit.first+last, unit.first)
		list = append(list, finding{CodeUnevenStep, message, hint, f.Text, f.Offset})
	}
	return list
}

// lintDays finds day fields of which either one matches, and days that few months have.
func lintDays(fields []cronspec.Part) []finding {
	day, month, weekday := fields[3], fields[4], fields[5]
	if !isStar(day.Text) && !isStar(weekday.Text) {
		return []finding{{CodeTwoDays, fmt.Sprintf("day of month %s and weekday %s: a day matches when either does", day.Text, weekday.Text),
			"keep one of them, and let the job check the other", weekday.Text, weekday.Offset}}
	}
	n, err := strconv.Atoi(day.Text)
	if err != nil || n < 29 || !isStar(month.Text) {
		return nil
	}
	missing := map[int]string{29: "February has it in leap years only", 30: "February has none", 31: "five months have none"}[n]
	return []finding{{CodeShortMonth, fmt.Sprintf("day of month %d: %s", n, missing),
		"for the last day of a month run on 28-31 and let the job check the date", day.Text, day.Offset}}
}

// rareAfter is the distance of the next tick from which it was probably meant to come sooner.
const rareAfter = 330 * 24 * time.Hour

func lintRare(text string, schedule *cronspec.Schedule, now time.Time) []finding {
	next := schedule.Next(now)
	if next.IsZero() || next.Sub(now) <= rareAfter {
		return nil
	}
	return []finding{{CodeRare, fmt.Sprintf("%q is next due on %s, in %d days", text,
		next.In(schedule.Location()).Format(time.DateOnly), int(next.Sub(now).Hours()/24)),
		"cron text has no year; for a single run: lockstep enqueue JOB --at TIME", "", 0}}
}

// lintClock finds times that a clock skips or shows twice within a year. It ignores the first
// instant of either period, because a run at 02:00 then starts at its usual time.
func lintClock(text string, schedule *cronspec.Schedule, now time.Time) []finding {
	zone := schedule.Location()
	if zone == time.UTC || schedule.FollowsRealTime() {
		return nil
	}
	// its ticks are wall times, counted as if they were UTC
	wall, err := cronspec.Parse(text, time.UTC)
	if err != nil {
		return nil
	}
	for at := now; ; {
		_, change := at.In(zone).ZoneBounds()
		if change.IsZero() || !change.After(at) || change.Sub(now) > 366*24*time.Hour {
			return nil
		}
		at = change
		_, before := change.Add(-time.Second).In(zone).Zone()
		_, after := change.In(zone).Zone()
		from, to := change.Unix()+int64(min(before, after)), change.Unix()+int64(max(before, after))
		tick := wall.Next(time.Unix(from, 0))
		if tick.IsZero() || tick.Unix() >= to {
			continue
		}
		clock := func(unix int64) string { return time.Unix(unix, 0).UTC().Format("15:04") }
		f := finding{code: CodeClockChange, hint: fmt.Sprintf("a time outside of %s to %s occurs once every day", clock(from), clock(to))}
		day := tick.Format("Mon 2006-01-02")
		if after > before {
			f.message = fmt.Sprintf("the clocks of %s skip %s on %s: it runs at %s then", zone, clock(tick.Unix()), day, clock(to))
		} else {
			f.message = fmt.Sprintf("the clocks of %s show %s twice on %s: it runs only the first time", zone, clock(tick.Unix()), day)
		}
		return []finding{f}
	}
}
