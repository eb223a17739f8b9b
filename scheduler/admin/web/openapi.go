package web

import (
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/locks"
	"lockstep/scheduler/admin"
)

// object is a JSON object of the document.
type object = map[string]any

// parameters are the parameters of queries, paths and headers, by their names. One name means the
// same wherever it occurs.
var parameters = map[string]struct {
	about  string
	schema object
}{
	"limit":   {"the largest number of items", object{"type": "integer", "minimum": 1, "maximum": mostLimit, "default": defaultLimit}},
	"cursor":  {"next_cursor of the page before; without it, the first page", object{"type": "string"}},
	"job":     {"the name of a job", object{"type": "string"}},
	"state":   {"a state of the items", object{"type": "string"}},
	"q":       {"a part of a name, of an ID or of a value in the args, in any case", object{"type": "string"}},
	"worker":  {"the ID of a worker, or the part of it before the dot", object{"type": "string"}},
	"since":   {"an instant, as in RFC 3339, or a duration before now, such as 90m: no older items", object{"type": "string"}},
	"until":   {"an instant, as in RFC 3339, or a duration before now (after it, for future ticks), such as 90m: only earlier items", object{"type": "string"}},
	"error":   {"a part of an error, in any case", object{"type": "string"}},
	"group":   {"what to group the items by", object{"type": "string"}},
	"note":    {"a remark: only jobs that have it", object{"type": "string", "enum": admin.Notes}},
	"at":      {"an instant, as in RFC 3339", object{"type": "string", "format": "date-time"}},
	"run":     {"the ID of a run", object{"type": "string"}},
	"id":      {"an ID, escaped: # is %23, / is %2F", object{"type": "string"}},
	"lock":    {"the name of a lock, escaped", object{"type": "string"}},
	"queue":   {"the name of a queue, escaped", object{"type": "string"}},
	"attempt": {"the number of an attempt of a run, from 1", object{"type": "integer", "minimum": 1}},
	"follow":  {"true: what the attempts print while they print it", object{"type": "string", "enum": []string{"true", "false"}}},
	"wait":    {"a duration of at most 5m: answer when the run has ended, or after that time", object{"type": "string"}},
	"kind":    {"hold or wait: only entries of this kind", object{"type": "string", "enum": []admin.EntryKind{admin.KindHold, admin.KindWait}}},

	runHeader:       {"the ID of the run that asks, if the body names no parent: an HTTP job sends it to its service", object{"type": "string"}},
	"Last-Event-ID": {"the ID of the last event that the client has got: the stream begins after it", object{"type": "string"}},
}

// document describes the API as OpenAPI 3.1: each route of the table that this server answers, with
// the schemas of the types that it encodes.
func (s *Server) document() ([]byte, error) {
	shapes := newShapes()
	paths := object{}
	for _, r := range s.table {
		if r.isAPI() && !r.hidden {
			paths[r.pattern] = object{strings.ToLower(r.method): s.operation(r, shapes)}
		}
	}
	problem := shapes.value(reflect.TypeFor[problem]())
	components := object{
		"schemas": shapes.named,
		"responses": object{"Problem": object{
			"description": "a problem, as in RFC 9457", "content": object{"application/problem+json": object{"schema": problem}},
		}},
	}
	about := "Package lockstep/scheduler/admin/web describes the API in words. Objects may gain fields, and fields may gain values."
	document := object{
		"openapi": "3.1.0", "info": object{"title": "lockstep", "version": "v1", "description": about}, "paths": paths,
		"components": components, "security": []object{},
	}
	if base := s.base(); base != "" {
		document["servers"] = []object{{"url": base}}
	}
	if scheme := schemes[s.o.SignIn.mode]; scheme != "" {
		name := string(s.o.SignIn.mode)
		components["securitySchemes"] = object{name: object{"type": "http", "scheme": scheme}}
		document["security"] = []object{{name: []string{}}}
	}
	body, err := json.Marshal(document)
	return append(body, '\n'), err
}

// schemes are the modes of the sign-in that a client itself takes part in. In mode proxy, the proxy
// has signed in the user.
var schemes = map[AuthMode]string{AuthBasic: "basic", AuthToken: "bearer"}

// operation describes one route.
func (s *Server) operation(r *route, shapes *shapes) object {
	of := strings.Split(strings.TrimPrefix(r.pattern, apiPath), "/")
	operation := object{"operationId": r.id, "summary": r.summary, "tags": []string{of[0]}}
	if r.least != RoleViewer {
		operation["description"] = "Needs the role " + string(r.least) + "."
	}
	var takes []object
	take := func(name, in string) {
		p := parameters[name]
		if values := r.values[name]; values != nil {
			p.schema = maps.Clone(p.schema)
			p.schema["enum"] = values
		}
		takes = append(takes, object{"name": name, "in": in, "required": in == "path", "description": p.about, "schema": p.schema})
	}
	for _, part := range of {
		if name, is := strings.CutPrefix(part, "{"); is {
			take(strings.TrimSuffix(name, "}"), "path")
		}
	}
	for _, name := range r.query {
		take(name, "query")
	}
	for _, name := range r.header {
		take(name, "header")
	}
	if takes != nil {
		operation["parameters"] = takes
	}
	if r.body != nil {
		operation["requestBody"] = object{
			"required": len(r.needs) > 0, "content": object{"application/json": object{"schema": shapes.request(r)}},
		}
	}
	responses := object{}
	for _, reply := range r.replies {
		var schemas []object
		for _, other := range r.replies {
			if other.status == reply.status && other.body != nil {
				schemas = append(schemas, shapes.value(other.body))
			}
		}
		schema := object{"type": "string"}
		switch len(schemas) {
		case 0:
		case 1:
			schema = schemas[0]
		default:
			schema = object{"anyOf": schemas}
		}
		status := strconv.Itoa(reply.status)
		if reply.media == "" {
			responses[status] = object{"description": http.StatusText(reply.status)}
			continue
		}
		if responses[status] == nil {
			responses[status] = object{"description": http.StatusText(reply.status), "content": object{}}
		}
		responses[status].(object)["content"].(object)[reply.media] = object{"schema": schema}
	}
	for _, status := range r.problems(s.o.SignIn.mode) {
		responses[strconv.Itoa(status)] = object{"$ref": "#/components/responses/Problem"}
	}
	operation["responses"] = responses
	return operation
}

