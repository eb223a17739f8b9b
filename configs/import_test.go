package configs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestImportedFilesAreConfigs imports each archive of testdata/import, compares the result with its
// part "want", and loads it: an imported file has no errors.
func TestImportedFilesAreConfigs(t *testing.T) {
	t.Parallel()
	archives, err := filepath.Glob("testdata/import/*.txtar")
	if err != nil || len(archives) < 4 {
		t.Fatalf("got %d archives, %v", len(archives), err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			t.Parallel()
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			head, want, _ := strings.Cut(string(data), wantLine)
			comment, from, _ := strings.Cut(head, "-- from --\n")
			var o ImportOptions
			environ := []string{}
			for line := range strings.Lines(comment) {
				kind, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
				switch kind {
				case "env":
					environ = strings.Fields(rest)
				case "options":
					o.System = strings.Contains(rest, "system")
					_, o.Timezone, _ = strings.Cut(rest, "timezone=")
				}
			}
			var got []byte
			if strings.Contains(from, "kind: CronJob") {
				if got, err = ImportCronJobs([]byte(from)); err != nil {
					t.Fatal(err)
				}
			} else {
				got = ImportCrontab([]byte(from), o)
			}
			file := filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": string(got)}), "lockstep.yaml")
			if _, err := Load(Options{Paths: []string{file}, Environ: environ}); err != nil {
				t.Errorf("%v\nin:\n%s", err, got)
			}
			if string(got) == want {
				return
			}
			if !*update {
				t.Fatalf("got:\n%s\nwant:\n%s", got, want)
			}
			if err := os.WriteFile(path, []byte(head+wantLine+string(got)), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestManifestsThatAreNotYAMLAreRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"kind: [", "kind: CronJob\nspec: {schedule: [1]}", "kind: {a: b}"} {
		if got, err := ImportCronJobs([]byte(text)); err == nil || !strings.Contains(err.Error(), "manifest 1") {
			t.Errorf("%q: got %q, %v, want an error that names the manifest", text, got, err)
		}
	}
}

// The config from any crontab must load.
func FuzzImportCrontab(f *testing.F) {
	archives, _ := filepath.Glob("testdata/import/*.txtar")
	for _, path := range archives {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		_, from, _ := strings.Cut(string(data), "-- from --\n")
		f.Add(from, false)
		f.Add(from, true)
	}
	file := filepath.Join(f.TempDir(), "lockstep.yaml")
	f.Fuzz(func(t *testing.T, text string, system bool) {
		got := ImportCrontab([]byte(text), ImportOptions{System: system})
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{Paths: []string{file}, Environ: []string{}})
		if err != nil {
			t.Fatalf("%v\nin:\n%s", err, got)
		}
		for _, job := range c.Jobs {
			if !slices.Contains(job.Command, "-c") {
				t.Errorf("job %s runs %q", job.Name, job.Command)
			}
		}
	})
}
