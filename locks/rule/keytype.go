package rule

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// checkFields refuses a key that reads a field which JSON of the given type never has. If the type
// does not tell, the key is accepted.
func (k *Key) checkFields(t reflect.Type) error {
	for _, part := range k.parts {
		if part.path == nil {
			continue
		}
		field, problem := walkType(t, part.path)
		if problem != "" {
			return k.problem(field, problem)
		}
	}
	return nil
}

// walkType follows a path through a type. It returns the field where the path fails, and why; ""
// without a problem.
func walkType(t reflect.Type, path []step) (field, problem string) {
	for _, s := range path {
		var open bool
		if t, open = shown(t); open {
			return "", ""
		}
		what := kindOf(t)
		if s.name == "" {
			if what != "a list" {
				return field, "is " + what + ", not a list"
			}
			if t.Kind() == reflect.Array && s.index >= t.Len() {
				return s.text, fmt.Sprintf("is missing: the list has %d elements", t.Len())
			}
			field, t = s.text, t.Elem()
			continue
		}
		switch {
		case what != "an object":
			return field, "is " + what + ", not an object"
		case t.Kind() == reflect.Map:
			t = t.Elem()
		default:
			fields := make(map[string]reflect.Type)
			jsonFields(t, fields, nil)
			next, ok := fields[s.name]
			if !ok {
				return s.text, fmt.Sprintf("is missing: a %s has %s", t, strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
			}
			t = next
		}
		field = s.text
	}
	t, open := shown(t)
	if what := kindOf(t); !open && (what == "an object" || what == "a list") {
		return field, "is " + what + "; want a string, a number or a bool"
	}
	return "", ""
}

// shown returns the type that a value has in JSON, behind its pointers. open means that only a
// value determines it.
func shown(t reflect.Type) (_ reflect.Type, open bool) {
	for {
		switch {
		case t.Kind() == reflect.Interface || t.Implements(jsonMarshaler) || reflect.PointerTo(t).Implements(jsonMarshaler):
			return t, true
		case t.Implements(textMarshaler) || reflect.PointerTo(t).Implements(textMarshaler):
			return reflect.TypeFor[string](), false
		case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8: // base64
			return reflect.TypeFor[string](), false
		case t.Kind() != reflect.Pointer:
			return t, false
		}
		t = t.Elem()
	}
}

// kindOf names a type as kind names its values.
func kindOf(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		return "an object"
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "a bool"
	}
	return "a number"
}

// jsonFields collects the fields that JSON of a struct may have, including those of embedded
// structs. Of two fields with one name it keeps the outer one. Which of two on one level wins, if
// any, does not matter to the callers.
func jsonFields(t reflect.Type, fields map[string]reflect.Type, within []reflect.Type) {
	if slices.Contains(within, t) { // a struct that embeds a pointer to itself
		return
	}
	within = append(within, t)
	var embedded []reflect.Type
	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if field.Tag.Get("json") == "-" {
			continue
		}
		inner := field.Type
		if inner.Kind() == reflect.Pointer {
			inner = inner.Elem()
		}
		switch {
		case field.Anonymous && name == "" && inner.Kind() == reflect.Struct:
			embedded = append(embedded, inner)
			continue
		case !field.IsExported():
			continue
		case name == "":
			name = field.Name
		}
		if _, taken := fields[name]; !taken {
			fields[name] = field.Type
		}
	}
	for _, inner := range embedded {
		jsonFields(inner, fields, within)
	}
}