// shapes makes the JSON Schemas of types, as encoding/json encodes them. A field without omitempty
// and omitzero is required. Null is what the types of package admin make of a missing value, and
// any pointer may be null; a field that is omitted instead is never null. Slices and maps are never
// null: the handlers answer with empty ones.
type shapes struct {
	named map[string]object // schemas of structs, by name
	types map[string]reflect.Type
}

func newShapes() *shapes {
	return &shapes{named: make(map[string]object), types: make(map[string]reflect.Type)}
}

// number has a format because generated clients take 32 bits for a number without one.
var number = object{"type": "number", "format": "double"}

// texts are the schemas of types that encode themselves.
var texts = map[reflect.Type]object{
	reflect.TypeFor[admin.Instant]():   {"type": "string", "format": "date-time"},
	reflect.TypeFor[admin.TickTime]():  {"type": "string", "format": "date-time"},
	reflect.TypeFor[time.Time]():       {"type": "string", "format": "date-time"},
	reflect.TypeFor[admin.Text]():      {"type": "string"},
	reflect.TypeFor[admin.Seconds]():   number,
	reflect.TypeFor[locks.Token]():     {"type": "string", "pattern": "^[0-9]+$"},
	reflect.TypeFor[json.RawMessage](): {}, // any value
}

// of returns the schema of a value, null included.
func (s *shapes) of(t reflect.Type) object {
	schema := s.value(t)
	switch t {
	case reflect.TypeFor[admin.Instant](), reflect.TypeFor[admin.TickTime](), reflect.TypeFor[admin.Text]():
	default:
		if t.Kind() != reflect.Pointer {
			return schema
		}
	}
	if kind, is := schema["type"].(string); is {
		schema["type"] = []string{kind, "null"}
		return schema
	}
	return object{"anyOf": []object{schema, {"type": "null"}}}
}

// value returns the schema of a value that is not null.
func (s *shapes) value(t reflect.Type) object {
	if schema, is := texts[t]; is {
		return maps.Clone(schema)
	}
	if t.Kind() == reflect.Pointer {
		return s.value(t.Elem())
	}
	if t.Implements(reflect.TypeFor[json.Marshaler]()) {
		panic(fmt.Sprintf("web: %s encodes itself, and texts lacks it", t))
	}
	if t.Implements(reflect.TypeFor[encoding.TextMarshaler]()) {
		return object{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Struct:
		return s.structure(t)
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return object{"type": "integer"}
	case reflect.Float64:
		return maps.Clone(number)
	case reflect.Interface:
		return object{}
	}
	panic(fmt.Sprintf("web: a %s is not described", t))
}

// structure returns a reference to the schema of a struct, and makes that if it is new.
func (s *shapes) structure(t reflect.Type) object {
	name := shapeName(t)
	if known, is := s.types[name]; is && known != t {
		panic(fmt.Sprintf("web: %s and %s have the same name in the document", known, t))
	} else if !is {
		s.types[name] = t // before its fields, which may refer to it
		properties, required := object{}, []string{}
		for _, f := range jsonFields(t) {
			if f.omitted {
				properties[f.name] = s.value(f.of)
			} else {
				properties[f.name] = s.of(f.of)
				required = append(required, f.name)
			}
		}
		s.named[name] = object{"type": "object", "properties": properties, "required": required}
	}
	return object{"$ref": "#/components/schemas/" + name}
}

// request returns the schema of a route's body: only the fields that the route takes.
func (s *shapes) request(r *route) object {
	properties := object{}
	for _, f := range jsonFields(r.body) {
		if len(r.fields) == 0 || slices.Contains(r.fields, f.name) {
			properties[f.name] = s.value(f.of)
		}
	}
	schema := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(r.needs) > 0 {
		schema["required"] = r.needs
	}
	return schema
}

// shapeName is the name of a type in the document: Run, and RunList for a part of a list of runs.
func shapeName(t reflect.Type) string {
	name, of, generic := strings.Cut(t.Name(), "[")
	if generic {
		of = strings.TrimSuffix(of, "]")
		return of[strings.LastIndexByte(of, '.')+1:] + "List"
	}
	return strings.ToUpper(name[:1]) + name[1:]
}

// jsonField is a field of a struct as encoding/json knows it.
type jsonField struct {
	name    string
	of      reflect.Type
	omitted bool // when it has the zero value
}

func jsonFields(t reflect.Type) []jsonField {
	var fields []jsonField
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" || !f.IsExported() || name == "-" {
			continue // the fields of an embedded struct are listed by themselves
		}
		if name == "" {
			name = f.Name
		}
		fields = append(fields, jsonField{name, f.Type, strings.Contains(options, "omit")})
	}
	return fields
}
