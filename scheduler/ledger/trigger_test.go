package ledger

import (
	"testing"
	"time"

	"lockstep/jobs"
)

func TestATriggerIsReadAsItWasWritten(t *testing.T) {
	t.Parallel()
	for _, job := range []jobs.Job{
		{Every: time.Second}, {Every: 36 * time.Hour}, {Schedule: "0 2 * * *"}, {Schedule: "@daily", Timezone: "Europe/Berlin"},
		{Schedule: "*/5 0 2 * * MON", Timezone: "America/New_York"}, {}, {Timezone: "Europe/Berlin"},
	} {
		if got := readTrigger(trigger(&job)); got.Every != job.Every || got.Schedule != job.Schedule || got.Timezone != job.Timezone {
			t.Errorf("%q is read as %q %q %v", trigger(&job), got.Schedule, got.Timezone, got.Every)
		}
	}
	if got := readTrigger("x"); got.Scheduled() {
		t.Errorf("a text without a schedule is read as %q", got.Schedule)
	}
}
