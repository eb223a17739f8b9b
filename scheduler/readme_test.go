package scheduler

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeNamesExistingTests looks up each test that the failure table names, in the package
// that precedes the name.
func TestReadmeNamesExistingTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	folders := map[string]string{
		"cmd": "../cmd", "scheduler": ".", "ledger": "ledger", "worker": "worker", "queue": "queue", "locks": "../locks",
		"space": "../locks/space", "command": "../jobs/command",
	}
	tests := make(map[string]string) // the text of a package's test files
	for name, folder := range folders {
		files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tests[name] += string(source)
		}
	}
	// a name without a package belongs to the package of the one before
	word := regexp.MustCompile("(?:`([a-z]+)` )?(Test[A-Za-z0-9]+)")
	named := 0
	for line := range strings.Lines(string(text)) {
		in := ""
		for _, m := range word.FindAllStringSubmatch(line, -1) {
			if m[1] != "" {
				in = m[1]
			}
			named++
			if !strings.Contains(tests[in], "func "+m[2]+"(") {
				t.Errorf("there is no test %s in %s", m[2], in)
			}
		}
	}
	if named == 0 {
		t.Error("no test is named")
	}
}
