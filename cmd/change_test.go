package cmd

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// A new kind of work, and a new field of a run's record, as archives.
var (
	executorChange = filepath.Join("testdata", "change", "executor.txtar")
	fieldChange    = filepath.Join("testdata", "change", "field.txtar")
)

// TestANewKindOfWorkIsOneFolderAndFourFiles builds the tool with a new kind of work, and runs jobs
// of that kind.
func TestANewKindOfWorkIsOneFolderAndFourFiles(t *testing.T) {
	t.Parallel()
	if edited := editedBy(t, executorChange); len(edited) > 4 {
		t.Errorf("a new kind of work edits %d files outside of its folder: %q", len(edited), edited)
	}
	tryChange(t, executorChange)
}

// TestANewFieldOfARunIsOneFile builds the tool with a new field in the record of a run, and has it
// create, update and end runs.
func TestANewFieldOfARunIsOneFile(t *testing.T) {
	t.Parallel()
	if edited := editedBy(t, fieldChange); len(edited) != 1 {
		t.Errorf("a new field of a run edits %d files: %q", len(edited), edited)
	}
	tryChange(t, fieldChange)
}

// editedBy returns the files that a change edits, sorted, without those of its own folder.
func editedBy(t *testing.T, archive string) (edited []string) {
	t.Helper()
	for name := range applyChange(t, archive) {
		if filepath.Dir(name) != "jobs/file" {
			edited = append(edited, name)
		}
	}
	slices.Sort(edited)
	return edited
}

// tryChange builds the tool with a change, and runs the script of the change with it.
func tryChange(t *testing.T, archive string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds a tool")
	}
	overlay := map[string]map[string]string{"Replace": {}}
	for name, text := range applyChange(t, archive) {
		overlay["Replace"][repositoryPath(t, name)] = writeFile(t, "changed.go", text)
	}
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(t.TempDir(), "lockstep")
	if err := buildTool(tool, "-overlay", writeFile(t, "overlay.json", string(text))); err != nil {
		t.Fatal(err)
	}
	runScripts(t, tool, archive)
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
// change, which the text must have once.
func edit(text, change string) (string, error) {
	lines, at := strings.Split(text, "\n"), 0
	for line := range strings.Lines(change) {
		line = strings.TrimSuffix(line, "\n")
		if added, ok := strings.CutPrefix(line, "+"); ok {
			lines = slices.Insert(lines, at, added)
			at++
			continue
		}
		if at = slices.Index(lines, line) + 1; at == 0 || slices.Contains(lines[at:], line) {
			return "", fmt.Errorf("the file must have this line once: %q", line)
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

// TestReadmeListsAreTrue checks that the README's lists of changes name files and tests that exist,
// and those that the example edits, if it has one.
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
	examples := map[int]string{0: executorChange, 2: fieldChange}
	ended := 0
	for line := range strings.Lines(lists) {
		item, ok := strings.CutPrefix(line, "- ")
		if !ok {
			continue
		}
		quoted := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(item, -1)
		names, isTests := strings.CutPrefix(item, "tests: ")
		for _, m := range quoted {
			switch {
			case isTests && !tests[m[1]]:
				t.Errorf("there is no test %s", m[1])
			case !isTests && strings.Contains(m[1], "/"):
				if _, err := os.Stat(repositoryPath(t, m[1])); err != nil {
					t.Error(err)
				}
				files = append(files, m[1])
			}
		}
		if !isTests {
			continue
		}
		if len(files) == 0 || len(quoted) == 0 {
			t.Errorf("a list has no files or no tests: %q", names)
		}
		slices.Sort(files)
		if example := examples[ended]; example != "" && !slices.Equal(files, editedBy(t, example)) {
			t.Errorf("a list names %q, want those of the example: %q", files, editedBy(t, example))
		}
		ended++
		files = nil
	}
	if ended != 5 {
		t.Errorf("checked %d lists, want 5", ended)
	}
}

// testNames returns the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range function.FindAllSubmatch(text, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
