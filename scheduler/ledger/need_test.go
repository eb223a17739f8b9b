package ledger

import (
	"testing"

	"lockstep/jobs"
)

// Workers of other builds read these texts in Redis.
func TestNeedsKeepTheirTexts(t *testing.T) {
	t.Parallel()
	for want, definition := range map[Need]string{
		"command":              `{"name":"j","command":["a"]}`,
		"http":                 `{"name":"j","command":["a"],"http":{"url":"http://h"}}`,
		"handler h":            `{"name":"j","command":["a"],"http":{"url":"http://h"},"handler":"h"}`,
		"http\x1fb,lock.until": `{"name":"j","http":{"url":"http://h"},"b":1,"lock":{"until":2}}`,
	} {
		job, err := jobs.ReadJob(definition)
		if err != nil {
			t.Fatal(err)
		}
		if got := needOf(job); got != want || got.Kind() != job.Kind().Name || got.Name() != job.Handler || got.Handler() != job.Handler {
			t.Errorf("%s: got %q, which needs %q of the kind %q, want %q", definition, got, got.Name(), got.Kind(), want)
		}
	}
	if got := needOf(&jobs.Job{Name: "j"}); got != "command" {
		t.Errorf("got %q for a definition without work", got)
	}
}
