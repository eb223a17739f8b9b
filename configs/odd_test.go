package configs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// If every load read a pipe, the second load would wait forever.
func TestPipesAreReadOnlyOnce(t *testing.T) {
	t.Parallel()
	dir := writeFiles(t, map[string]string{"includes.yaml": "include: [pipe.yaml]", "pattern.yaml": "include: [p*e.yaml]"})
	pipe := filepath.Join(dir, "pipe.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"that a worker is given": {Paths: []string{pipe}, Inputs: new(Inputs)},
		"that is included":       {Paths: []string{filepath.Join(dir, "includes.yaml")}},
		"that a pattern matches": {Paths: []string{filepath.Join(dir, "pattern.yaml")}},
		"in a folder":            {Paths: []string{dir}},
	} {
		o.Environ = []string{}
		if _, err := Load(o); err == nil || !strings.Contains(err.Error(), "which can be read only once") {
			t.Errorf("a pipe %s: got %v", name, err)
		}
	}
	written := make(chan error, 1)
	go func() { written <- os.WriteFile(pipe, []byte("jobs: {a: {command: [x]}}"), 0) }()
	c, err := Load(Options{Paths: []string{pipe}, Environ: []string{}})
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err != nil || len(c.Jobs) != 1 {
		t.Errorf("a pipe that is named: got %v, %v", c, err)
	}
	if _, err := Load(Options{Paths: []string{os.DevNull}, Environ: []string{}, Inputs: new(Inputs)}); err != nil {
		t.Errorf("%s: %v", os.DevNull, err)
	}
}

func TestOnlyTheFirstOfManyProblemsAreReported(t *testing.T) {
	t.Parallel()
	var l loader
	part := l.aside()
	for i := range problemsMost + 500 {
		severity := SeverityWarning
		if i%10 == 0 {
			severity = SeverityError
		}
		part.add(Problem{Origin: Origin{File: "a.yaml", Line: i + 1}, Severity: severity, Code: CodeUnknownKey}, "")
	}
	l.add(Problem{Origin: Origin{File: "b.yaml"}, Severity: SeverityError, Code: CodeUnknownKey}, "")
	l.take(part)
	found := l.sorted([]string{"a.yaml", "b.yaml"})
	last := found[len(found)-1]
	want := "a.yaml: error: 50 errors and 451 warnings more follow, and are not listed [and-more]"
	if len(found) != problemsMost+1 || last.String() != want {
		t.Errorf("got %d problems, the last is %s; want %s", len(found), last, want)
	}
}

func TestPathsWithoutAFile(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"":  `"": error: the path is empty`,
		"-": "-: error: cannot be read: no such file or directory; write /dev/stdin for standard input",
	} {
		if _, err := Load(Options{Paths: []string{path}, Environ: []string{}}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", path, err, want)
		}
	}
}
