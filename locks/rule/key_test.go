package rule_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"lockstep/locks"
	"lockstep/locks/rule"
)

func TestKeysFromArgs(t *testing.T) {
	t.Parallel()
	const args = `{
		"id": "b-1", "n": 12345678901234567890, "f": 1.50, "e": 1e3, "yes": true, "no": false, "nothing": null, "empty": [], "blank": "",
		"account": {"id": 7, "owner": {"name-1": "Ada"}}, "größe": "xl",
		"bill_ids": [3, 1, 3], "names": ["x", "y"],
		"orders": [{"id": "o1", "rev": 1, "lines": [{"sku": "a"}, {"sku": "b"}]}, {"id": "o2", "rev": 2, "lines": [{"sku": "a"}]}]
	}`
	for _, test := range []struct {
		key  string
		want string // keys with a space between
	}{
		{"rates", "rates"},
		{"bill:{id}", "bill:b-1"},
		{"{id}", "b-1"},
		{"{id}{id}", "b-1b-1"},
		{"n:{n}", "n:12345678901234567890"}, // as in the text: a float would have rounded it
		{"f:{f}", "f:1.50"},
		{"e:{e}", "e:1e3"},
		{"{yes}-{no}", "true-false"},
		{"b:{blank}", "b:"},
		{"{account.id}", "7"},
		{"{account.owner.name-1}", "Ada"},
		{"{größe}", "xl"},
		{"bill:{bill_ids[0]}", "bill:3"},
		{"bill:{bill_ids[*]}", "bill:3 bill:1"},
		{"bill:{empty[*]}", ""},
		{"o:{orders[1].id}", "o:o2"},
		{"o:{orders[*].id}", "o:o1 o:o2"},
		{"o:{orders[*].id}/{orders[*].rev}", "o:o1/1 o:o2/2"}, // the same list: together
		{"{names[*]}:{bill_ids[*]}", "x:3 x:1 y:3 y:1"},       // two lists: each with each
		{"{orders[*].lines[*].sku}", "a b"},                   // a list of lists
		// the inner list of the same element
		{"{orders[*].id}:{orders[*].lines[*].sku}", "o1:a o1:b o2:a"},
		{"{orders[0].lines[*].sku}", "a b"},
		{"{orders[*].lines[0].sku}:{id}", "a:b-1"},
	} {
		key, err := rule.ParseKey(test.key)
		if err != nil {
			t.Errorf("ParseKey(%q): %v", test.key, err)
			continue
		}
		got, err := key.Expand(json.RawMessage(args))
		if err != nil || strings.Join(got, " ") != test.want {
			t.Errorf("%q: got %q, %v; want %q", test.key, got, err, test.want)
		}
		if key.String() != test.key {
			t.Errorf("String() = %q, want %q", key.String(), test.key)
		}
	}
}

func TestKeysFromArgsThatAreAList(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{"l:{[*]}": {"l:5", "l:6"}, "l:{[1]}": {"l:6"}} {
		key, err := rule.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := key.Expand(json.RawMessage(`[5, 6]`)); err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}

func TestKeyThatArgsCannotFillNamesTheField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ key, args, want string }{
		{"b:{id}", ``, `lock key "b:{id}": field "id" of the args is missing`},
		{"b:{id}", `null`, `lock key "b:{id}": field "id" of the args is missing`},
		{"b:{id}", `{"Id": 1}`, `lock key "b:{id}": field "id" of the args is missing`},
		{"b:{a.id}", `{"a": {}}`, `lock key "b:{a.id}": field "a.id" of the args is missing`},
		{"b:{a.id}", `{"a": null}`, `lock key "b:{a.id}": field "a" of the args is null, not an object`},
		{"b:{a.id}", `{"a": 5}`, `lock key "b:{a.id}": field "a" of the args is a number, not an object`},
		{"b:{id}", `{"id": null}`, `lock key "b:{id}": field "id" of the args is null; want a string, a number or a bool`},
		{"b:{id}", `{"id": {}}`, `lock key "b:{id}": field "id" of the args is an object; want a string, a number or a bool`},
		{"b:{id}", `{"id": [1]}`, `lock key "b:{id}": field "id" of the args is a list; want a string, a number or a bool`},
		{"b:{l[2]}", `{"l": [1]}`, `lock key "b:{l[2]}": field "l[2]" of the args is missing: the list has 1 elements`},
		{"b:{l[*]}", `{"l": "x"}`, `lock key "b:{l[*]}": field "l" of the args is a string, not a list`},
		{"b:{l[*]}", `{}`, `lock key "b:{l[*]}": field "l" of the args is missing`},
		{"b:{l[*].id}", `{"l": [{"id": 1}, {}]}`, `lock key "b:{l[*].id}": field "l[1].id" of the args is missing`},
		{"b:{l[*].id}", `{"l": [{"id": 1}, true]}`, `lock key "b:{l[*].id}": field "l[1]" of the args is a bool, not an object`},
		{"b:{id}", `[1]`, `lock key "b:{id}": the args are a list, not an object`},
		{"b:{[0]}", `{}`, `lock key "b:{[0]}": the args are an object, not a list`},
		{"b:{id}", `{"id": `, `lock key "b:{id}": args: not JSON: unexpected end of JSON input (at byte 7)`},
		{"b:{id}", `{"id": 1} 2`, `lock key "b:{id}": args: not JSON: invalid character '2' after top-level value (at byte 11)`},
		{"{id}", `{"id": ""}`, `lock key "{id}": a resource's name is empty; give it 1 to 512 bytes`},
		{"b:{id}", `{"id": "a\nb"}`, `lock key "b:{id}": the resource "b:a\nb" has a control character at byte 3; leave it out or encode it`},
		{"b:{id}", `{"id": "` + strings.Repeat("x", 511) + `"}`, `lock key "b:{id}": the resource "b:` + strings.Repeat("x", 38) + `"... has 513 bytes; use at most 512, or a hash of the name`},
	} {
		key, err := rule.ParseKey(test.key)
		if err != nil {
			t.Fatal(err)
		}
		keys, err := key.Expand(json.RawMessage(test.args))
		if err == nil || err.Error() != test.want || !errors.Is(err, locks.ErrInvalid) {
			t.Errorf("%q with %.60s:\n got %q, %v\nwant %q", test.key, test.args, keys, err, test.want)
		}
	}
	key, _ := rule.ParseKey("bill:{l[*].id}")
	_, err := key.Expand(json.RawMessage(`{"l": [{}]}`))
	var keyError *rule.KeyError
	if !errors.As(err, &keyError) || *keyError != (rule.KeyError{Key: "bill:{l[*].id}", Field: "l[0].id", Problem: "is missing"}) {
		t.Errorf("got %#v, want a KeyError with the key and the field", keyError)
	}
}

