package configs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"lockstep/jobs"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

// compiledSchema returns the validator of the schema that lockstep ships.
func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(SchemaFile, document); err != nil {
		t.Fatal(err)
	}
	compiled, err := compiler.Compile(SchemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return compiled
}

// structural has the codes of problems that a schema can detect: keys, shapes and words. It cannot
// detect problems of relations between values, or of files, variables and clocks.
var structural = []string{CodeUnknownKey, CodeType, CodeNumber, CodeDuration, CodeEnum, CodeEmpty, CodeMissingKey,
	CodeNoWork, CodeTwoKinds, CodeTriggers, CodeTimezone}

// isStructural reports whether the schema must refuse a file with this problem.
func isStructural(p Problem) bool {
	switch {
	case strings.Contains(p.Message, ": its value is not "), strings.Contains(p.Message, `names no program`):
		// Only the code that replaces ${...}, or runs it, can know.
		return false
	case strings.Contains(p.Message, " for args."):
		return false // any JSON value is valid, but some YAML numbers are not
	case p.Code == CodeRange:
		return strings.HasPrefix(p.Message, "bad number") && !strings.Contains(p.Message, "too large")
	}
	return slices.Contains(structural, p.Code)
}

// agree compares the schema with the problems that Load found in one file, given by its nodes.
func agree(t *testing.T, schema *jsonschema.Schema, root *yaml.Node, found []Problem, what string) {
	t.Helper()
	refusal := schema.Validate(plainValue(root))
	var seen []string
	for _, p := range found {
		if isStructural(p) {
			seen = append(seen, p.Error())
		}
	}
	switch {
	case refusal == nil && len(seen) > 0:
		t.Errorf("%s: the schema accepts it, Load reports\n%s", what, strings.Join(seen, "\n"))
	case refusal != nil && len(found) == 0:
		t.Errorf("%s: Load accepts it, the schema reports\n%v", what, refusal)
	}
}

// Error makes a problem printable in tests.
func (p Problem) Error() string { return p.String() }

// parseYAML returns the nodes of a file, or nil for a file that Load cannot parse either.
func parseYAML(t *testing.T, path string) *yaml.Node {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	l := new(loader)
	s := newSource(path, data)
	l.parse(s)
	return s.root
}

func TestSchemaAndLoaderAgreeOnWrongFiles(t *testing.T) {
	t.Parallel()
	schema := compiledSchema(t)
	archives, err := filepath.Glob("testdata/wrong/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal(archives, err)
	}
	checked := 0
	for _, archive := range archives {
		u := unpack(t, archive)
		if u.options.SettingsOnly {
			continue // hides all other problems
		}
		var found Problems
		if c, err := Load(u.options); err == nil {
			found = c.Warnings
		} else if !errors.As(err, &found) {
			t.Fatal(err)
		}
		byFile := make(map[string][]Problem)
		for _, p := range found.List {
			byFile[p.File] = append(byFile[p.File], p)
		}
		for path, problems := range byFile {
			if root := parseYAML(t, path); root != nil {
				checked++
				agree(t, schema, root, problems, filepath.Base(archive)+" "+filepath.Base(path))
			}
		}
	}
	if checked < 50 {
		t.Errorf("checked %d files, want most of the archives", checked)
	}
}

// Each key is tried with its example, its default and many mistakes. The schema and Load must
// agree. A key that is added to the file types needs no other line here.
func TestSchemaAndLoaderAgreeOnEveryKey(t *testing.T) {
	t.Parallel()
	schema := compiledSchema(t)
	dir := t.TempDir()
	tried := 0
	check := func(text, what string, right bool) {
		t.Helper()
		tried++
		path := filepath.Join(dir, fmt.Sprintf("%d.yaml", tried))
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{Paths: []string{path}, Environ: []string{}})
		var found Problems
		if err == nil {
			found = c.Warnings
		} else if !errors.As(err, &found) {
			t.Fatal(err)
		}
		if right && !onlyAboutFiles(found) {
			t.Errorf("%s: %s\n%v", what, text, found)
		}
		agree(t, schema, parseYAML(t, path), found.List, what+"\n"+text)
	}
	wrong := []string{"[]", "{}", "[a]", "{a: b}", "", "true", "'true'", "0", "-1", "3", "1.5", "'3'", "30", "30s", "-5s", "0s", "12 parsecs",
		"''", "wibble wobble", "Europe/Berln", "2026-01-01", "[[a]]", "{a: {b: c}}", "${HOME:-x}", "99999999999999999999"}
	eachKey(reflect.TypeFor[file](), nil, func(path []string, f *field, sf reflect.StructField) {
		name := strings.Join(path, ".")
		if example := sf.Tag.Get("example"); example != "" {
			check(document(path, example), "the example of "+name, true)
		} else if valueType(f.typ).Kind() != reflect.Struct && f.name != "jobs" {
			t.Errorf("%s has no example", name)
		}
		if f.rules.initial != "" {
			check(document(path, yamlText(plain(f.defaultValue()))), "the default of "+name, true)
		} else if valueType(f.typ).Kind() != reflect.Struct && f.rules.required == "" && sf.Tag.Get("unset") == "" && !slices.Contains([]string{"jobs", "include", "url", "limit"}, f.name) {
			t.Errorf("%s has neither a default nor a description of its absence", name)
		}
		for _, word := range f.rules.enum {
			check(document(path, word), "a word of "+name, true)
		}
		for _, value := range wrong {
			check(document(path, value), name, false)
		}
	})
	if tried < 500 {
		t.Errorf("tried %d values", tried)
	}
}

