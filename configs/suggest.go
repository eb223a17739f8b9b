package configs

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agnivade/levenshtein"

	"lockstep/scheduler/cronspec"
)

func didYouMean(name string) string { return fmt.Sprintf("did you mean %q?", name) }

// quote formats any value on one short line.
func quote(s string) string {
	const limit = 100
	if runes := []rune(s); len(runes) > limit {
		return strconv.Quote(string(runes[:limit]) + "...")
	}
	return strconv.Quote(s)
}

// nearest returns the candidate that name was probably meant to be, or "" if none is near. Of
// equally near candidates it returns the first.
func nearest(name string, candidates []string) string {
	plain := plainKey(name)
	// shedule -> schedule and time_out -> timeout, but not jitter -> timeout.
	allowed := 1 + len(plain)/4
	if len(plain) < 3 {
		allowed = 0
	}
	best, least := "", allowed+1
	for _, c := range candidates {
		other := plainKey(c)
		if other == plain {
			return c
		}
		d := levenshtein.ComputeDistance(plain, other)
		if d == 2 && len(plain) < 5 && !sameLetters(plain, other) {
			continue // half of a short word differs: wait, fail
		}
		if d < least {
			best, least = c, d
		}
	}
	if best != "" {
		return best
	}
	for _, c := range candidates {
		other := plainKey(c)
		if min(len(plain), len(other)) >= 3 && (strings.HasPrefix(other, plain) || strings.HasPrefix(plain, other)) {
			return c // desc -> description, warning -> warn
		}
	}
	return ""
}

