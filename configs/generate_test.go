package configs

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v4"

	"lockstep/jobs"
	"lockstep/scheduler/cronspec"
)

// TestGeneratedFilesAreCurrent makes the schema and the reference from the file types, and compares
// them with the existing files. With -update, which go generate passes, it writes them.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	docs := fieldDocs(t)
	generated := map[string][]byte{
		SchemaFile:  encodeSchema(t, fileSchema(docs)),
		"README.md": reference(t, docs),
	}
	for name, want := range generated {
		if *update {
			if err := os.WriteFile(name, want, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s does not match the file types: run go generate ./configs", name)
		}
	}
}

// fieldDocs returns the comments above the fields of the file types, by "type.Field", on one line
// each.
func fieldDocs(t *testing.T) map[string]string {
	t.Helper()
	docs := make(map[string]string)
	for name, spec := range declarations(t, "file.go", token.TYPE) {
		structure, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, f := range structure.Fields.List {
			if len(f.Names) == 1 && f.Doc != nil {
				docs[name+"."+f.Names[0].Name] = strings.Join(strings.Fields(f.Doc.Text()), " ")
			}
		}
	}
	return docs
}

// declarations returns the top-level declarations of a source file of this package, by name.
func declarations(t *testing.T, path string, kind token.Token) map[string]ast.Spec {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]ast.Spec)
	for _, declaration := range source.Decls {
		group, ok := declaration.(*ast.GenDecl)
		if !ok || group.Tok != kind {
			continue
		}
		for _, spec := range group.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				found[spec.Name.Name] = spec
			case *ast.ValueSpec:
				found[spec.Names[0].Name] = spec
			}
		}
	}
	return found
}

// jsonSchema is the part of JSON Schema that is used here, in output order.
type jsonSchema struct {
	Schema        string        `json:"$schema,omitempty"`
	Title         string        `json:"title,omitempty"`
	Ref           string        `json:"$ref,omitempty"`
	Description   string        `json:"description,omitempty"`
	Type          any           `json:"type,omitempty"`
	Enum          []string      `json:"enum,omitempty"`
	AnyOf         []*jsonSchema `json:"anyOf,omitempty"`
	MinLength     int           `json:"minLength,omitempty"`
	Pattern       string        `json:"pattern,omitempty"`
	Minimum       *int64        `json:"minimum,omitempty"`
	Maximum       *int64        `json:"maximum,omitempty"`
	MinItems      int           `json:"minItems,omitempty"`
	Items         *jsonSchema   `json:"items,omitempty"`
	MinProperties int           `json:"minProperties,omitempty"`
	PropertyNames *jsonSchema   `json:"propertyNames,omitempty"`
	Required      []string      `json:"required,omitempty"`
	OneOf         []*jsonSchema `json:"oneOf,omitempty"`
	Not           *jsonSchema   `json:"not,omitempty"`
	Properties    properties    `json:"properties,omitempty"`
	// a schema, or false
	AdditionalProperties any                    `json:"additionalProperties,omitempty"`
	Default              any                    `json:"default,omitempty"`
	Examples             []any                  `json:"examples,omitempty"`
	Definitions          map[string]*jsonSchema `json:"definitions,omitempty"`
}

// properties keep the order of the file types.
type properties []property

type property struct {
	name   string
	schema *jsonSchema
	field  *field
	unset  string
}

func (p properties) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	for i, one := range p {
		value, err := json.Marshal(one.schema)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%c%q:%s", "{,"[min(i, 1)], one.name, value)
	}
	return append(b.Bytes(), '}'), nil
}

func encodeSchema(t *testing.T, s *jsonSchema) []byte {
	t.Helper()
	var compact, indented bytes.Buffer
	encoder := json.NewEncoder(&compact)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		t.Fatal(err)
	}
	if err := json.Indent(&indented, compact.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	return indented.Bytes()
}

// placeholderPattern matches a text with a ${...}, which may have any value.
const placeholderPattern = `\$\{`

