package cronspec_test

import (
	"archive/zip"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"lockstep/scheduler/cronspec"
)

var update = flag.Bool("update", false, "write zones.txt from the zone files of this Go")

// zonesOf is the Go version that zones.txt is from. Other versions may have more zones.
const zonesOf = "go1.26.8"

func TestZoneNamesAreThoseOfGo(t *testing.T) {
	if !*update && runtime.Version() != zonesOf {
		t.Skipf("zones.txt was written with %s: run with -update, and set zonesOf", zonesOf)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Skip("no go command: ", err)
	}
	archive, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	if err != nil {
		t.Skip("no zone files: ", err)
	}
	defer archive.Close()
	var want []string
	for _, file := range archive.File {
		if !strings.HasSuffix(file.Name, "/") {
			want = append(want, file.Name)
		}
	}
	slices.Sort(want)
	if *update {
		if err := os.WriteFile("zones.txt", []byte(strings.Join(want, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got := zoneNames(t); !slices.Equal(got, want) {
		t.Errorf("zones.txt has %d zones, %s has %d: run with -update", len(got), zonesOf, len(want))
	}
}

func TestEveryZoneLoadsOnce(t *testing.T) {
	for _, name := range zoneNames(t) {
		first, err := cronspec.LoadZone(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if again, _ := cronspec.LoadZone(name); again != first {
			t.Errorf("%s is loaded twice", name)
		}
	}
}

func TestNoNameIsUTC(t *testing.T) {
	if loc, err := cronspec.LoadZone(""); err != nil || loc != time.UTC {
		t.Errorf("got %v, %v", loc, err)
	}
}

func TestLoadZoneRefusesWithASuggestion(t *testing.T) {
	const example = `; write the name of a place, such as "Europe/Berlin"`
	for name, want := range map[string]string{
		"europe/berlin":       `unknown time zone; did you mean "Europe/Berlin"?`,
		" Europe/Berlin":      `unknown time zone; did you mean "Europe/Berlin"?`,
		"Europ/Berlin":        `unknown time zone; did you mean "Europe/Berlin"?`,
		"Europe/Berln":        `unknown time zone; did you mean "Europe/Berlin"?`,
		"Berlin":              `unknown time zone; did you mean "Europe/Berlin"?`,
		"Germany/Berlin":      `unknown time zone; did you mean "Europe/Berlin"?`,
		"Europe/Munich":       `unknown time zone; did you mean "Europe/Berlin"?`,
		"America/New York":    `unknown time zone; did you mean "America/New_York"?`,
		"new-york":            `unknown time zone; did you mean "America/New_York"?`,
		"Amerika/Los_Angeles": `unknown time zone; did you mean "America/Los_Angeles"?`,
		"US/Pacifc":           `unknown time zone; did you mean "US/Pacific"?`,
		"Asia\\Tokyo":         `unknown time zone; did you mean "Asia/Tokyo"?`,
		"Asia/Calcuta":        `unknown time zone; did you mean "Asia/Calcutta"?`,
		"Kolkatta":            `unknown time zone; did you mean "Asia/Kolkata"?`,
		"utc":                 `unknown time zone; did you mean "UTC"?`,
		"PST":                 `unknown time zone; did you mean "America/Los_Angeles"?`,
		"CEST":                `unknown time zone; did you mean "Europe/Berlin"?`,
		"IST":                 `unknown time zone` + example,
		"Asia":                `unknown time zone` + example,
		"Mars/Olympus":        `unknown time zone` + example,
		"../etc/passwd":       `unknown time zone` + example,
		"Local":               `every host has its own, so replicas would disagree on the ticks` + example,
		"localtime":           `every host has its own, so replicas would disagree on the ticks` + example,
		"right/Europe/Berlin": `not on every host; write "Europe/Berlin"`,
		"UTC+2":               `an offset is not a time zone: it has no daylight saving time` + example + `, or "Etc/GMT-2" (the sign is correct: these names invert it)`,
		"-05:00":              `an offset is not a time zone: it has no daylight saving time` + example + `, or "Etc/GMT+5" (the sign is correct: these names invert it)`,
		"+05:30":              `an offset is not a time zone: it has no daylight saving time` + example,
		"+99":                 `an offset is not a time zone: it has no daylight saving time` + example,
	} {
		_, err := cronspec.LoadZone(name)
		if err == nil {
			t.Errorf("%q is accepted", name)
			continue
		}
		if got, ok := errors.AsType[*cronspec.Error](err); !ok || got.Key != "timezone" || got.Text != name ||
			strings.TrimSuffix(got.Problem+"; "+got.Hint, "; ") != want {
			t.Errorf("%q: got %s; %s, want %s", name, got.Problem, got.Hint, want)
		}
		checkError(t, err, name)
	}
}
