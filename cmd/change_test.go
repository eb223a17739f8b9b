package cmd

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// changes are examples of the README's first lists of changes, in their order. Each is an archive
// in testdata/change, and says what it adds. It edits at most so many files outside of its own
// folder, if it has one.
var changes = []struct {
	archive, folder string
	most            int
}{
	{archive: "executor.txtar", folder: "jobs/file", most: 4},
	{archive: "state.txtar", most: 3},
	{archive: "field.txtar", most: 1},
}

// TestAnExampleOfEachChangeWorks builds the tool with all changes, and runs the command lines of
// their archives with that tool. To build a tool for each change would take a minute more of the
// CPU. So no two changes may edit the same file.
func TestAnExampleOfEachChangeWorks(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it builds a tool")
	}
	var archives []string
	overlay := map[string]map[string]string{"Replace": {}}
	for _, change := range changes {
		archive := filepath.Join("testdata", "change", change.archive)
		archives = append(archives, archive)
		for name, text := range applyChange(t, archive) {
			path := repositoryPath(t, name)
			if overlay["Replace"][path] != "" {
				t.Errorf("%s: a change before it edits %s, too", archive, name)
			}
			overlay["Replace"][path] = writeFile(t, "changed", text)
		}
		if edited := editedBy(t, archive, change.folder); len(edited) > change.most {
			t.Errorf("%s edits %d files, want at most %d: %q", archive, len(edited), change.most, edited)
		}
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(t.TempDir(), "lockstep")
	if err := buildTool(tool, "-overlay", writeFile(t, "overlay.json", string(text))); err != nil {
		t.Fatal(err)
	}
	runScripts(t, tool, archives...)
}

// editedBy returns the files that a change edits outside of its own folder, sorted.
func editedBy(t *testing.T, archive, folder string) []string {
	t.Helper()
	return slices.DeleteFunc(slices.Sorted(maps.Keys(applyChange(t, archive))), func(name string) bool {
		return filepath.Dir(name) == folder
	})
}

// applyChange returns the new and the edited files of an archive, by their path in the repository.
func applyChange(t *testing.T, archive string) map[string]string {
	t.Helper()
	parsed, err := txtar.ParseFile(archive)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, f := range parsed.Files {
		name, isEdit := strings.CutPrefix(f.Name, "edit/")
		switch {
		case isEdit:
			before, err := os.ReadFile(repositoryPath(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if files[name], err = edit(string(before), string(f.Data)); err != nil {
				t.Fatalf("%s: %s: %v", archive, name, err)
			}
		case strings.HasSuffix(name, ".go"):
			files[name] = string(f.Data)
		}
	}
	return files
}

// edit inserts the + lines of a change into a text: behind the line that is above them in the
// change, or in its place if that is a - line. The text must have each other line once.
func edit(text, change string) (string, error) {
	lines, at := strings.Split(text, "\n"), 0
	for line := range strings.Lines(change) {
		line = strings.TrimSuffix(line, "\n")
		if added, ok := strings.CutPrefix(line, "+"); ok {
			lines = slices.Insert(lines, at, added)
			at++
			continue
		}
		line, removed := strings.CutPrefix(line, "-")
		if at = slices.Index(lines, line) + 1; at == 0 || slices.Contains(lines[at:], line) {
			return "", fmt.Errorf("the file must have this line once: %q", line)
		}
		if removed {
			at--
			lines = slices.Delete(lines, at, at+1)
		}
	}
	return strings.Join(lines, "\n"), nil
}

func repositoryPath(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestReadmeListsAreTrue checks that the README's lists of changes name files that exist, tests in
// the packages that have them, and those files that an example of the change edits.
func TestReadmeListsAreTrue(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, lists, found := strings.Cut(string(text), "### How to change things\n")
	if !found {
		t.Fatal("the README has no lists")
	}
	tests := testNames(t)
	var files []string // of one list
	ended := 0
	for _, item := range regexp.MustCompile(`(?m)^- .*(?:\n  .*)*`).FindAllString(lists, -1) {
		names, isTests := strings.CutPrefix(item, "- tests: ")
		if !isTests {
			for _, m := range regexp.MustCompile("`([^` ]+/[^` ]+)`").FindAllStringSubmatch(names, -1) {
				if _, err := os.Stat(repositoryPath(t, m[1])); err != nil {
					t.Error(err)
				}
				files = append(files, m[1])
			}
			continue
		}
		var named []string // tests, in front of their package
		for _, m := range regexp.MustCompile("`([^`]+)`|\\(([^)]+)\\)").FindAllStringSubmatch(names, -1) {
			if m[1] != "" {
				named = append(named, m[1])
				continue
			}
			for _, name := range named {
				if !tests[m[2]+" "+name] {
					t.Errorf("package %s has no test %s", m[2], name)
				}
			}
			named = nil
		}
		if len(files) == 0 || len(named) > 0 || !strings.Contains(names, "`") {
			t.Errorf("a list has no files, or no tests with their package: %q", names)
		}
		slices.Sort(files)
		if ended < len(changes) {
			edited := editedBy(t, filepath.Join("testdata", "change", changes[ended].archive), changes[ended].folder)
			if !slices.EqualFunc(files, edited, func(listed, edited string) bool {
				return edited == listed || strings.HasPrefix(edited, listed+"/")
			}) {
				t.Errorf("the list of %s has %q, want the files that it edits: %q", changes[ended].archive, files, edited)
			}
		}
		ended++
		files = nil
	}
	if ended != 6 {
		t.Errorf("checked %d lists, want 6", ended)
	}
}

// testNames returns all tests of the repository, each as its package, a blank and its name.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := fs.WalkDir(os.DirFS(".."), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, "_test.go") {
			return err
		}
		text, err := os.ReadFile(repositoryPath(t, name))
		for _, m := range function.FindAllSubmatch(text, -1) {
			names[path.Dir(name)+" "+string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
