package web

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"lockstep/locks"
	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/worker"
)

// contract checks requests and replies against the document that a server answers with. The schemas
// are those of OpenAPI 3.1, which are JSON Schemas of the draft 2020-12, so the validator of the
// config's schema checks them, too.
type contract struct {
	t        *testing.T
	compiler *jsonschema.Compiler
	paths    map[string]map[string]operation
	seen     map[string]bool // patterns and statuses
}

// operation is what the document says about a path and a method.
type operation struct {
	Parameters []struct {
		Name, In string
		Schema   struct{ Type string }
	}
	RequestBody *struct{ Required bool }
	Responses   map[string]struct {
		Ref     string `json:"$ref"`
		Content map[string]any
	}
}

func newContract(t *testing.T, s *Server) *contract {
	t.Helper()
	body := get(s, "/api/v1/openapi.json").Body.Bytes()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	var read struct {
		OpenAPI    string
		Info       struct{ Title, Version string }
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(body, &read); err != nil {
		t.Fatal(err)
	}
	if read.OpenAPI != "3.1.0" || read.Info.Title == "" || read.Info.Version == "" {
		t.Errorf("the document begins with %q, %+v, want OpenAPI 3.1 with a title and a version", read.OpenAPI, read.Info)
	}
	c := &contract{t, jsonschema.NewCompiler(), read.Paths, make(map[string]bool)}
	c.compiler.AssertFormat()
	if err := c.compiler.AddResource("openapi.json", document); err != nil {
		t.Fatal(err)
	}
	for name := range read.Components.Schemas {
		c.schema("components", "schemas", name)
	}
	return c
}

// schema returns the schema at a place in the document. All that it refers to must exist.
func (c *contract) schema(place ...string) *jsonschema.Schema {
	c.t.Helper()
	at := "openapi.json#"
	for _, part := range place {
		at += "/" + url.PathEscape(strings.NewReplacer("~", "~0", "/", "~1").Replace(part))
	}
	schema, err := c.compiler.Compile(at)
	if err != nil {
		c.t.Fatalf("%s: %v", at, err)
	}
	return schema
}

// exchange sends a request and checks the reply, and the request if it is accepted.
func (c *contract) exchange(s *Server, method, path, body string, want int) {
	c.t.Helper()
	r := httptest.NewRequest(method, "http://127.0.0.1:9620"+path, strings.NewReader(body))
	r.RemoteAddr = "127.0.0.1:1234"
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if w.Code != want {
		c.t.Errorf("%s %s: got %d, %s, want %d", method, path, w.Code, w.Body, want)
		return
	}
	_, pattern := s.mux.Handler(r)
	c.seen[fmt.Sprintf("%s %d", pattern, want)] = true
	method = strings.ToLower(method)
	described, is := c.paths[pattern][method]
	if !is {
		c.t.Errorf("%s %s is not in the document", method, pattern)
		return
	}
	place := []string{"paths", pattern, method, "responses", strconv.Itoa(want)}
	response, is := described.Responses[strconv.Itoa(want)]
	if response.Ref != "" {
		place = strings.Split(strings.TrimPrefix(response.Ref, "#/"), "/")
	}
	media, _, err := mime.ParseMediaType(w.Header().Get("Content-Type"))
	if err != nil || !is || response.Ref == "" && response.Content[media] == nil {
		c.t.Errorf("%s %s: the document has no reply %d of the type %q (%v)", method, path, want, media, err)
		return
	}
	var reply any = w.Body.String()
	if strings.HasSuffix(media, "json") {
		if reply, err = jsonschema.UnmarshalJSON(w.Body); err != nil {
			c.t.Errorf("%s %s: %v", method, path, err)
		}
	}
	if err := c.schema(append(place, "content", media, "schema")...).Validate(reply); err != nil {
		c.t.Errorf("%s %s: the reply is not as in the document: %v", method, path, err)
	}
	if want < http.StatusBadRequest {
		c.checkRequest(described, r, pattern, body)
	}
}

// checkRequest checks a request that was accepted.
func (c *contract) checkRequest(described operation, r *http.Request, pattern, body string) {
	c.t.Helper()
	place := []string{"paths", pattern, strings.ToLower(r.Method)}
	known := make(map[string]bool)
	for i, p := range described.Parameters {
		text := r.URL.Query().Get(p.Name)
		if p.In == "path" || text == "" {
			continue
		}
		known[p.Name] = true
		var value any = text
		if p.Schema.Type == "integer" {
			value = json.Number(text)
		}
		if err := c.schema(append(place, "parameters", strconv.Itoa(i), "schema")...).Validate(value); err != nil {
			c.t.Errorf("%s: the parameter %s is accepted, but not as in the document: %v", r.URL, p.Name, err)
		}
	}
	for name := range r.URL.Query() {
		if !known[name] {
			c.t.Errorf("%s: the parameter %s is accepted, but not in the document", r.URL, name)
		}
	}
	if body == "" {
		if described.RequestBody != nil && described.RequestBody.Required {
			c.t.Errorf("%s: a request without a body is accepted, but not as in the document", r.URL)
		}
		return
	}
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.schema(append(place, "requestBody", "content", "application/json", "schema")...).Validate(value); err != nil {
		c.t.Errorf("%s: the body %s is accepted, but not as in the document: %v", r.URL, body, err)
	}
}

func TestRepliesMatchTheirDocument(t *testing.T) {
	t.Parallel()
	s := apiServer(t)
	c := newContract(t, s)
	const v1 = "/api/v1/"
	read := func(path string) {
		t.Helper()
		c.exchange(s, http.MethodGet, v1+path, "", http.StatusOK)
	}
	for _, path := range []string{
		"jobs", "jobs?note=late&limit=2", "jobs/nightly-backup", "jobs/settle-bills", "jobs/warm-cache", "jobs/nightly-backup/ticks?limit=2",
		"jobs/nightly-backup/explain?at=2026-11-19T01:00:00Z", "jobs/settle-bills/explain?run=settle-bills%23second",
		"runs", "runs?job=nightly-backup&state=failed", "runs?group=error", "runs/settle-bills%23second/output",
		"runs/nightly-backup%402026-11-20T01:00:00Z/output?attempt=1",
		"runs/nightly-backup%402026-11-20T01:00:00Z/output?follow=true", "locks", "locks/bill:1001", "locks/bill:1003", "locks/free",
		"waits", "holds", "holds?group=lock&kind=hold", "holds?since=90m&until=1m", "workers", "workers/web-2.p91qd3f7", "config", "config/jobs", "whoami", "audit", "openapi.json",
		"overview", "jobs/next?until=1h&limit=2",
	} {
		read(path)
	}
	for _, id := range getList(t, s, v1+"runs").names("id") {
		read("runs/" + url.PathEscape(id))
	}
	for path, status := range map[string]int{"jobs?limit=0": 400, "jobs/none": 404, "runs/none/output": 404} {
		c.exchange(s, http.MethodGet, v1+path, "", status)
	}
	c.exchange(s, http.MethodPost, reloadPath, `{"worker": "web-1.x"}`, http.StatusOK)
	c.exchange(s, http.MethodPost, reloadPath, "", http.StatusUnprocessableEntity)
	c.exchange(s, http.MethodPost, reloadPath, `{"worker": "other"}`, http.StatusConflict)
	read("config") // with a refusal
	rdb := redistest.Client(t)
	stage := newConsole(t, rdb)
	c.acts(stage)
	c.exchange(stage.withQueues(rdb), http.MethodGet, v1+"queues", "", http.StatusOK)
	c.exchange(stage.withQueues(rdb), http.MethodGet, v1+"queues/"+stage.queue, "", http.StatusOK)

	for _, r := range s.table {
		for _, reply := range r.replies {
			if got := fmt.Sprintf("%s %d", r.pattern, reply.status); r.isAPI() && !c.seen[got] && reply.media != "text/event-stream" {
				t.Errorf("no request of this test has the reply %s: add one", got)
			}
		}
	}
}

// acts sends the requests that change something.
func (c *contract) acts(stage *console) {
	c.t.Helper()
	s := stage.server
	const v1 = "/api/v1/"
	post := func(path, body string, want int) {
		c.t.Helper()
		c.exchange(s, http.MethodPost, v1+path, body, want)
	}
	post("jobs/nightly/pause", `{"reason": "the partner is down"}`, 200)
	post("jobs/nightly/resume", "", 200)
	post("enqueue", `{"job": "nightly", "id": "x", "args": {"a": 1}}`, 201)
	post("enqueue", `{"job": "nightly", "id": "y", "parent": "nightly#x"}`, 201)
	post("enqueue", `{"job": "nightly", "id": "x"}`, 200)
	post("enqueue", `{"job": "nightly", "in": "1h"}`, 201)
	post("enqueue", `{"job": "nightly", "at": "2030-01-01T00:00:00Z"}`, 201)
	post("enqueue", `{"job": "nightly", "odd": 1}`, 400)
	post("enqueue", `{"job": "none"}`, 404)
	post("enqueue", `{"job": "nightly", "args": "`+strings.Repeat("x", bodyMost)+`"}`, 413)
	post("jobs/nightly/run", `{"id": "hand", "reason": "again"}`, 201)
	post("jobs/nightly/run", `{"id": "hand"}`, 200)
	post("enqueue?wait=1ms", `{"job": "nightly", "id": "waited"}`, 202)
	decided, err := stage.Ledger.Job(c.t.Context(), "nightly")
	if err != nil {
		c.t.Fatal(err)
	}
	span := fmt.Sprintf(`{"from": %q, "to": %q, "dry_run": true}`, decided.Cursor.Add(-72*time.Hour).Format(time.RFC3339),
		decided.Cursor.Truncate(time.Second).Format(time.RFC3339))
	post("jobs/nightly/replay", span, 200)
	post("jobs/nightly/skip", span, 200)
	post("runs/cancel?q=waited", `{"dry_run": true, "expect": 1}`, 200)
	post("runs/cancel?q=waited", `{"expect": 2}`, 409)
	post("runs/retry?job=nightly&since=1h", `{"reason": "the disk was full"}`, 200)
	s.o.Worker = func() string { return "web-1.x" }
	s.o.Check = func(context.Context) (*admin.ConfigCheck, error) {
		return &admin.ConfigCheck{Files: []string{}, Errors: []admin.ConfigProblem{{At: "a.yaml:1:2", Code: "unknown-key"}}, Warnings: []admin.ConfigProblem{},
			Added: []string{}, Changed: []string{}, Removed: []string{}, NeedsRestart: []string{}}, nil
	}
	post("config/check", "", 200)
	post("runs/nightly%23x/cancel", `{"reason": "wrong"}`, 200)
	post("runs/nightly%23x/cancel", "", 409)
	post("runs/nightly%23x/retry", "", 200)
	post("queues/"+stage.queue+"/pause", `{"reason": "maintenance"}`, 200)
	post("queues/"+stage.queue+"/resume", "", 200)

	client := stage.Open("w", &worker.Card{Host: "web-1", PID: 4711, State: "ready", Slots: 4,
		Queues: map[string]int{stage.queue: 1}, StartedAt: time.Now()})
	held, err := client.Acquire(c.t.Context(), locks.Exclusive("bill:1"))
	if err != nil {
		c.t.Fatal(err)
	}
	post("workers/"+url.PathEscape(string(client.Session()))+"/drain", `{"reason": "replace it"}`, 200)
	order := `{"token": "` + held.Token().String() + `", "reason": "it is stuck"`
	post("locks/bill:2/release", order+"}", 409)
	post("locks/bill:1/release", order+`, "force": false}`, 200)
	<-held.Context().Done()
	_ = held.Release() // its error reports that it was lost
	for _, path := range []string{"jobs", "jobs/nightly", "runs", "runs/nightly%23x", "locks", "workers", "audit"} {
		c.exchange(s, http.MethodGet, v1+path, "", http.StatusOK)
	}
}

// A server with a sign-in has its refusals in the document, too.
func TestRefusedSignInsMatchTheirDocument(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	var refuse error
	s.o.SignIn = &SignIn{mode: AuthBasic, who: func(*http.Request) (identity, error) { return identity{"ann", RoleAdmin}, refuse }}
	c := newContract(t, s)
	refuse = errSignIn
	c.exchange(s, http.MethodGet, "/api/v1/jobs", "", http.StatusUnauthorized)
	refuse = &throttledError{}
	c.exchange(s, http.MethodGet, "/api/v1/jobs", "", http.StatusTooManyRequests)
}
