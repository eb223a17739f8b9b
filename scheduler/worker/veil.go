package worker

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"lockstep/jobs"
)

// leastVeiled is how long a value is at least that is veiled: shorter ones are no secrets, and stand in many a word.
const leastVeiled = 4

// reference is what stands for a value in a definition: ${NAME}, ${NAME:-default}, ${file:path}.
var reference = regexp.MustCompile(`\$\{[^}]*\}`)

// veil returns what puts the references of a definition back into a text in place of their values. An error may quote what a
// job was to do, as the address that could not be called; it is kept in Redis, which no secret may reach.
func veil(raw, expanded *jobs.Job) *strings.Replacer {
	values := make(map[string]string)
	unveil(plainOf(raw), plainOf(expanded), values)
	longest := func(a, b string) int { return cmp.Or(len(b)-len(a), cmp.Compare(a, b)) } // it may have another one in it
	var pairs []string
	for _, value := range slices.SortedFunc(maps.Keys(values), longest) {
		if name := values[value]; len(value) >= leastVeiled {
			pairs = append(pairs, value, name, url.QueryEscape(value), name, url.PathEscape(value), name)
		}
	}
	return strings.NewReplacer(pairs...)
}

// plainOf returns a definition as JSON has it.
func plainOf(job *jobs.Job) (plain any) {
	text, err := json.Marshal(job)
	if err == nil {
		err = json.Unmarshal(text, &plain)
	}
	if err != nil {
		panic("worker: a definition is plain data: " + err.Error())
	}
	return plain
}

// unveil collects the values of the references in raw, by comparing its texts with those of the same definition expanded.
func unveil(raw, expanded any, values map[string]string) {
	switch raw := raw.(type) {
	case map[string]any:
		if other, same := expanded.(map[string]any); same {
			for key := range raw {
				unveil(raw[key], other[key], values)
			}
		}
	case []any:
		if other, same := expanded.([]any); same && len(other) == len(raw) {
			for i := range raw {
				unveil(raw[i], other[i], values)
			}
		}
	case string:
		other, same := expanded.(string)
		names := reference.FindAllString(raw, -1)
		if !same || raw == other || names == nil {
			return
		}
		var pattern strings.Builder
		for _, part := range reference.Split(raw, -1) {
			if pattern.Len() > 0 {
				pattern.WriteString("(.*)")
			} else {
				pattern.WriteString("(?s)^")
			}
			pattern.WriteString(regexp.QuoteMeta(strings.ReplaceAll(part, "$$", "$")))
		}
		found := regexp.MustCompile(pattern.String() + "$").FindStringSubmatch(other)
		if found == nil { // not as it seemed: then all of it
			values[other] = raw
			return
		}
		for i, name := range names {
			values[found[i+1]] = name
		}
	}
}
