package configs

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"lockstep/jobs"
)

func lookup(values map[string]string) Lookup {
	return func(name string) (string, bool) {
		value, set := values[name]
		return value, set
	}
}

func filled(reference, value string) jobs.Secret {
	return jobs.Secret{Reference: reference, Value: value}
}

func TestPlaceholders(t *testing.T) {
	t.Parallel()
	r := replacer{
		lookup: lookup(map[string]string{"A": "a", "_B2": "b", "EMPTY": "", "D": "${A}"}),
		read:   func(path string) (string, error) { return "<" + path + ">", nil },
	}
	for text, want := range map[string]string{
		"":                        "",
		"plain":                   "plain",
		"${A}":                    "a",
		"x${A}y${_B2}z":           "xaybz",
		"${A}${A}":                "aa",
		"${EMPTY}":                "",
		"${EMPTY:-e}":             "e",
		"${NO:-e f:-g}":           "e f:-g",
		"${NO:-}":                 "",
		"${A:-e}":                 "a",
		"$$":                      "$",
		"$${A}":                   "${A}",
		"$$$$":                    "$$",
		"$$${A}":                  "$a",
		"$A $ $5 a$":              "$A $ $5 a$",
		"${D}":                    "${A}", // only once: a value is data
		"${file:/run/x y}":        "</run/x y>",
		"é${A}漢":                  "éa漢",
		"}{${A}}":                 "}{a}",
		"${NO:-redis://[::1]/$$}": "redis://[::1]/$$", // a default is plain text
	} {
		if got, err := r.text(text); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"${NO}":            "${NO} is not set",
		"a ${A":            "${A has no closing }",
		"${":               "${ has no closing }",
		"${}":              "${} does not name a variable",
		"${1A}":            "${1A} does not name a variable",
		"${A-b}":           `${A-b} has "-b" after the name`,
		"${A:}":            `${A:} has ":" after the name`,
		"${é}":             "${é} does not name a variable",
		"${A:-${B}}":       "${A:-${B} has another ${ inside",
		"${file:relative}": "${file:relative} does not name an absolute path",
		"${file:}":         "${file:} does not name an absolute path",
	} {
		if got, err := r.text(text); err == nil || err.Error() != want {
			t.Errorf("%q: got %q, %v, want the error %s", text, got, err, want)
		}
	}
}