func TestBadKeysAreRefusedAtParse(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]string{
		"":                               "empty",
		"a{":                             `byte 1: "{" without "}"`,
		"a}":                             `byte 1: "}" without "{"`,
		"a{}":                            "byte 1: {} names no field",
		"{{id}}":                         "byte 0: doubled brace",
		"{a}}}":                          "byte 3: doubled brace",
		"{a{b}}":                         `"{" in a field's name`,
		"{.a}":                           "a field's name is empty",
		"{a.}":                           "a field's name is empty",
		"{a..b}":                         "a field's name is empty",
		"{a b}":                          `" " in a field's name`,
		"{a[}":                           `"[" without "]"`,
		"{a]}":                           `"]" in a field's name`,
		"{a[]}":                          "[]: want a number from 0 or *",
		"{a[-1]}":                        "[-1]: want a number from 0 or *",
		"{a[01]}":                        "[01]: want a number from 0 or *",
		"{a[**]}":                        "[**]: want a number from 0 or *",
		"{a[99999999999999]}":            "want a number from 0 or *",
		"{a[0]b}":                        `want "." or "[" behind "]"`,
		"{a\xff}":                        `"\xff" in a field's name`,
		"x\x00{a}":                       "control character",
		"x\xff{a}":                       "is not UTF-8",
		strings.Repeat("x", 513):         "has 513 bytes",
		"{a}" + strings.Repeat("x", 513): "has 513 bytes",
	} {
		if _, err := rule.ParseKey(key); !errors.Is(err, locks.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseKey(%q): got %v, want an error with %q", key, err, want)
		}
	}
}

// FuzzKey looks for templates and arguments that break what callers rely on: what parses also
// expands or returns an error, and every result is a valid name, only once.
func FuzzKey(f *testing.F) {
	f.Add("bill:{bill_ids[*]}", `{"bill_ids": [1, 2, "x"]}`)
	f.Add("{a.b[0].c}:{a.b[*].c}", `{"a": {"b": [{"c": true}]}}`)
	f.Add("{[*]}", `[1, null]`)
	f.Add("{{a}}", `{}`)
	f.Add("x{ä-_9}", `{"ä-_9": 1e400}`)
	f.Fuzz(func(t *testing.T, template, args string) {
		key, err := rule.ParseKey(template)
		if err != nil {
			return
		}
		if key.String() != template {
			t.Fatalf("String() = %q, want %q", key.String(), template)
		}
		keys, err := key.Expand(json.RawMessage(args))
		if err != nil {
			if !errors.Is(err, locks.ErrInvalid) || len(keys) > 0 {
				t.Fatalf("Expand = %q, %v; want no keys and ErrInvalid", keys, err)
			}
			return
		}
		seen := map[string]bool{}
		for _, name := range keys {
			if seen[name] || name == "" || len(name) > 512 || !utf8.ValidString(name) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				t.Fatalf("%q with %s gave %q", template, args, keys)
			}
			seen[name] = true
		}
		if !strings.ContainsRune(template, '{') && fmt.Sprint(keys) != fmt.Sprint([]string{template}) {
			t.Fatalf("fixed name %q gave %q", template, keys)
		}
	})
}

func TestFieldsOfAKeyAreThoseOnItsPaths(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"rates": "", "x:{a.b[0].c}:{id}": "a b c id", "{[*].d}": "d", "{[0]}": "",
	} {
		key, err := rule.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(key.Fields(), " "); got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}
