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

// texts is a job with texts of every role.
func texts() *jobs.Job {
	return &jobs.Job{
		Name: "j", Description: "d", Command: []string{"a", "b"}, Env: map[string]string{"B": "c", "A": "d"},
		HTTP: &jobs.HTTP{Method: "POST", URL: "e", Headers: map[string]string{"X.Y": "f"}},
		Args: json.RawMessage(`{"n":1.50, "list":[0,{"k":"g"},["h"]], "b":"<i>"}`), Queue: "q",
	}
}

func TestMapTextsVisitsEachTextOnce(t *testing.T) {
	t.Parallel()
	job := texts()
	var got []string
	mapped, err := job.MapTexts(true, func(text jobs.Text) (string, error) {
		got = append(got, text.Key()+" "+text.Name()+" "+text.Before+"="+text.Value)
		return strings.ToUpper(text.Value), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"command[0] command =a", "command[1] command a=b", "http.url url =e", "http.headers.X.Y X.Y =f", "env.A A =d", "env.B B =c",
		"args.b b =<i>", "args.list[1].k k =g", "args.list[2][0] list =h",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	after := texts()
	after.Command, after.Env = []string{"A", "B"}, map[string]string{"B": "C", "A": "D"}
	after.HTTP.URL, after.HTTP.Headers = "E", map[string]string{"X.Y": "F"}
	after.Args = json.RawMessage(`{"b":"<I>","list":[0,{"k":"G"},["H"]],"n":1.50}`)
	if !reflect.DeepEqual(mapped, after) {
		t.Errorf("got %+v %s\nwant %+v", mapped, mapped.Args, after)
	}
	if !reflect.DeepEqual(job, texts()) {
		t.Errorf("the job itself was changed: %+v", job)
	}
}

func TestMapTextsKeepsTheBytesOfArgsThatDoNotChange(t *testing.T) {
	t.Parallel()
	for _, inArgs := range []bool{true, false} {
		mapped, err := texts().MapTexts(inArgs, func(text jobs.Text) (string, error) {
			if !inArgs && text.Role == jobs.Arg {
				t.Errorf("the args were visited: %s", text.Key())
			}
			return text.Value, nil
		})
		if err != nil || !reflect.DeepEqual(mapped, texts()) {
			t.Errorf("got %+v, %v", mapped, err)
		}
	}
}

func TestMapTextsEndsAtTheFirstError(t *testing.T) {
	t.Parallel()
	bad := errors.New("bad")
	visited := 0
	mapped, err := texts().MapTexts(true, func(text jobs.Text) (string, error) {
		visited++
		return "", bad
	})
	if mapped != nil || !errors.Is(err, bad) || visited != 1 {
		t.Errorf("got %+v, %v after %d texts", mapped, err, visited)
	}
	job := texts()
	job.Args = json.RawMessage(`{"a":`)
	if _, err := job.MapTexts(true, func(text jobs.Text) (string, error) { return text.Value, nil }); err == nil || !strings.HasPrefix(err.Error(), "args: ") {
		t.Errorf("got %v for args that are not JSON", err)
	}
}