// sameLetters reports whether two words differ only in the order of their letters.
func sameLetters(a, b string) bool {
	x, y := []rune(a), []rune(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// plainKey removes differences in spelling: maxDelay, Max-Delay and max_delay are equal.
func plainKey(name string) string {
	var b strings.Builder
	lower := false
	for _, r := range name {
		if unicode.IsUpper(r) && lower {
			b.WriteByte('_')
		}
		lower = unicode.IsLower(r)
		if r == '-' || r == ' ' {
			r = '_'
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// otherWords maps the names of keys in other tools to our keys, where spelling alone does not lead
// to them. Each has one or more keys, the most probable one first.
var otherWords = map[string]string{
	"cron": "schedule", "crontab": "schedule", "interval": "every", "tz": "timezone", "time_zone": "timezone",
	"cmd": "command", "exec": "command", "run": "command", "script": "command", "shell": "command",
	"webhook": "http", "uri": "url", "environment": "env", "environ": "env", "variables": "env",
	"arguments": "args", "params": "args", "payload": "args", "body": "args", "data": "args", "json": "args",
	"retries": "max", "attempts": "max", "max_retries": "max", "max_attempts": "max", "retry_delay": "initial", "delay": "initial",
	"deadline": "timeout", "time_limit": "timeout", "keep": "history output",
	"locks": "lock", "concurrency_policy": "overlap", "task": "handler", "workers": "worker", "tasks": "jobs", "cronjobs": "jobs",
	"suspend": "paused", "suspended": "paused", "disabled": "paused", "priority": "queue", "max": "limit", "count": "limit", "size": "limit",
	"logging": "log", "includes": "include", "default": "defaults", "addr": "listen url", "address": "listen url",
	"bind": "listen", "port": "listen url", "host": "listen url", "hostname": "listen url", "db": "url", "database": "url",
	"slots": "concurrency", "shutdown_timeout": "drain_timeout", "weights": "queues", "ttl": "lease",
	"username": "user", "login": "user", "type": "mode", "method": "mode", "htpasswd": "users_file", "trusted_proxies": "proxies",
}

// noWords maps the names of keys in other tools that have no equivalent here to a remedy.
var noWords = map[string]string{
	"enabled": "leave it out: a job runs, unless it says paused: true", "lockstep": "write its contents at the top level",
	"version": "leave it out: configs have no version",
}

// otherValues maps words of other tools to those of our enums, in the same form.
var otherValues = map[string]string{
	"forbid": "skip", "ignore": "skip", "drop": "skip", "wait": "requeue queue", "parallel": "allow", "concurrent": "allow",
	"cancel": "replace", "kill": "replace", "catch_up": "all", "catchup": "all", "every": "all", "once": "last", "latest": "last",
	"newest": "last", "run_once": "last", "restart": "rerun", "retry": "rerun requeue", "repeat": "rerun", "constant": "fixed",
	"trace": "debug", "verbose": "debug", "notice": "info", "critical": "error", "fatal": "error",
	"plain": "text", "console": "text", "pretty": "text", "logfmt": "text", "off": "none", "disabled": "none",
	"password": "basic", "htpasswd": "basic", "bearer": "token", "oauth": "proxy", "oauth2": "proxy", "oidc": "proxy", "sso": "proxy", "ldap": "proxy",
}

// nearestWord returns the word of an enum that was probably meant, or "".
func nearestWord(s string, enum []string) string {
	for word := range strings.FieldsSeq(otherValues[plainKey(s)]) {
		if slices.Contains(enum, word) {
			return word
		}
	}
	return nearest(s, enum)
}

var (
	// looseDuration matches durations not in Go's syntax: 30, 2 days, 1h 30 min.
	looseDuration = pattern(`^\s*(?:\d+(?:\.\d+)?\s*\pL*\.?[\s,]*)+$`)
	durationPart  = pattern(`(\d+(?:\.\d+)?)\s*(\pL*)`)

	// isoDuration matches ISO 8601 durations: P1D, PT15M.
	isoDuration = pattern(`^P(\d+D)?(?:T(\d+H)?(\d+M)?(\d+S)?)?$`)
)

// durationWords are durations written as a word. 0s means no limit where it is allowed.
var durationWords = map[string]string{
	"minutely": "1m", "hourly": "1h", "daily": "24h", "weekly": "168h", "minute": "1m", "hour": "1h", "day": "24h", "week": "168h",
	"forever": "0s", "never": "0s", "none": "0s", "unlimited": "0s", "infinite": "0s", "infinity": "0s", "inf": "0s", "off": "0s", "disabled": "0s",
}

// durationUnits lists each unit with its names. For a unit that Go lacks, it also has the number of
// the next smaller units in it.
var durationUnits = []struct {
	unit  string
	times float64
	names string
}{
	{"ms", 1, " ms msec msecs millisecond milliseconds "},
	{"s", 1, "  s sec secs second seconds "}, // two blanks: no unit at all
	{"m", 1, " m min mins minute minutes "},
	{"h", 1, " h hr hrs hour hours std "},
	{"h", 24, " d day days "},
	{"h", 24 * 7, " w wk week weeks "},
	{"h", 24 * 365, " y yr year years "},
}

// nearestDuration returns the duration that was probably meant, as text: "30" -> "30s", "2 days" ->
// "48h", or "".
func nearestDuration(s string) string {
	if word := durationWords[strings.ToLower(s)]; word != "" {
		return word
	}
	if m := isoDuration().FindStringSubmatch(s); m != nil {
		s = strings.Join(m[1:], " ")
	}
	if !looseDuration().MatchString(s) {
		return ""
	}
	parts := durationPart().FindAllStringSubmatch(s, -1)
	var texts []string
	for _, part := range parts {
		if text := plainDuration(part[1], part[2]); text != "" && (part[2] != "" || len(parts) == 1) {
			texts = append(texts, text)
		}
	}
	d, err := time.ParseDuration(strings.Join(texts, ""))
	switch {
	case err != nil || len(texts) != len(parts):
		return ""
	case len(texts) == 1:
		return texts[0] // 90s stays 90s
	}
	return cronspec.FormatInterval(d)
}

// plainDuration formats a number of a unit in Go's syntax, or returns "" for an unknown unit.
func plainDuration(number, unit string) string {
	n, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return ""
	}
	for _, u := range durationUnits {
		if strings.Contains(u.names, " "+strings.ToLower(unit)+" ") {
			return strconv.FormatFloat(n*u.times, 'f', -1, 64) + u.unit
		}
	}
	return ""
}
