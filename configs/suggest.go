package configs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/agnivade/levenshtein"
)

func didYouMean(name string) string { return fmt.Sprintf("did you mean %q?", name) }

// quote keeps a value on one line and short, whatever it is.
func quote(s string) string {
	const limit = 100
	if runes := []rune(s); len(runes) > limit {
		return strconv.Quote(string(runes[:limit]) + "...")
	}
	return strconv.Quote(s)
}

// nearest returns the candidate that was most probably meant by name, or "" when none is near. Of equally near ones it
// is the first.
func nearest(name string, candidates []string) string {
	plain := plainKey(name)
	allowed := 1 + len(plain)/4 // shedule -> schedule, time_out -> timeout, but not jitter -> timeout
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

// sameLetters tells whether two words differ in the order of their letters only.
func sameLetters(a, b string) bool {
	x, y := []rune(a), []rune(b)
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// plainKey takes away what people vary in names: maxDelay, Max-Delay and max_delay are one.
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

// otherWords are names that other tools have for our keys and that spelling does not lead to.
var otherWords = map[string]string{
	"cron": "schedule", "crontab": "schedule", "interval": "every", "tz": "timezone", "time_zone": "timezone",
	"cmd": "command", "exec": "command", "run": "command", "script": "command", "shell": "command",
	"webhook": "http", "uri": "url", "environment": "env", "environ": "env", "variables": "env",
	"arguments": "args", "params": "args", "payload": "args", "retries": "retry", "attempts": "max",
	"max_retries": "max", "deadline": "timeout", "time_limit": "timeout", "keep": "history", "locks": "lock",
	"concurrency_policy": "overlap", "task": "handler", "workers": "worker", "tasks": "jobs", "cronjobs": "jobs",
	"logging": "log", "includes": "include", "default": "defaults", "addr": "listen", "address": "listen",
	"bind": "listen", "slots": "concurrency", "shutdown_timeout": "drain_timeout", "weights": "queues", "ttl": "lease",
}

// looseDuration is what people write for a duration without knowing Go's.
var looseDuration = regexp.MustCompile(`^\s*(\d+(?:\.\d+)?)\s*(\pL*)\.?\s*$`)

// durationUnits has each unit with its names, and how many of the next unit below it makes, where Go has none itself.
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
}

// nearestDuration returns the duration that was probably meant, as text: "30" -> "30s", "2 days" -> "48h"; or "".
func nearestDuration(s string) string {
	m := looseDuration.FindStringSubmatch(s)
	if m == nil {
		return ""
	}
	number, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return ""
	}
	for _, u := range durationUnits {
		if strings.Contains(u.names, " "+strings.ToLower(m[2])+" ") {
			text := strconv.FormatFloat(number*u.times, 'f', -1, 64) + u.unit
			if _, err := time.ParseDuration(text); err == nil {
				return text
			}
		}
	}
	return ""
}

// formatDuration writes 15m where [time.Duration] writes 15m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