// shapes are the patterns of the values that checks accept, as far as a pattern can express that,
// by the tags "check", "keys" and "shape".
var shapes = map[string]string{
	"redis-url":   `^(embedded$|(rediss?(-sentinel|-cluster)?|unix)://)`,
	"namespace":   namespaceShape().String(),
	"worker-name": workerNameShape().String(),
	"queue":       `^[^\s{},=]{1,100}$`,
	"address":     `^(localhost|[0-9.]*|\[[0-9A-Fa-f:.]+(%[^\]]+)?\]):[0-9]+$`,
	"user":        `^[^:\s]([^:]*[^:\s])?$`,
	"host":        hostShape().String(),
	"base-path":   basePathShape().String(),
	"group":       groupShape().String(),
	"arg":         `^[^.{}*\[\]]+$`,
	"network":     `^[0-9A-Fa-f:.]+(/[0-9]+)?$`,
	"http-url":    `^https?://[^/]`,
	"header":      headerName().String(),
	"env":         `^([^=$]|\$+([^={$]|$))+$`,
	"grace":       `^(auto|\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`,
	"size":        `^[0-9]+ *(B|KiB|MiB)$`,
	"permit":      `^[^\s{},=]{1,512}$`,
	"target":      jobNamePattern,
	"service-url": `^(` + strings.Join(services, "|") + `)://.`,
	"cron":        `^\s*(@[a-z]+|\S+(\s+\S+){4,5})\s*$`,
}

const (
	jobNamePattern  = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`
	durationPattern = `^\+?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
)

// fileSchema is the schema of a config file.
func fileSchema(docs map[string]string) *jsonSchema {
	g := generator{docs}
	s := g.structure(reflect.TypeFor[file]())
	s.Schema = "http://json-schema.org/draft-07/schema#"
	s.Title = "lockstep config file"
	s.Description = "Settings of a worker and definitions of jobs. Lists, maps and their meaning: configs/README.md of lockstep."
	s.Type = []string{"object", "null"} // an empty file is valid
	s.Definitions = map[string]*jsonSchema{
		"placeholder": {Description: "${VAR}, ${VAR:-default} or ${file:/path}, replaced when the config is loaded.",
			Type: "string", Pattern: placeholderPattern},
		"timezone": {Description: "A time zone by its IANA name.", Enum: cronspec.ZoneNames()},
	}
	return s
}

// anyType lists the types of args. A null counts as not written.
var anyType = []string{"object", "array", "string", "number", "boolean"}

type generator struct{ docs map[string]string }

func (g generator) structure(t reflect.Type) *jsonSchema {
	s := &jsonSchema{Type: "object", AdditionalProperties: false}
	for _, f := range fieldsOf(t).list {
		owner, sf := declaredBy(t, f.index)
		property := property{name: f.name, field: f, schema: g.value(f.typ, &f.rules), unset: sf.Tag.Get("unset")}
		property.schema.Description = g.docs[owner.Name()+"."+sf.Name]
		if f.rules.initial != "" {
			property.schema.Default = plain(f.defaultValue())
		}
		if example := sf.Tag.Get("example"); example != "" {
			var node yaml.Node
			if err := yaml.Unmarshal([]byte(example), &node); err != nil {
				panic(fmt.Sprintf("example of %s: %v", f.name, err))
			}
			property.schema.Examples = []any{plainValue(node.Content[0])}
		}
		s.Properties = append(s.Properties, property)
		if f.rules.required != "" {
			s.Required = append(s.Required, f.name)
		}
	}
	switch t {
	case reflect.TypeFor[jobFile]():
		for _, kind := range jobs.KindNames() {
			s.OneOf = append(s.OneOf, &jsonSchema{Required: []string{kind}})
		}
		s.Not = &jsonSchema{Required: []string{"schedule", "every"}}
	case reflect.TypeFor[permitFile]():
		s.Required = []string{"limit"}
	case reflect.TypeFor[targetFile]():
		s.OneOf = []*jsonSchema{{Required: []string{"url"}}, {Required: []string{"webhook"}}}
	}
	return s
}

// declaredBy returns the struct that declares the field, and the field.
func declaredBy(t reflect.Type, index []int) (reflect.Type, reflect.StructField) {
	for _, i := range index[:len(index)-1] {
		t = t.Field(i).Type
	}
	return t, t.Field(index[len(index)-1])
}