// onlyAboutFiles reports whether the only problems are that an example names something missing on
// this machine, or that it makes no sense alone.
func onlyAboutFiles(found Problems) bool {
	for _, p := range found.List {
		if !slices.Contains([]string{CodeSecretFile, CodeNoFiles, CodeUnused, CodeUnknownQueue, CodeUnknownPermit, CodeUnknownTarget, CodeRetry, CodeAuth, CodeTLS}, p.Code) && !isLint(p) {
			return false
		}
	}
	return true
}

// isLint reports whether a problem is about the meaning of a value, not its form.
func isLint(p Problem) bool { return p.Severity == SeverityWarning && p.Code != CodeEmpty }

// eachKey visits all keys of a file type. Its paths into jobs use the job "a".
func eachKey(t reflect.Type, at []string, visit func(path []string, f *field, sf reflect.StructField)) {
	for _, f := range fieldsOf(t).list {
		_, sf := declaredBy(t, f.index)
		path := append(slices.Clone(at), f.name)
		visit(path, f, sf)
		inner := f.typ
		if inner.Kind() == reflect.Map {
			inner, path = inner.Elem(), append(path, "a")
		}
		if inner = valueType(inner); inner.Kind() == reflect.Struct {
			eachKey(inner, path, visit)
		}
	}
}

// document returns a config file with one key and the other keys that it needs beside it: those
// that their parent requires, and work of a job, the limit of a permit, and the address of a
// target.
func document(path []string, value string) string {
	var b strings.Builder
	parent := reflect.TypeFor[file]()
	for i, key := range path {
		indent := strings.Repeat("  ", i)
		switch {
		case i == 2 && path[0] == "jobs" && !slices.Contains(jobs.KindNames(), key):
			b.WriteString(indent + "command: [a]\n")
		case i == 2 && path[0] == "permits" && key != "limit":
			b.WriteString(indent + "limit: 1\n")
		case i == 2 && path[0] == "notify" && key != "url" && key != "webhook":
			b.WriteString(indent + "webhook: https://example.com\n")
		}
		if parent.Kind() == reflect.Map {
			parent = valueType(parent.Elem())
		} else {
			next := parent
			for _, f := range fieldsOf(parent).list {
				if f.name == key {
					next = valueType(f.typ)
				} else if f.rules.required != "" {
					_, declared := declaredBy(parent, f.index)
					b.WriteString(indent + f.name + ": " + declared.Tag.Get("example") + "\n")
				}
			}
			parent = next
		}
		b.WriteString(indent + key + ":")
		if i < len(path)-1 {
			b.WriteString("\n")
		}
	}
	return b.String() + " " + value + "\n"
}

func TestSchemaAcceptsTheExamples(t *testing.T) {
	t.Parallel()
	schema := compiledSchema(t)
	for _, path := range []string{"lockstep.example.yaml", "../cmd/demo.yaml"} {
		root := parseYAML(t, path)
		if root == nil {
			t.Fatalf("%s cannot be read", path)
		}
		if err := schema.Validate(plainValue(root)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Editors show the description of a key, so each key must have one.
func TestEveryKeyIsDescribed(t *testing.T) {
	t.Parallel()
	docs := fieldDocs(t)
	eachKey(reflect.TypeFor[file](), nil, func(path []string, _ *field, sf reflect.StructField) {
		found := false
		for name, text := range docs {
			found = found || strings.HasSuffix(name, "."+sf.Name) && text != ""
		}
		if !found {
			t.Errorf("%s: the field %s of file.go has no comment above it", strings.Join(path, "."), sf.Name)
		}
	})
}

var fencePattern = regexp.MustCompile("(?ms)^[ ]*```(\\w*)[^\n]*\n(.*?)^[ ]*```")

// isForOthers reports whether a file is for Kubernetes, Compose or Prometheus instead of lockstep.
func isForOthers(root *yaml.Node) bool {
	for _, key := range []string{"apiVersion", "services", "scrape_configs", "groups"} {
		if _, value := find(root, key); value != nil {
			return true
		}
	}
	return false
}

// Every YAML block in every Markdown file of the repository must load without a warning and match
// the schema.
func TestYAMLInMarkdownIsValid(t *testing.T) {
	t.Parallel()
	schema := compiledSchema(t)
	blocks, documents := 0, 0
	err := filepath.WalkDir("..", func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".." {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		documents++
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, fence := range fencePattern.FindAllStringSubmatch(string(text), -1) {
			if fence[1] != "yaml" && fence[1] != "yml" {
				continue
			}
			blocks++
			file := filepath.Join(writeFiles(t, map[string]string{"lockstep.yaml": fence[2]}), "lockstep.yaml")
			if root := parseYAML(t, file); root != nil && isForOthers(root) {
				continue // it is YAML, and no more can be checked here
			}
			c, err := Load(Options{Paths: []string{file}, Environ: []string{}})
			if err != nil {
				t.Errorf("%s:\n%s\n%v", path, fence[2], err)
				continue
			}
			if len(c.Warnings.List) > 0 {
				t.Errorf("%s:\n%s\n%v", path, fence[2], c.Warnings)
			}
			if root := parseYAML(t, file); root != nil {
				if err := schema.Validate(plainValue(root)); err != nil {
					t.Errorf("%s:\n%s\n%v", path, fence[2], err)
				}
			}
		}
		return nil
	})
	if err != nil || documents < 2 || blocks < 2 {
		t.Errorf("%d blocks in %d Markdown files, %v", blocks, documents, err)
	}
}
