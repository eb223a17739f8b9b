package configs

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lockstep/jobs"

	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write what Load says into the files under testdata")

// TestProblemsOfWrongConfigs loads each archive of testdata/wrong and compares the problems with
// its part "want".
//
// An archive has the files of a config, each after a line "-- name --". The test loads
// lockstep.yaml, unless the comment at the top has a line "paths:". A line "env:" is the
// environment and a line "flags:" the command line, both separated by blanks. A line "handlers:"
// names those of the binary. "settings only" is that option. The time is 21 November 2026. KIND is
// the list of the kinds of work.
func TestProblemsOfWrongConfigs(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/wrong/*.txtar")
	if err != nil || len(archives) < 40 {
		t.Fatalf("got %d archives, %v", len(archives), err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			c := unpack(t, path)
			var got string
			if config, err := Load(c.options); err != nil {
				got = err.Error()
			} else {
				got = config.Warnings.Error()
			}
			got = strings.NewReplacer(c.dir+"/", "", strings.Join(jobs.KindNames(), ", "), "KIND").Replace(got) + "\n"
			if strings.Contains(got, "SECRET") {
				t.Errorf("a secret was revealed:\n%s", got)
			}
			if got == c.want {
				return
			}
			if !*update {
				t.Fatalf("got:\n%s\nwant:\n%s", got, c.want)
			}
			if err := os.WriteFile(path, []byte(c.head+wantLine+got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

const wantLine = "-- want --\n"

// unpacked is an archive as files in its own folder.
type unpacked struct {
	dir     string
	head    string // everything except the part "want"
	comment string
	want    string
	options Options
}

func unpack(t *testing.T, path string) *unpacked {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	u := &unpacked{dir: t.TempDir()}
	u.head, u.want, _ = strings.Cut(string(data), wantLine)

	name := ""
	files := make(map[string]*strings.Builder)
	for line := range strings.Lines(u.head) {
		if begin, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(begin, " --\n") {
			name = strings.TrimSuffix(begin, " --\n")
			files[name] = new(strings.Builder)
		} else if name == "" {
			u.comment += line
		} else {
			files[name].WriteString(line)
		}
	}
	for name, text := range files {
		path := filepath.Join(u.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	u.options = Options{Environ: []string{}, Now: time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)}
	paths := []string{"lockstep.yaml"}
	for line := range strings.Lines(u.comment) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		words := strings.Fields(rest)
		switch kind {
		case "paths":
			paths = words
		case "env":
			u.options.Environ = words
		case "flags":
			u.options.Flags, u.options.FlagKeys = testFlags(t, words...)
		case "handlers":
			u.options.Handlers = words
		case "settings only":
			u.options.SettingsOnly = true
		}
	}
	for _, p := range paths {
		u.options.Paths = append(u.options.Paths, filepath.Join(u.dir, p))
	}
	return u
}

// testFlags returns a command line like that of the worker.
func testFlags(t *testing.T, args ...string) (*pflag.FlagSet, map[string]string) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("redis", "", "")
	flags.Int("concurrency", 8, "")
	flags.String("queues", "", "")
	flags.StringToInt("weights", nil, "")
	flags.Duration("lease", 0, "")
	flags.String("lease-text", "", "")
	flags.Bool("watch", false, "")
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return flags, map[string]string{
		"redis": "redis.url", "concurrency": "worker.concurrency", "queues": "worker.queues",
		"weights": "worker.queues", "lease": "locks.lease", "lease-text": "locks.lease",
	}
}