func (g generator) value(t reflect.Type, r *rules) *jsonSchema {
	if t == rawType {
		return &jsonSchema{Type: anyType}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return g.value(t.Elem(), r)
	case reflect.Struct:
		return g.structure(t)
	case reflect.Slice:
		if r.scalar {
			element := g.value(t.Elem(), &rules{check: r.check, enum: r.enum})
			return &jsonSchema{OneOf: []*jsonSchema{element, {Type: "array", MinItems: r.size, Items: element}}}
		}
		return &jsonSchema{Type: "array", MinItems: r.size, Items: g.value(t.Elem(), r)}
	case reflect.Map:
		s := &jsonSchema{Type: "object", MinProperties: r.size, AdditionalProperties: g.value(t.Elem(), &rules{min: r.min, max: r.max, check: r.check})}
		switch {
		case t.Elem() == jobFileType:
			s.PropertyNames = &jsonSchema{Pattern: jobNamePattern}
		case r.keys != "":
			s.PropertyNames = &jsonSchema{Pattern: shapes[r.keys]}
		}
		return s
	}
	return g.scalar(t, r)
}

func (g generator) scalar(t reflect.Type, r *rules) *jsonSchema {
	placeholder := &jsonSchema{Ref: "#/definitions/placeholder"}
	pattern := shapes[r.check]
	if r.shape != "" {
		pattern = shapes[r.shape]
	}
	if pattern != "" {
		pattern = "(" + pattern + ")|" + placeholderPattern
	}
	switch {
	case t == durationType:
		return &jsonSchema{Type: "string", Pattern: "(" + durationPattern + ")|" + placeholderPattern}
	case t.Kind() == reflect.Int:
		s := &jsonSchema{Type: []string{"integer", "string"}, Pattern: placeholderPattern}
		if r.min != nil {
			s.Minimum = &r.min.n
		}
		if r.max != nil {
			s.Maximum = &r.max.n
		}
		return s
	case t.Kind() == reflect.Bool:
		return &jsonSchema{Type: []string{"boolean", "string"}, Pattern: placeholderPattern}
	case t == textType || t == proseType: // accepted unchanged
		return &jsonSchema{Type: []string{"string", "number", "boolean"}, Pattern: pattern}
	case r.enum != nil:
		return &jsonSchema{AnyOf: []*jsonSchema{{Enum: r.enum}, placeholder}}
	case r.check == "timezone":
		return &jsonSchema{AnyOf: []*jsonSchema{{Ref: "#/definitions/timezone"}, placeholder}}
	}
	return &jsonSchema{Type: "string", MinLength: 1, Pattern: pattern}
}

// plain returns a default in the form of JSON.
func plain(v reflect.Value) any {
	if v.Type() == durationType {
		return cronspec.FormatInterval(time.Duration(v.Int()))
	}
	return v.Interface()
}

// plainValue returns a node in the form that the schema validator needs: with aliases and merges
// resolved, and only JSON's types.
func plainValue(n *yaml.Node) any {
	switch n = deref(n); n.Kind {
	case yaml.MappingNode:
		m := make(map[string]any)
		for _, e := range entries(n, nil, nil) {
			m[e.key.Value] = plainValue(e.value)
		}
		return m
	case yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, c := range n.Content {
			list[i] = plainValue(c)
		}
		return list
	}
	switch n.Tag {
	case "!!null":
		return nil
	case "!!bool":
		value, _ := strconv.ParseBool(strings.ToLower(n.Value))
		return value
	case "!!int", "!!float":
		if number, fault := jsonNumber(n.Value); fault == nil {
			return number
		}
	}
	return n.Value
}

