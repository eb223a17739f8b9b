package worker

import (
	"encoding/json"
	"testing"

	"lockstep/jobs"
)

func TestAnErrorQuotesTheDefinitionWithoutItsSecrets(t *testing.T) {
	t.Parallel()
	raw := &jobs.Job{
		Name: "j", HTTP: &jobs.HTTP{URL: "https://${HOST}/?key=${KEY:-none}&a=$$1", Headers: map[string]string{"Authorization": "Bearer ${file:/t}"}},
		Env: map[string]string{"SHORT": "${A}"}, Args: json.RawMessage(`{"list": ["x ${B}"]}`),
	}
	expanded := &jobs.Job{
		Name: "j", HTTP: &jobs.HTTP{URL: "https://shop.internal/?key=s3c/r3t+&a=$1", Headers: map[string]string{"Authorization": "Bearer t0k3n"}},
		Env: map[string]string{"SHORT": "abc"}, Args: json.RawMessage(`{"list": ["x in args"]}`),
	}
	for text, want := range map[string]string{
		`Get "https://shop.internal/?key=s3c/r3t+&a=$1": refused`:     `Get "https://${HOST}/?key=${KEY:-none}&a=$1": refused`,
		`Get "https://shop.internal/?key=s3c%2Fr3t%2B&a=$1": refused`: `Get "https://${HOST}/?key=${KEY:-none}&a=$1": refused`,
		"t0k3n, in args": "${file:/t}, ${B}",
		"abc":            "abc",
		"exit status 1":  "exit status 1",
	} {
		if got := veil(raw, expanded).Replace(text); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
	if got := veil(raw, raw).Replace("https://${HOST}/"); got != "https://${HOST}/" {
		t.Errorf("got %s, want a definition without values left as it is", got)
	}
}
