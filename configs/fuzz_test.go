package configs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep/jobs"
)

// FuzzLoad looks for a file that makes Load panic, hang, or return something that its own rules
// refuse.
func FuzzLoad(f *testing.F) {
	addFiles(f)
	path := filepath.Join(f.TempDir(), "lockstep.yaml")
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "include") {
			return // it would read files of this machine
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{Paths: []string{path}, Environ: []string{"A=a", "EMPTY="}})
		if err != nil {
			found, ok := errors.AsType[Problems](err)
			if !ok {
				t.Fatalf("got %T: %v", err, err)
			}
			for _, p := range found.List {
				if p.Code == "" || p.Message == "" || p.File != "" && p.Line > 0 && p.Column < 1 || strings.Contains(p.Message, "\n") {
					t.Errorf("odd problem %+v", p)
				}
			}
			_ = found.Error()
			return
		}
		for _, job := range c.Jobs {
			if err := jobs.ValidName(job.Name); err != nil {
				t.Error(err)
			}
			expanded, _, err := Expand(job, lookup(map[string]string{"A": "a", "EMPTY": ""}))
			if err != nil {
				t.Errorf("loaded, but: %v", err)
			} else if len(expanded.Command) != len(job.Command) {
				t.Errorf("got %q from %q", expanded.Command, job.Command)
			}
		}
	})
}

// FuzzSchemaAgreesWithLoad searches for a file that either Load or the schema accepts and the other
// refuses.
func FuzzSchemaAgreesWithLoad(f *testing.F) {
	addFiles(f)
	path := filepath.Join(f.TempDir(), "lockstep.yaml")
	schema := compiledSchema(f)
	f.Fuzz(func(t *testing.T, text string) {
		if strings.Contains(text, "include") || strings.Contains(text, "!") {
			// It would read files of this machine, and a schema does not know YAML tags.
			return
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		root := parseYAML(t, path)
		if root == nil {
			return
		}
		c, err := Load(Options{Paths: []string{path}, Environ: []string{"A=a", "EMPTY="}})
		var found Problems
		if err == nil {
			found = c.Warnings
		} else if !errors.As(err, &found) {
			t.Fatal(err)
		}
		agree(t, schema, root, found.List, text)
	})
}

// addFiles adds the example and all files of testdata as seeds.
func addFiles(f *testing.F) {
	example, err := os.ReadFile("lockstep.example.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(example))
	archives, _ := filepath.Glob("testdata/wrong/*.txtar")
	for _, path := range archives {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		head, _, _ := strings.Cut(string(data), wantLine)
		for _, part := range strings.Split(head, "\n-- ")[1:] {
			_, text, _ := strings.Cut(part, "\n")
			f.Add(text)
		}
		_, text, _ := strings.Cut(head, "-- lockstep.yaml --\n")
		f.Add(text)
	}
}