// reference returns the README of this package: each key with its type, default, meaning and an
// example, and each code.
func reference(t *testing.T, docs map[string]string) []byte {
	t.Helper()
	var b strings.Builder
	b.WriteString(referenceHead)
	root := fileSchema(docs)
	var sections func(at string, s *jsonSchema, level int)
	sections = func(at string, s *jsonSchema, level int) {
		table(&b, s.Properties)
		for _, p := range s.Properties {
			inner, name := p.schema, p.name
			if at != "" {
				name = at + "." + p.name
			}
			if jobs, ok := inner.AdditionalProperties.(*jsonSchema); ok && len(jobs.Properties) > 0 {
				inner, name = jobs, name+".NAME"
			}
			if len(inner.Properties) == 0 {
				continue
			}
			fmt.Fprintf(&b, "\n%s %s\n\n%s\n\n", strings.Repeat("#", level), name, prosePart(p.schema.Description))
			if name == "defaults" {
				names := make([]string, len(inner.Properties))
				for i, p := range inner.Properties {
					names[i] = "`" + p.name + "`"
				}
				fmt.Fprintf(&b, "%s, as in a job.\n", strings.Join(names, ", "))
				continue
			}
			sections(name, inner, level+1)
		}
	}
	b.WriteString("## Keys\n\n")
	sections("", root, 3)
	b.WriteString(codeHead)
	for _, c := range codes(t) {
		fmt.Fprintf(&b, "| `%s` | %s |\n", c.code, c.meaning)
	}
	return []byte(b.String())
}

