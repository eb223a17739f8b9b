package web

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
)

// A path enters the mux and the table of routes in one step, and the table says what the document
// needs.
func TestEveryPathOfTheAPIIsInItsDocument(t *testing.T) {
	t.Parallel()
	registered := 0
	sources, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range sources {
		if source, err := os.ReadFile(path); err != nil {
			t.Error(err)
		} else if !strings.HasSuffix(path, "_test.go") {
			registered += strings.Count(string(source), "mux.Handle")
		}
	}
	if registered != 1 {
		t.Errorf("%d places add paths to the mux, want only Server.register", registered)
	}

	s, err := New(Options{ // with every path
		Reader: readerOf(fakes.Fleet()), Operator: new(admin.Operator), Logger: slog.New(slog.DiscardHandler),
		Reload: func(context.Context) error { return nil },
		Check:  func(context.Context) (*admin.ConfigCheck, error) { return new(admin.ConfigCheck), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	body, err := s.document()
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct {
			OperationID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal(body, &document); err != nil {
		t.Fatal(err)
	}
	ids := make(map[string]bool)
	for _, r := range s.table {
		if !r.isAPI() {
			continue
		}
		if got := document.Paths[r.pattern][strings.ToLower(r.method)].OperationID; got == "" || got != r.id || ids[r.id] {
			t.Errorf("%s: the document has the operation %q, want %q, once", r.pattern, got, r.id)
		}
		ids[r.id] = true
		if r.summary == "" || len(r.replies) == 0 {
			t.Errorf("%s: the table has the summary %q and %d replies, want one at least: see route.as and route.gives", r.pattern, r.summary, len(r.replies))
		}
		names := slices.Concat(r.query, r.header)
		for part := range strings.SplitSeq(r.pattern, "/") {
			if name, is := strings.CutPrefix(part, "{"); is {
				names = append(names, strings.TrimSuffix(name, "}"))
			}
		}
		for _, name := range names {
			if parameters[name].schema == nil {
				t.Errorf("%s: the parameter %q is not in parameters", r.pattern, name)
			}
		}
		if (r.body != nil) != (r.method == http.MethodPost) {
			t.Errorf("%s: a %s with the body %v: see route.takes", r.pattern, r.method, r.body)
		}
		if r.body == nil {
			continue
		}
		var fields []string
		for _, f := range jsonFields(r.body) {
			fields = append(fields, f.name)
		}
		for _, name := range slices.Concat(r.fields, r.needs) {
			if !slices.Contains(fields, name) {
				t.Errorf("%s: %s has no field %q", r.pattern, r.body, name)
			}
		}
	}
}

func TestADocumentHasOnlyWhatItsServerDoes(t *testing.T) {
	t.Parallel()
	document := get(newServer(t, fakes.Fleet()), "/api/v1/openapi.json").Body.String()
	if strings.Contains(document, `"post"`) || strings.Contains(document, "securitySchemes") || strings.Contains(document, `"401"`) {
		t.Errorf("a server that changes nothing and has no users has the document %s", document)
	}
	for mode, want := range map[AuthMode]string{
		AuthBasic: `"securitySchemes":{"basic":{"scheme":"basic","type":"http"}}`, AuthToken: `"securitySchemes":{"token":{"scheme":"bearer","type":"http"}}`,
		AuthProxy: `"security":[]`,
	} {
		s := newServer(t, fakes.Fleet())
		s.o.SignIn = &SignIn{mode: mode}
		if got, err := s.document(); err != nil || !strings.Contains(string(got), want) || !strings.Contains(string(got), `"401"`) {
			t.Errorf("mode %s: got %s and %v, want %s", mode, got, err, want)
		}
	}
}
