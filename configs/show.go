package configs

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// hidden replaces a secret.
const hidden = jobs.Hidden

// Value is one key with its value, formatted for people: a duration is a text, and a secret is
// hidden.
type Value struct {
	// "worker.concurrency", or for a key of a job "retry.max".
	Key    string
	Value  any
	Origin Origin // the zero Origin means the default
}

// Values returns all settings with their values and origins, in the order of the file types.
func (c *Config) Values() []Value {
	list := make([]Value, len(settingList()))
	for i, setting := range settingList() {
		value := setting.of(c.Settings)
		switch {
		case setting.key == "redis.url":
			value = reflect.ValueOf(c.Settings.Redis.SafeURL())
		case setting.field.rules.secret && value.String() != "":
			value = reflect.ValueOf(hidden)
		}
		list[i] = Value{setting.key, shown(value), c.Origins[setting.key]}
	}
	return list
}

// shown returns a value as users write it.
func shown(v reflect.Value) any {
	switch {
	case v.Type() == durationType:
		return cronspec.FormatInterval(time.Duration(v.Int()))
	case v.Kind() == reflect.String:
		return v.String() // without the name of its type
	}
	return v.Interface()
}

// JobValues returns every key of a job with its value and origin, with all defaults and without
// secrets. It needs [Options.Origins]. It returns nil for an unknown job.
func (c *Config) JobValues(name string) []Value {
	at := slices.IndexFunc(c.Jobs, func(job *jobs.Job) bool { return job.Name == name })
	if at < 0 || c.origins == nil {
		return nil
	}
	f := c.origins.jobs[name]
	values := JobKeys(c.Jobs[at])
	for i := range values {
		path := keyPath(values[i].Key)
		if key, _ := f.find(path...); key != nil {
			values[i].Origin = f.src.origin(key)
		} else if s, key, _ := c.origins.ofDefaults(path...); key != nil {
			values[i].Origin = s.origin(key)
		}
	}
	return values
}

// PermitValues returns the declaration of each permit, sorted by name, with origins. It needs
// [Options.Origins].
func (c *Config) PermitValues() []Value {
	var list []Value
	if c.origins == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(c.Permits)) {
		permit, f := c.Permits[name], c.origins.permits[name]
		for _, v := range []Value{{Key: "limit", Value: permit.Limit}, {Key: "version", Value: permit.Version}, {Key: "description", Value: permit.Description}} {
			if key, _ := written(f.node, v.Key); key != nil {
				v.Origin = f.src.origin(key)
			} else if v.Key == "description" {
				continue // it has no default
			}
			v.Key = "permits." + name + "." + v.Key
			list = append(list, v)
		}
	}
	return list
}

// keyPath splits a key of a job. Only keys below env and headers, which users choose, may contain
// dots.
func keyPath(key string) []string {
	for _, prefix := range []string{"env.", "http.headers."} {
		if name, ok := strings.CutPrefix(key, prefix); ok {
			return append(strings.Split(strings.TrimSuffix(prefix, "."), "."), name)
		}
	}
	return strings.Split(key, ".")
}

// JobKeys returns the keys of a job that have a value, without origins and without secrets. A map
// of texts, such as env, gives one for each of its keys.
func JobKeys(job *jobs.Job) []Value {
	var list []Value
	own := *Redact(job)
	own.Output.Keep = own.Output.Size() // 0 in a definition is the default
	jobKeys(reflect.ValueOf(own), "", &list)
	return list
}

func jobKeys(v reflect.Value, prefix string, list *[]Value) {
	for i := range v.NumField() {
		name, options, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		value, key := v.Field(i), prefix+name
		if name == "" || name == "-" || key == "name" || options != "" && value.IsZero() {
			continue
		}
		if value.Kind() == reflect.Pointer {
			if value.IsNil() {
				continue
			}
			value = value.Elem()
		}
		switch {
		case value.Kind() == reflect.Struct:
			jobKeys(value, key+".", list)
		case key == "output.keep":
			*list = append(*list, Value{Key: key, Value: tailSizes.format(value.Int())})
		case value.Type() == rawType:
			var args any
			decoder := json.NewDecoder(bytes.NewReader(value.Bytes()))
			decoder.UseNumber()
			if decoder.Decode(&args) == nil {
				*list = append(*list, Value{Key: key, Value: args})
			}
		case value.Type() == reflect.TypeFor[map[string]string]():
			m := value.Interface().(map[string]string)
			for _, name := range slices.Sorted(maps.Keys(m)) {
				*list = append(*list, Value{Key: key + "." + name, Value: m[name]})
			}
		default:
			*list = append(*list, Value{Key: key, Value: shown(value)})
		}
	}
}

// Redact returns a copy of a job in which apparent secrets and secret args are hidden. Elsewhere
// ${...} stays, because it is not a secret.
func Redact(job *jobs.Job) *jobs.Job {
	out, err := job.MapTexts(mayHoldSecrets(job.Args), safe)
	if err != nil {
		// The args are not JSON, and are refused later for that reason.
		out, _ = job.MapTexts(false, safe)
	}
	out.Args = job.HideArgs(out.Args)
	return out
}

// safe returns a text of a job without apparent secrets.
func safe(t jobs.Text) (string, error) {
	if t.Role == jobs.URL {
		t.Value = jobs.SafeURL(t.Value)
	}
	if secrecyOf(t) < mustHide {
		return t.Value, nil
	}
	if t.Role == jobs.Word {
		if flag, value, ok := secretFlagOf(t.Value); ok {
			return flag + "=" + withoutPlain(value), nil
		}
		if secrecyOfWord(t.Before, t.Value) < mustHide {
			return hidden, nil // a whole command line
		}
	}
	return withoutPlain(t.Value), nil
}

// withoutPlain hides a text, except for its ${...}.
func withoutPlain(text string) string {
	list, err := jobs.Pieces(text)
	if err != nil || !slices.ContainsFunc(list, isReference) {
		return hidden
	}
	var b strings.Builder
	for i, p := range list {
		if isReference(p) {
			b.WriteString(p.Source)
		} else if i == 0 || isReference(list[i-1]) {
			b.WriteString(hidden)
		}
	}
	return b.String()
}

// Change is one key of a job with different values in two definitions. A side without the key is
// nil.
type Change struct {
	Key string `json:"key"`
	Old any    `json:"old"`
	New any    `json:"new"`
}

// Changes compares two definitions of a job, key by key, in the order of the keys. Secrets that
// differ are hidden on both sides but still count as a change.
func Changes(before, after *jobs.Job) []Change {
	var was, is []Value
	jobKeys(reflect.ValueOf(*before), "", &was)
	jobKeys(reflect.ValueOf(*after), "", &is)
	safe := make(map[string][2]any)
	for side, list := range [][]Value{JobKeys(before), JobKeys(after)} {
		for _, v := range list {
			pair := safe[v.Key]
			pair[side] = v.Value
			safe[v.Key] = pair
		}
	}
	find := func(list []Value, key string) any {
		for _, v := range list {
			if v.Key == key {
				return v.Value
			}
		}
		return nil
	}
	var changes []Change
	for _, v := range is {
		if !reflect.DeepEqual(find(was, v.Key), v.Value) {
			changes = append(changes, Change{v.Key, safe[v.Key][0], safe[v.Key][1]})
		}
	}
	for _, v := range was {
		if find(is, v.Key) == nil {
			changes = append(changes, Change{v.Key, safe[v.Key][0], safe[v.Key][1]})
		}
	}
	return changes
}