func table(b *strings.Builder, list properties) {
	b.WriteString("| key | type | default | meaning | example |\n|---|---|---|---|---|\n")
	for _, p := range list {
		initial, example := p.unset, ""
		if p.field.rules.initial != "" {
			initial = "`" + yamlText(plain(p.field.defaultValue())) + "`"
		}
		if len(p.schema.Examples) > 0 {
			example = "`" + yamlText(p.schema.Examples[0]) + "`"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", p.name, typeWords(p.schema)+durationBounds(p.field), initial, cell(p.schema.Description), cell(example))
	}
}

// durationBounds describes the limits of a duration, which the schema cannot express.
func durationBounds(f *field) string {
	switch r := f.rules; {
	case valueType(f.typ) != durationType || r.min == nil || r.min.n == 0 && r.max == nil:
		return ""
	case r.max == nil:
		return ", at least " + r.min.text
	default:
		return ", " + r.min.text + " to " + r.max.text
	}
}

// typeWords describes the values of a key.
func typeWords(s *jsonSchema) string {
	switch {
	case len(s.AnyOf) > 0 && s.AnyOf[0].Ref != "":
		return "time zone"
	case len(s.AnyOf) > 0:
		return strings.Join(s.AnyOf[0].Enum, ", ")
	case len(s.OneOf) > 0:
		return typeWords(s.OneOf[0]) + ", or " + typeWords(s.OneOf[1])
	case strings.Contains(s.Pattern, durationPattern):
		return "duration"
	case reflect.DeepEqual(s.Type, anyType):
		return "any value"
	case s.Minimum != nil && s.Maximum != nil:
		return fmt.Sprintf("number, %d to %d", *s.Minimum, *s.Maximum)
	case s.Minimum != nil:
		return fmt.Sprintf("number, at least %d", *s.Minimum)
	case s.Type == "array":
		return "list of " + typeWords(s.Items) + "s"
	case s.Type == "object" && len(s.Properties) > 0:
		return "map, below"
	case s.Type == "object":
		inner := s.AdditionalProperties.(*jsonSchema)
		if len(inner.Properties) > 0 {
			return "map of maps, below"
		}
		return "map of names to " + strings.Replace(typeWords(inner), "number", "numbers", 1)
	case reflect.DeepEqual(s.Type, []string{"integer", "string"}):
		return "number"
	case reflect.DeepEqual(s.Type, []string{"boolean", "string"}):
		return "true or false"
	}
	return "text"
}

// yamlText formats a value on one line, as in a file.
func yamlText(value any) string {
	switch v := value.(type) {
	case string:
		if strings.ContainsAny(v, ":{}[],&*#?|<>=!%@\"'") && !strings.Contains(v, "://") {
			return strconv.Quote(v)
		}
		return v
	case []any:
		words := make([]string, len(v))
		for i, element := range v {
			words[i] = yamlText(element)
		}
		return "[" + strings.Join(words, ", ") + "]"
	case []string:
		words := make([]any, len(v))
		for i, element := range v {
			words[i] = element
		}
		return yamlText(words)
	case map[string]any:
		return flowMap(v)
	case map[string]int:
		m := make(map[string]any, len(v))
		for name, n := range v {
			m[name] = n
		}
		return flowMap(m)
	}
	return fmt.Sprint(value)
}

func flowMap(m map[string]any) string {
	words := make([]string, 0, len(m))
	for name, value := range m {
		words = append(words, name+": "+yamlText(value))
	}
	slices.Sort(words)
	return "{" + strings.Join(words, ", ") + "}"
}

// cell escapes a text for a table.
func cell(s string) string { return strings.ReplaceAll(prosePart(s), "|", `\|`) }

// prosePart escapes text that Markdown would interpret as HTML or emphasis.
func prosePart(s string) string {
	if strings.HasPrefix(s, "`") {
		return s
	}
	return strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`).Replace(s)
}

type codeDoc struct{ code, meaning string }

// codes returns the codes of problems with their comments, in order.
func codes(t *testing.T) []codeDoc {
	t.Helper()
	source, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var list []codeDoc
	ast.Inspect(source, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "Code") {
			return true
		}
		code, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		comment := cmp.Or(spec.Comment, spec.Doc)
		if err != nil || comment == nil {
			t.Fatalf("%s has no comment", spec.Names[0].Name)
		}
		meaning := strings.Join(strings.Fields(comment.Text()), " ")
		list = append(list, codeDoc{code, cell(meaning)})
		return true
	})
	return list
}

const referenceHead = `# Config files

<!-- Written by go generate from file.go and problem.go: change those. -->

Settings of a worker and definitions of jobs. [lockstep.example.yaml](lockstep.example.yaml) is a good start, and so is
the config that ` + "`lockstep init`" + ` writes.

` + "```" + `
lockstep init                 write a commented config into this folder
lockstep check                report errors and warnings with file, line and column; --strict, --next 3, -o json|github
lockstep config show          the settings with the source of each value; config show JOB: a job, with all its defaults
lockstep config schema        the JSON Schema, for editors
lockstep config diff          compare these files with the registered jobs
lockstep config reload        make the workers of this host reload their files
lockstep config import crontab FILE
lockstep config import k8s FILE
lockstep schedule "0 2 * * *"
` + "```" + `

An editor with JSON Schema support completes keys and underlines mistakes if the file begins with

` + "```yaml" + `
# yaml-language-server: $schema=./lockstep.schema.json
` + "```" + `

The config is ` + "`-c FILE|DIR`" + `, else ` + "`LOCKSTEP_CONFIG`" + `, else ` + "`./lockstep.yaml`" + `. All *.yaml and *.yml files of a folder are read,
in the order of their names. A setting can also come from the environment (` + "`LOCKSTEP_WORKER__CONCURRENCY=16`" + `, where a double
underscore separates keys; ` + "`LOCKSTEP_WORKER__QUEUES=critical=6,default=3`" + `) or from a flag: defaults < files < environment <
flags.

` + "`${VAR}`, `${VAR:-default}` and `${file:/path}`" + ` are replaced inside values; ` + "`$$`" + ` is a dollar sign. In the command, http, env and
args of a job, the worker replaces them right before each attempt, so no secret reaches Redis. The job's output and its
errors are redacted before they are stored: the ` + "`${...}`" + ` takes the place of any value of at least 4 bytes that came from a
variable or a file. Values that are escaped for a URL, JSON, HTML or a shell, or encoded in base64, are redacted too, and
so is each line of a multi-line value. A default is not redacted, because it is part of the definition. Durations have a
unit: ` + "`500ms`, `30s`, `15m`, `1h30m`, `168h`" + `.

A worker reloads its files on SIGHUP, on ` + "`lockstep config reload`" + `, and, if started with ` + "`--watch`" + `, when they change. Files
with errors change nothing. A reload that fails because Redis does not answer is repeated until it succeeds. Settings
other than jobs, permits and targets of messages need a restart, and the log names them.

`

const codeHead = `
## Problems

Each problem ends with its code in brackets. ` + "`lockstep check --strict`" + ` treats warnings as errors.

| code | meaning |
|---|---|
`
