package locks_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"lockstep/locks"
)

// knownExamples returns the example functions of this package and of rule that are run: those with
// an output to compare.
func knownExamples(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "rule/example_test.go")
	examples := make(map[string]bool)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Example") {
				continue
			}
			compared := false
			for _, group := range file.Comments {
				compared = compared || group.Pos() > f.Body.Pos() && group.End() < f.Body.End() && strings.HasPrefix(group.Text(), "Output:")
			}
			examples[f.Name.Name] = compared
		}
	}
	return examples
}

func readme(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReadmesStateTheLongestOutageOfTheDefaultLease(t *testing.T) {
	t.Parallel()
	want := fmt.Sprintf("(%.1f s of 15 s)", locks.Outage(15*time.Second).Seconds())
	for _, file := range []string{"README.md", "../scheduler/README.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "2/3 of the lease less the cutoff "+want) {
			t.Errorf("%s does not state the longest outage %s", file, want)
		}
	}
}

func TestEachRowOfTheReadmeHasAnExampleThatRuns(t *testing.T) {
	t.Parallel()
	examples := knownExamples(t)
	_, table, found := strings.Cut(readme(t), "\n## If you know another lock\n")
	if !found {
		t.Fatal("the table is not there")
	}
	named := regexp.MustCompile("`(Example\\w*)`")
	rows := 0
	var known strings.Builder
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| what you know |") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if len(cells) != 4 {
			t.Errorf("%d cells, want 4: %s", len(cells), line)
			continue
		}
		known.WriteString(cells[0] + "\n")
		if !named.MatchString(cells[3]) {
			t.Errorf("no example: %s", line)
		}
	}
	for _, match := range named.FindAllStringSubmatch(table, -1) {
		if compared, there := examples[match[1]]; !there || !compared {
			t.Errorf("%s: there %v, with an output that is compared %v", match[1], there, compared)
		}
	}
	// Locks that people know. A row may be added, but none of these may be removed.
	for _, want := range []string{
		"SETNX with a timestamp", "SET NX PX", "compares and deletes", "`tryLock(bill)`", "`tryLock(bill, timeout)`", "`lock(bill)`",
		"`unLock(bill)`", "of a list of bills", "reentrant lock with holder count", "annotation", "key expressions and prefix",
		"expiration", "waiting, retry count and pause", "`tryLock(wait, lease)`", "fair lock", "multi lock", "read-write lock",
		"semaphore", "fenced lock", "`lockAtMostFor`, `lockAtLeastFor`",
	} {
		if !strings.Contains(known.String(), want) {
			t.Errorf("no row for %s", want)
		}
	}
	if rows < 19 {
		t.Errorf("%d rows were looked at", rows)
	}
}

// Blocks of the README are declarations, or statements of a function in a program that has a
// context, a client of Redis and work to do.
func TestReadmeBuilds(t *testing.T) {
	t.Parallel()
	blocks := regexp.MustCompile("(?ms)^```go\n(.*?)^```$").FindAllStringSubmatch(readme(t), -1)
	if len(blocks) < 3 {
		t.Fatalf("found %d blocks", len(blocks))
	}
	var program strings.Builder
	program.WriteString(`package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/locks"
	"lockstep/locks/rule"
)

const _ = time.Second

func settle(ctx context.Context, _ locks.Token) error { return ctx.Err() }

func main() {}
`)
	for i, block := range blocks {
		if strings.HasPrefix(block[1], "type ") || strings.HasPrefix(block[1], "func ") {
			program.WriteString(block[1])
			continue
		}
		fmt.Fprintf(&program, "\nfunc block%d(ctx context.Context, rdb redis.UniversalClient, client *locks.Client) error {\n%s", i, block[1])
		if !strings.HasPrefix(block[1][strings.LastIndex(strings.TrimSpace(block[1]), "\n")+1:], "return") {
			program.WriteString("return nil\n")
		}
		program.WriteString("}\n")
	}
	// As a package of this module that exists only in an overlay, so that it needs no go.mod of its
	// own.
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	overlay, err := json.Marshal(map[string]map[string]string{
		"Replace": {filepath.Join(here, "readme", "main.go"): write("main.go", program.String())},
	})
	if err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-overlay", write("overlay.json", string(overlay)),
		"-o", filepath.Join(dir, "program"), "./readme")
	// As make build does: the other packages are compiled already.
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s\n%s", err, out, program.String())
	}
}

// Names of these packages in the README's code spans must exist.
func TestNamesInTheReadmeExist(t *testing.T) {
	t.Parallel()
	var source strings.Builder
	// package locks has names for what is in space
	for _, files := range []string{"*.go", "space/*.go", "rule/*.go"} {
		names, err := filepath.Glob(files)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "_test.go") {
				source.Write(text)
			}
		}
	}
	names := regexp.MustCompile("`(?:[A-Z]\\w*\\.)?([A-Z]\\w*)`").FindAllStringSubmatch(readme(t), -1)
	if len(names) < 40 {
		t.Fatalf("found %d names", len(names))
	}
	for _, match := range names {
		name := match[1]
		if strings.HasPrefix(name, "Example") || name == "FLUSHALL" || name == "LOCKSTEP_HOLD" {
			continue
		}
		declared := regexp.MustCompile(`(?m)^(func (\([^)]*\) )?|type |\t+(\w+, )*)` + name + `\b`)
		if !declared.MatchString(source.String()) {
			t.Errorf("%s is not declared", match[0])
		}
	}
}
