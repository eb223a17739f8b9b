package jobs_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"
)

// full is a definition with every key that this build knows.
func full() *jobs.Job {
	job := new(jobs.Job)
	fill(reflect.ValueOf(job).Elem())
	return job
}

// fill gives each exported field of a struct a value other than its zero value. Maps and lists get
// one element, and the key of a map is any.
func fill(value reflect.Value) {
	switch value.Kind() {
	case reflect.Struct:
		for field, inner := range value.Fields() {
			if field.IsExported() {
				fill(inner)
			}
		}
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		fill(value.Elem())
	case reflect.Map:
		element := reflect.New(value.Type().Elem()).Elem()
		fill(element)
		value.Set(reflect.MakeMap(value.Type()))
		value.SetMapIndex(reflect.ValueOf("any").Convert(value.Type().Key()), element)
	case reflect.Slice:
		if value.Type() == reflect.TypeFor[json.RawMessage]() {
			value.SetBytes([]byte(`{"any":{"key":1}}`))
			return
		}
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		fill(value.Index(0))
	case reflect.String:
		value.SetString("full")
	case reflect.Bool:
		value.SetBool(true)
	default:
		value.SetInt(1)
	}
}

func TestUnknownKeysOfADefinitionAreNamed(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(full())
	if err != nil {
		t.Fatal(err)
	}
	mine := keys(t, "shop", key1)
	for name, c := range map[string]struct {
		old, new string
		want     []string
	}{
		"none":                  {"", "", nil},
		"first":                 {`{"name"`, `{"zone":1,"name"`, []string{"zone"}},
		"last":                  {`"paused":true`, `"paused":true,"zone":{"a":1}`, []string{"zone"}},
		"null":                  {`"paused":true`, `"paused":true,"zone":null`, []string{"zone"}},
		"in lock":               {`"lock":{`, `"lock":{"until":1,`, []string{"lock.until"}},
		"in retry":              {`"retry":{`, `"retry":{"on":["x"],`, []string{"retry.on"}},
		"in http":               {`"http":{`, `"http":{"body":"x",`, []string{"http.body"}},
		"in history":            {`"history":{`, `"history":{"bytes":1,`, []string{"history.bytes"}},
		"in output":             {`"output":{`, `"output":{"lines":1,`, []string{"output.lines"}},
		"in notify":             {`"notify":[{`, `"notify":[{"after":"1h",`, []string{"notify.after"}},
		"several":               {`"lock":{`, `"b":1,"a":2,"lock":{"z":1,"y":2,`, []string{"a", "b", "lock.y", "lock.z"}},
		"in a duplicate member": {`"lock":{`, `"lock":{"until":1},"lock":{`, []string{`"until"`}},
		"an invalid signature":  {`{"name"`, `{"signature":"ab","name"`, nil},
	} {
		text := strings.Replace(string(text), c.old, c.new, 1)
		for form, text := range map[string]string{"": text, ", signed": string(mine.Sign("full", []byte(text)))} {
			job, err := jobs.ReadJob(text)
			if err != nil {
				t.Errorf("%s%s: %v", name, form, err)
				continue
			}
			if job.Lock.Permits["any"] != 1 || job.History.Runs != 1 || job.Name != "full" {
				t.Errorf("%s%s: the keys that are known were not read: %+v", name, form, job)
			}
			var unknown *jobs.UnknownKeysError
			if err := job.CheckKeys(); errors.As(err, &unknown) != (c.want != nil) || errors.Is(err, jobs.ErrUnknownKeys) != (c.want != nil) {
				t.Errorf("%s%s: got %v", name, form, err)
			} else if unknown != nil && (!slices.Equal(unknown.Keys, c.want) || !strings.Contains(err.Error(), c.want[0])) {
				t.Errorf("%s%s: got %q in %q, want %q", name, form, unknown.Keys, err, c.want)
			}
			if again, fromRedis, err := job.Definition(); err != nil || !fromRedis || string(again) != text && c.want != nil {
				t.Errorf("%s%s: it is written as %s, %t, %v, want it as it was read", name, form, again, fromRedis, err)
			}
		}
	}
	if err := full().CheckKeys(); err != nil {
		t.Errorf("of a config: %v", err)
	}
	for _, wrong := range []string{"", "x", "[]", `{"name":1,"zone":1}`, `{"zone":1,"name":1}`, `{"name":"j"} x`, `{"name":"j"`} {
		if _, err := jobs.ReadJob(wrong); err == nil {
			t.Errorf("%q is read as a definition", wrong)
		}
	}
}

func TestUnknownLockKeyMakesTheBundleUnknown(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		`{"name":"j","lock":{"exclusive":["a"]}}`: true,
		// The worker that runs it decides.
		`{"name":"j","lock":{"exclusive":["a"]},"zone":1}`:  true,
		`{"name":"j","lock":{"exclusive":["a"],"until":1}}`: false,
	} {
		job, err := jobs.ReadJob(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := job.Resources("j#1", nil); (err == nil) != want || err != nil && (!errors.Is(err, jobs.ErrUnknownKeys) || jobs.IsPermanent(err)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
