package cmd

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"lockstep/configs"
	"lockstep/jobs"
)

var update = flag.Bool("update", false, "write the promise into the READMEs")

// TestThePromiseIsOneText compares the READMEs' copies of the promise with their source. With
// -update, which go generate passes, it writes them.
func TestThePromiseIsOneText(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- The promise: edit cmd/promise.md, then run make generate. -->\n", "<!-- The end of the promise. -->\n"
	for _, path := range []string{"../README.md", "../scheduler/README.md"} {
		text, err := os.ReadFile(path)
		must(t, err)
		before, rest, began := strings.Cut(string(text), begin)
		got, after, ended := strings.Cut(rest, end)
		switch {
		case !began || !ended:
			t.Errorf("%s has no promise between %q and %q", path, begin, end)
		case *update:
			must(t, os.WriteFile(path, []byte(before+begin+promise+end+after), 0o644))
		case got != promise:
			t.Errorf("the promise in %s differs from cmd/promise.md: run make generate", path)
		}
	}
}

// TestHelpHasTheWholePromise compares the words of the help with those of the source, and finds the
// marks of Markdown that a terminal would show.
func TestHelpHasTheWholePromise(t *testing.T) {
	t.Parallel()
	plain := plainPromise()
	mark := regexp.MustCompile("[*`#]|\\]\\(")
	if found := mark.FindString(plain); found != "" {
		t.Errorf("the help shows %q:\n%s", found, plain)
	}
	want := strings.NewReplacer("What is promised", "Promised:", "What is not promised", "Not promised:").Replace(promise)
	if got, want := strings.Fields(plain), strings.Fields(mark.ReplaceAllString(want, "")); !slices.Equal(got, want) {
		t.Errorf("help guarantees has the words\n%q\nwant\n%q", got, want)
	}
	for line := range strings.Lines(plain) {
		if width := len([]rune(strings.TrimRight(line, "\n"))); width > 120 {
			t.Errorf("a line of help guarantees has %d columns: %s", width, line)
		}
	}
}

// TestReadmeLinksExist looks up each link to a file or a section, and each path of a file, in the
// READMEs.
func TestReadmeLinksExist(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^):#]*)(?:#([^)]*))?\)`)
	path := regexp.MustCompile("`((?:[a-z0-9_]+/)+[a-z0-9_]+\\.(?:go|lua|md|txtar))`")
	links := 0
	for _, readme := range []string{"../README.md", "../configs/README.md", "../configs/deploy/README.md", "../locks/README.md", "../scheduler/README.md"} {
		text, err := os.ReadFile(readme)
		must(t, err)
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			links++
			target := readme
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(readme), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", readme, m[1], err)
			} else if m[2] != "" && !slices.Contains(sections(t, target), m[2]) {
				t.Errorf("%s links to %s, which has no section #%s", readme, target, m[2])
			}
		}
		for _, m := range path.FindAllStringSubmatch(string(text), -1) {
			links++
			if _, err := os.Stat(filepath.Join("..", m[1])); err != nil {
				t.Errorf("%s names a file: %v", readme, err)
			}
		}
	}
	if links < 14 {
		t.Errorf("checked %d links, want all of the READMEs'", links)
	}
}

// sections returns the anchors that GitHub makes of the headings of a Markdown file.
func sections(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	var list []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(string(text), -1) {
		anchor := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(anchor, " ", "-"))
	}
	return list
}

// fence is one block of the README between ``` lines.
type fence struct{ language, text string }

func readmeFences(t *testing.T) []fence {
	t.Helper()
	return fencesOf(t, "../README.md")
}

func fencesOf(t *testing.T, path string) []fence {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var fences []fence
	for _, m := range regexp.MustCompile("(?ms)^```(\\w*)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		fences = append(fences, fence{m[1], m[2]})
	}
	if len(fences) < 8 {
		t.Fatalf("found %d blocks in %s", len(fences), path)
	}
	return fences
}

func TestReadmeCommandsExist(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	commands := 0
	for _, f := range append(readmeFences(t), fencesOf(t, "../configs/deploy/README.md")...) {
		if f.language != "" {
			continue
		}
		for line := range strings.Lines(f.text) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			line, _, _ = strings.Cut(line, "   ") // its explanation follows
			line = strings.TrimPrefix(line, "go run ./cmd/")
			if args, ok := strings.CutPrefix(line, "make "); ok {
				commands++
				target, settings, _ := strings.Cut(args, " ")
				if !strings.Contains(string(makefile), "\n"+target+":") {
					t.Errorf("%q: the Makefile has no target %s", line, target)
				}
				set := make(map[string]string)
				for _, setting := range words(settings) {
					name, value, _ := strings.Cut(setting, "=")
					set[name] = value
					if !strings.Contains(string(makefile), "$("+name+")") {
						t.Errorf("%q: the Makefile does not use %s", line, name)
					}
				}
				if name := set["RUN"]; name != "" && !hasTest(t, filepath.Join("..", set["PKG"]), name) {
					t.Errorf("%q: %s has no test of this name", line, set["PKG"])
				}
			}
			if args, ok := strings.CutPrefix(line, "lockstep "); ok && !strings.HasSuffix(strings.Fields(args)[0], ":") {
				commands++
				if err := knows(t, words(args)); err != nil {
					t.Errorf("%q: %v", line, err)
				}
			}
		}
	}
	if commands < 14 {
		t.Errorf("checked %d commands, want all of the README's", commands)
	}
}

