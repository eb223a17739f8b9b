package jobs_test

import (
	"slices"
	"testing"

	"lockstep/jobs"
)

func TestAJobWithTwoKindsOfWorkHasOneKind(t *testing.T) {
	t.Parallel()
	for want, job := range map[string]*jobs.Job{
		"command": {Command: []string{"true"}},
		"http":    {Command: []string{"true"}, HTTP: &jobs.HTTP{}},
		"handler": {Command: []string{"true"}, HTTP: &jobs.HTTP{}, Handler: "h"},
		"":        {Env: map[string]string{"A": "b"}},
	} {
		got, need := "", ""
		if kind := job.Kind(); kind != nil {
			got, need = kind.Name, kind.Need(job)
		}
		if got != want || need != job.Handler {
			t.Errorf("%+v: got the kind %q with the need %q, want %q", job, got, need, want)
		}
	}
	if got := jobs.KindNames(); !slices.Equal(got[:3], []string{"command", "http", "handler"}) {
		t.Errorf("got %q, want these three first: a definition with several kinds keeps its kind", got)
	}
}

func TestTheLineOfAJobsWorkHidesTheSecretsOfItsURL(t *testing.T) {
	t.Parallel()
	for want, job := range map[string]*jobs.Job{
		"pg_dump shop":                {Command: []string{"pg_dump", "shop"}},
		"PUT https://(hidden)@h/${X}": {HTTP: &jobs.HTTP{Method: "PUT", URL: "https://u:pw@h/${X}"}},
		"bills.settle":                {Handler: "bills.settle"},
	} {
		if got := job.Kind().Line(job); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
