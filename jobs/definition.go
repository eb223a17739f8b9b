package jobs

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// A definition in Redis may have been written by a newer build, with keys that this build does not know. What such a key
// asks for, a lock or a limit, this build cannot do. So a worker leaves the definition to a worker that knows the key: it
// makes no ticks by it, adopts no request for it and runs none of its runs. Views read it without the keys, and what copies
// it to another run copies every byte.

// ErrUnknownKeys says that a definition has keys that this build does not know: see [UnknownKeysError].
var ErrUnknownKeys = errors.New("the definition has keys that this build does not know")

// UnknownKeysError is an [ErrUnknownKeys] that names the job and the keys.
type UnknownKeysError struct {
	Job  string
	Keys []string // such as lock.until, sorted
}

func (e *UnknownKeysError) Error() string {
	const most = 5
	shown, more := e.Keys, ""
	if len(shown) > most {
		more = fmt.Sprintf(" and %d more", len(shown)-most)
		shown = shown[:most]
	}
	return fmt.Sprintf("the definition of job %s has keys that this build does not know (%s%s): only a worker that knows them can run it",
		e.Job, strings.Join(shown, ", "), more)
}

// Is makes it an [ErrUnknownKeys].
func (e *UnknownKeysError) Is(target error) bool { return target == ErrUnknownKeys }

// stored is where a definition was read from.
type stored struct {
	read    bool
	text    string   // as Redis has it, where writing the job would give another text: with a signature or unknown keys; else ""
	unknown []string // keys that this build does not know
}

// known has every key that a stored definition may have.
type known struct {
	*Job
	Signature json.RawMessage `json:"signature"` // where it is not the last member, and so is none
}

// ReadJob reads a definition as Redis has it, and remembers that it comes from there: [Job.Definition]. It verifies
// nothing, and leaves out keys that this build does not know: a process that works by the definition asks
// [Job.CheckKeys] first.
func ReadJob(text string) (*Job, error) {
	definition, signature := splitSignature([]byte(text))
	job := new(Job)
	strict := json.NewDecoder(bytes.NewReader(definition))
	strict.DisallowUnknownFields()
	wrong := strict.Decode(&known{Job: job})
	if wrong != nil || strict.InputOffset() != int64(len(definition)) {
		*job = Job{}
		if err := json.Unmarshal(definition, job); err != nil {
			return nil, err
		}
	}
	job.stored.read = true
	if wrong != nil {
		if job.stored.unknown = unknownKeys(definition); len(job.stored.unknown) == 0 { // in a member that a later one replaces
			job.stored.unknown = []string{strings.TrimPrefix(wrong.Error(), "json: unknown field ")}
		}
	}
	if signature != nil || wrong != nil {
		job.stored.text = text
	}
	return job, nil
}

// CheckKeys returns nil for a definition of which this build knows every key, and for every one that was not read from
// Redis. Otherwise the error is an [*UnknownKeysError].
func (j *Job) CheckKeys() error {
	if len(j.stored.unknown) == 0 {
		return nil
	}
	return &UnknownKeysError{j.Name, j.stored.unknown}
}

// checkLockKeys is CheckKeys for the keys of the bundle alone.
func (j *Job) checkLockKeys() error {
	for _, key := range j.stored.unknown {
		if strings.HasPrefix(key, "lock.") {
			return &UnknownKeysError{j.Name, j.stored.unknown}
		}
	}
	return nil
}

// Definition returns the text of a definition for Redis. One that [ReadJob] has read keeps its signature and the keys that
// this build does not know, byte by byte, and fromRedis is true: it must not be signed by a process that has not verified
// it. A job that was read must not be changed before.
func (j *Job) Definition() (text []byte, fromRedis bool, err error) {
	if j.stored.text != "" {
		return []byte(j.stored.text), true, nil
	}
	text, err = json.Marshal(j)
	return text, j.stored.read, err
}

// unknownKeys returns the keys of a definition that this build does not know, in nested objects too, sorted.
func unknownKeys(definition []byte) []string {
	var keys []string
	appendUnknown(&keys, "", reflect.TypeFor[known](), definition)
	slices.Sort(keys)
	return keys
}

// appendUnknown appends the keys of a JSON value that its type has no field for.
func appendUnknown(keys *[]string, path string, t reflect.Type, value json.RawMessage) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	var members map[string]json.RawMessage
	if t.Kind() != reflect.Struct || json.Unmarshal(value, &members) != nil {
		return
	}
	fields := fieldsOf(t)
	for _, key := range slices.Sorted(maps.Keys(members)) {
		field, ok := fields[strings.ToLower(key)]
		if !ok {
			*keys = append(*keys, path+key)
			continue
		}
		appendUnknown(keys, path+key+".", field, members[key])
	}
}

// KnowsKey reports whether this build knows a key of a definition, as [UnknownKeysError] names it.
func KnowsKey(key string) bool {
	t := reflect.TypeFor[known]()
	for part := range strings.SplitSeq(key, ".") {
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return false
		}
		next, found := fieldsOf(t)[strings.ToLower(part)]
		if !found {
			return false
		}
		t = next
	}
	return true
}

// fieldsOf returns the types of a struct's keys, which are in lower case: package json ignores case.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for _, field := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			fields[strings.ToLower(name)] = field.Type
		}
	}
	return fields
}