// hasTest reports whether a test file in this folder defines the test.
func hasTest(t *testing.T, folder, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(source), "\nfunc "+name+"(t *testing.T)")
	})
}

// TestMakeRunsOneTestByItsName reads the command that make would run. The name must match as a
// whole, and only the command line of make may limit the tests: CI inherits its environment.
func TestMakeRunsOneTestByItsName(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("make"); err != nil && !allTests() {
		t.Skip("make is missing")
	}
	for _, c := range []struct {
		args    []string
		environ string
		want    []string
	}{
		{args: []string{"test", "RUN=TestName", "PKG=./locks"}, want: []string{
			"go test -race -vet=off -p 2 -timeout 45m -count=1 -run '^TestName$' ./locks"}},
		{args: []string{"test-short", "RUN=TestName/Case"}, want: []string{
			"go test -short -count=1 -run '^TestName/Case$' ./..."}},
		{args: []string{"test"}, environ: "RUN=TestName", want: []string{
			"go test -race -vet=off -p 2 -timeout 45m ./..."}},
	} {
		show := exec.CommandContext(t.Context(), "make", append([]string{"-n", "-C", ".."}, c.args...)...)
		show.Env = []string{"PATH=" + os.Getenv("PATH"), c.environ}
		out, err := show.CombinedOutput()
		if err != nil {
			t.Fatalf("make %q: %v\n%s", c.args, err, out)
		}
		commands := strings.Join(strings.Fields(string(out)), " ")
		for _, want := range c.want {
			if !strings.Contains(commands, want) {
				t.Errorf("make %q, with %q in its environment, does not run %q but:\n%s", c.args, c.environ, want, out)
			}
		}
	}
}

// knows checks that the tool has this command with these flags. It runs nothing.
func knows(t *testing.T, args []string) error {
	t.Helper()
	tool := &tool{handlers: jobs.NewRegistry(), stdin: strings.NewReader(""), stdout: t.Output(), stderr: t.Output()}
	cmd, rest, err := tool.root().Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if !cmd.HasParent() || cmd.RunE == nil && cmd.Run == nil {
		return cobra.NoArgs(cmd, cmd.Flags().Args())
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// words splits a command line as a shell does, as far as the README needs it.
func words(line string) []string {
	var out []string
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		out = append(out, m[1]+m[2]+m[3])
	}
	return out
}

func TestReadmeConfigIsValid(t *testing.T) {
	t.Parallel()
	defined := 0
	for _, f := range readmeFences(t) {
		if f.language != "yaml" {
			continue
		}
		path := writeFile(t, "lockstep.yaml", f.text)
		config, err := configs.Load(configs.Options{Paths: []string{path}, Environ: []string{}})
		if err != nil {
			t.Fatalf("%v\nin:\n%s", err, f.text)
		}
		if n := len(config.Warnings.List); n > 0 {
			t.Errorf("%d warnings: %v\nin:\n%s", n, config.Warnings.List, f.text)
		}
		defined += len(config.Jobs)
	}
	if defined == 0 {
		t.Error("there is no job in the README")
	}
}

func TestReadmeProgramBuilds(t *testing.T) {
	t.Parallel()
	for _, f := range readmeFences(t) {
		if f.language != "go" {
			continue
		}
		program := f.text + "\nfunc settle(context.Context, *sql.DB, []int, locks.Token) error { return nil }\n"
		program = strings.Replace(program, "\t\"lockstep/jobs\"\n", "\t\"lockstep/jobs\"\n\t\"lockstep/locks\"\n", 1)
		// As a package of this module that is not on disk, it needs no go.mod of its own.
		here, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		overlay, err := json.Marshal(map[string]map[string]string{
			"Replace": {filepath.Join(here, "readme", "main.go"): writeFile(t, "main.go", program)},
		})
		if err != nil {
			t.Fatal(err)
		}
		build := exec.CommandContext(t.Context(), "go", "build", "-overlay", writeFile(t, "overlay.json", string(overlay)),
			"-o", filepath.Join(t.TempDir(), "program"), "./readme")
		// As make build does: the other packages are compiled already.
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
}
