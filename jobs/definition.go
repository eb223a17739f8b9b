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

// A newer build may have written a definition in Redis with keys that this build does not know.
// This build cannot do what such a key asks for, such as a lock or a limit. A worker therefore
// leaves the definition to workers that know the key: it creates no ticks from it, adopts no
// request for it, and runs none of its runs. Views read the definition without the unknown keys.
// Code that copies it to another run copies every byte.

// ErrUnknownKeys says that a definition has keys that this build does not know. See
// [UnknownKeysError].
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

// Is makes the error match [ErrUnknownKeys].
func (e *UnknownKeysError) Is(target error) bool { return target == ErrUnknownKeys }

// stored describes the text in Redis that a definition was read from.
type stored struct {
	read bool
	// text is the text in Redis if encoding the job would give a different one, because of a
	// signature or unknown keys. Otherwise it is empty.
	text    string
	unknown []string // keys that this build does not know
}

// known has every key that a stored definition may have.
type known struct {
	*Job
	// A signature that is not the last member of the object does not count as one.
	Signature json.RawMessage `json:"signature"`
}

// ReadJob reads a definition as Redis stores it, and remembers the stored text for
// [Job.Definition]. It verifies nothing, and it leaves out keys that this build does not know. A
// process that works by the definition must call [Job.CheckKeys] first.
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
		// An unknown key may be inside a member that a later member of the same name replaces.
		if job.stored.unknown = unknownKeys(definition); len(job.stored.unknown) == 0 {
			job.stored.unknown = []string{strings.TrimPrefix(wrong.Error(), "json: unknown field ")}
		}
	}
	if signature != nil || wrong != nil {
		job.stored.text = text
	}
	return job, nil
}

// CheckKeys returns nil if this build knows every key of the definition, or if the definition was
// not read from Redis. Otherwise it returns an [*UnknownKeysError].
func (j *Job) CheckKeys() error {
	if len(j.stored.unknown) == 0 {
		return nil
	}
	return &UnknownKeysError{j.Name, j.stored.unknown}
}

// checkLockKeys is CheckKeys for the keys of the lock alone.
func (j *Job) checkLockKeys() error {
	for _, key := range j.stored.unknown {
		if strings.HasPrefix(key, "lock.") {
			return &UnknownKeysError{j.Name, j.stored.unknown}
		}
	}
	return nil
}

// Definition returns the text of a definition for Redis. A definition that [ReadJob] read keeps its
// signature and its unknown keys, byte by byte, and fromRedis is true: a process must not sign it
// without verifying it first. Do not change a job between ReadJob and Definition.
func (j *Job) Definition() (text []byte, fromRedis bool, err error) {
	if j.stored.text != "" {
		return []byte(j.stored.text), true, nil
	}
	text, err = json.Marshal(j)
	return text, j.stored.read, err
}

// unknownKeys returns the keys that this build does not know, sorted, including those of nested
// objects.
func unknownKeys(definition []byte) []string {
	var keys []string
	appendUnknown(&keys, "", reflect.TypeFor[known](), definition)
	slices.Sort(keys)
	return slices.Compact(keys)
}

// appendUnknown appends the keys of a JSON object, or of the objects in a list, for which their
// type has no field.
func appendUnknown(keys *[]string, path string, t reflect.Type, value json.RawMessage) {
	if objects(t) {
		var list []json.RawMessage
		if json.Unmarshal(value, &list) == nil {
			for _, element := range list {
				appendUnknown(keys, path, t.Elem(), element)
			}
		}
		return
	}
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
		if t.Kind() == reflect.Pointer || objects(t) {
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

// objects reports whether a type is that of a list of objects.
func objects(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct
}

// fieldsOf returns the types of a struct's fields by key. Keys are in lower case, because package
// json ignores case.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	for _, field := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "" {
			fields[strings.ToLower(name)] = field.Type
		}
	}
	return fields
}