func TestExpandReplacesACopy(t *testing.T) {
	t.Parallel()
	secret := filepath.Join(writeFiles(t, map[string]string{"s": "sec\"ret\n"}), "s")
	values := lookup(map[string]string{"A": "a\"b", "N": "5"})
	job := func() *jobs.Job {
		return &jobs.Job{
			Name: "x", Description: "${A}", Command: []string{"echo", "${A}", "$$x"}, Env: map[string]string{"K": "${N}", "${A}": "v"},
			HTTP: &jobs.HTTP{Method: "POST", URL: "https://${N}/", Headers: map[string]string{"H": "Bearer ${file:" + secret + "}"}},
			Args: json.RawMessage(`{"a":"${A}","${N}":[1.50,{"d":"${file:` + secret + `}"}],"u":"\u0024{N}","big":12345678901234567890,"z":"<$$>"}`),
			Lock: jobs.Lock{Exclusive: []string{"${A}"}}, Queue: "${A}",
		}
	}
	original := job()
	got, secrets, err := Expand(original, values)
	if err != nil {
		t.Fatal(err)
	}
	want := job()
	want.Command = []string{"echo", "a\"b", "$x"}
	want.Env = map[string]string{"K": "5", "${A}": "v"}
	want.HTTP = &jobs.HTTP{Method: "POST", URL: "https://5/", Headers: map[string]string{"H": "Bearer sec\"ret"}}
	want.Args = json.RawMessage(`{"${N}":[1.50,{"d":"sec\"ret"}],"a":"a\"b","big":12345678901234567890,"u":"5","z":"<$>"}`)
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v %s\nwant %+v %s", got, got.Args, want, want.Args)
	}
	reference := "${file:" + secret + "}"
	if want := []jobs.Secret{filled("${A}", "a\"b"), filled("${N}", "5"), filled(reference, "sec\"ret")}; !reflect.DeepEqual(secrets, want) {
		t.Errorf("got the values of %v, want each of %v once", secrets, want)
	}
	if !reflect.DeepEqual(original, job()) {
		t.Errorf("the original was changed: %+v", original)
	}

	bare := &jobs.Job{Name: "x", Handler: "h"}
	if got, secrets, err := Expand(bare, values); err != nil || !reflect.DeepEqual(got, bare) || secrets != nil {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestExpandNamesJobKeyAndVariable(t *testing.T) {
	t.Parallel()
	for want, job := range map[string]jobs.Job{
		`job "x": command[1]: ${NO} is not set`:                                                   {Command: []string{"a", "${NO}"}},
		`job "x": env.B: ${NO} is not set`:                                                        {Env: map[string]string{"B": "${NO}", "C": "${NO2}"}},
		`job "x": http.url: ${NO} is not set`:                                                     {HTTP: &jobs.HTTP{URL: "${NO}"}},
		`job "x": http.headers.H: ${file:/nonexistent} cannot be read: no such file or directory`: {HTTP: &jobs.HTTP{Headers: map[string]string{"H": "${file:/nonexistent}"}}},
		`job "x": args.a[1].b: ${NO} is not set`:                                                  {Args: json.RawMessage(`{"a":[1,{"b":"${NO}"}]}`)},
		`job "x": args: invalid character '$' looking for beginning of value`:                     {Args: json.RawMessage(`${NO}`)},
		`job "x": command[0]: ${file:/} cannot be read: not a file`:                               {Command: []string{"${file:/}"}},
		`job "x": command[0]: ${A has no closing }`:                                               {Command: []string{"${A"}},
	} {
		job.Name = "x"
		if got, secrets, err := Expand(&job, lookup(nil)); err == nil || err.Error() != want || got != nil || secrets != nil {
			t.Errorf("got %v, %v, want %s", got, err, want)
		}
	}
}

// A default is part of the definition, so it is not a secret. The value that overrides it is one.
func TestExpandReturnsValuesWithoutDefaults(t *testing.T) {
	t.Parallel()
	job := &jobs.Job{Name: "x", Command: []string{"${A:-a}${B:-b}", "${A:-a}", "$$ ${EMPTY:-e}", "${EMPTY}"}}
	got, secrets, err := Expand(job, lookup(map[string]string{"B": "from B", "EMPTY": ""}))
	if err != nil || !reflect.DeepEqual(got.Command, []string{"afrom B", "a", "$ e", ""}) {
		t.Errorf("got %q, %v", got.Command, err)
	}
	if want := []jobs.Secret{filled("${B:-b}", "from B"), filled("${EMPTY}", "")}; !reflect.DeepEqual(secrets, want) {
		t.Errorf("got %v, want %v", secrets, want)
	}
}

// Each value is known by itself, even where two are adjacent, so an error that quotes one of them
// does not reveal it.
func TestExpandReturnsAdjacentValuesApart(t *testing.T) {
	t.Parallel()
	values := map[string]string{"A": "first-5f0c81", "B": "second-77b2e9"}
	got, secrets, err := Expand(&jobs.Job{Name: "x", Command: []string{"do", "${A}${B}"}}, lookup(values))
	if err != nil || got.Command[1] != values["A"]+values["B"] {
		t.Fatalf("got %q, %v", got.Command, err)
	}
	redactor := jobs.NewRedactor(secrets)
	for name, value := range values {
		if shown := redactor.Text("cannot use " + value); shown != "cannot use ${"+name+"}" {
			t.Errorf("an error that quotes one value is shown as %q", shown)
		}
	}
}

func TestLoadAndExpandAgree(t *testing.T) {
	t.Parallel()
	c := load(t, `jobs: {a: {command: ["${A}", "${B:-b}", "$$"], args: ["${A}"]}}`, "A=x")
	got, _, err := Expand(c.Jobs[0], lookup(map[string]string{"A": "x"}))
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(got.Command, string(got.Args)) != `[x b $]["x"]` {
		t.Errorf("got %v %s", got.Command, got.Args)
	}
}

func TestHugeSecretIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(writeFiles(t, map[string]string{"s": strings.Repeat("x", secretLimit+1)}), "s")
	if _, err := readSecret(path); err == nil || err.Error() != "larger than 1024 KiB" {
		t.Errorf("got %v", err)
	}
}
