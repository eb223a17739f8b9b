package cronspec_test

import (
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

func TestShortestGap(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"* * * * *":          time.Minute,
		"*/7 * * * *":        4 * time.Minute, // from :56 to the full hour
		"0 2 * * *":          24 * time.Hour,
		"0,59 0,23 1,31 * *": time.Minute, // from one month to the next
		"0 0 29 2 *":         4*365*24*time.Hour + 24*time.Hour,
		"*/5 * * * * *":      5 * time.Second,
	} {
		schedule, err := cronspec.Parse(text, time.UTC)
		if err != nil {
			t.Fatal(err)
		}
		if got := schedule.ShortestGap(); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
	zone, err := cronspec.LoadZone("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	schedule, err := cronspec.Parse("0 2 * * *", zone)
	if err != nil {
		t.Fatal(err)
	}
	if got := schedule.ShortestGap(); got != 23*time.Hour {
		t.Errorf("daily in Berlin: %v, want 23h, when the clocks go forward", got)
	}
	every, err := cronspec.Every(90 * time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if got := every.ShortestGap(); got != 90*time.Minute {
		t.Errorf("every 90m: %v", got)
	}
}
