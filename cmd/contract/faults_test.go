package contract

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"lockstep/scheduler/admin"
)

// Each case plants a fault in a right document. The server has none.
func TestFaultsOfADocumentAreFound(t *testing.T) {
	t.Parallel()
	d, f := newDesk(t), fleet()
	url := serve(t, d.options(admin.ReaderOf(f, f)))
	right := documentOf(t, url)
	schema := func(name string) string { return "components/schemas/" + name + "/properties/" }
	operation := func(path, method string) string { return "paths/~api~v1~" + path + "/" + method + "/" }
	for name, test := range map[string]struct {
		plant   func(document node)
		method  string // with path, body and headers, the request that meets the fault
		path    string
		body    string
		headers []string
		status  int
		want    string // a part of the finding
	}{
		"the document has no title": {plant: func(n node) { n.remove("info/title") }, path: "jobs", want: "title"},
		"a required field has another name": {
			plant: func(n node) { n.rename(schema("Job")+"queue", "queues") }, path: "jobs", want: "queue",
		},
		"an optional field has another name": {
			plant: func(n node) { n.rename(schema("Run")+"due_at", "due") }, path: "runs", want: "due_at",
		},
		"a field has another type": {
			plant: func(n node) { n.set(schema("Worker")+"pid", node{"type": "string"}) }, path: "workers", want: "pid",
		},
		"null is not permitted": {
			plant: func(n node) { n.set(schema("Job")+"schedule", node{"type": "string"}) }, path: "jobs", want: "schedule",
		},
		"a list of one shape instead of two": {
			plant: func(n node) {
				n.set(operation("holds", "get")+"responses/200/content/application~json/schema", node{"$ref": "#/components/schemas/EntryList"})
			}, path: "holds?group=lock", want: "group",
		},
		"a shape is not described": {
			plant: func(n node) { n.set("components/schemas/EntryList/properties/items", node{}) }, path: "jobs", want: "permits any value",
		},
		"a parameter lacks a value": {
			plant: func(n node) { n.set(operation("holds", "get")+"parameters/2/schema/enum", []string{"worker", "job"}) },
			path:  "holds?group=lock", want: "group",
		},
		"a parameter is missing": {
			plant: func(n node) { n.set(operation("holds", "get")+"parameters", []any{}) }, path: "holds?kind=wait", want: "kind",
		},
		"a header is missing": {
			plant: func(n node) { n.remove(operation("events", "get") + "parameters") },
			path:  "events", headers: []string{"Last-Event-ID", "x-1"}, want: "Last-Event-Id",
		},
		"a status is missing": {
			plant: func(n node) { n.remove(operation("jobs~{job}", "get") + "responses/404") }, path: "jobs/none", status: 404, want: "404",
		},
		"a problem has another type": {
			plant: func(n node) {
				n.rename("components/responses/Problem/content/application~problem+json", "text/plain")
			}, path: "jobs/none", status: 404, want: "application/problem+json",
		},
		"a media type is missing": {
			plant: func(n node) {
				n.remove(operation("runs~{id}~output", "get") + "responses/200/content/text~plain")
			}, path: "runs/settle-bills%23second/output", want: "text/plain",
		},
		"an operation is missing": {
			plant: func(n node) { n.remove("paths/~api~v1~overview") }, path: "overview", want: "overview",
		},
		"a field of a request is missing": {
			plant: func(n node) {
				n.remove(operation("config~reload", "post") + "requestBody/content/application~json/schema/properties/worker")
			}, method: http.MethodPost, path: "config/reload", body: `{"worker": "web-1.x"}`, want: "worker",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var document node
			if err := json.Unmarshal(right, &document); err != nil {
				t.Fatal(err)
			}
			test.plant(document)
			wrong, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			var found []string
			note := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
			method, status := http.MethodGet, http.StatusOK
			if test.method != "" {
				method = test.method
			}
			if test.status != 0 {
				status = test.status
			}
			c := newContractBy(t, url, wrong, make(map[string]bool), note)
			c.send(t, method, v1+test.path, test.body, status, test.headers...)
			if !slices.ContainsFunc(found, func(finding string) bool { return strings.Contains(finding, test.want) }) {
				t.Errorf("found %q, want a finding with %q", found, test.want)
			}
		})
	}
}

func TestWhatNoRequestShowsIsFound(t *testing.T) {
	t.Parallel()
	d, f := newDesk(t), fleet()
	c := newContract(t, serve(t, d.options(admin.ReaderOf(f, f))), make(map[string]bool))
	const (
		byWorker   = "GET /api/v1/holds group=worker"
		byLock     = "GET /api/v1/holds group=lock"
		ofEntries  = "GET /api/v1/holds 200 application/json #/components/schemas/EntryList"
		ofGroups   = "GET /api/v1/holds 200 application/json #/components/schemas/EntryGroupList"
		ofProblems = "a problem with status 400"
	)
	for _, step := range []struct {
		path    string
		status  int
		missing []string
	}{
		{"holds?group=host", 400, []string{byWorker, byLock, ofEntries, ofGroups}},
		{"holds?lock=none", 200, []string{byWorker, byLock, ofEntries, ofGroups}},
		{"holds?group=lock", 200, []string{byWorker, ofEntries}},
		{"holds", 200, []string{byWorker}},
		{"holds?group=worker", 200, nil},
	} {
		c.send(t, http.MethodGet, v1+step.path, "", step.status)
		var missing []string
		unseen := c.unseen()
		for _, promise := range []string{byWorker, byLock, ofEntries, ofGroups, ofProblems} {
			if slices.Contains(unseen, promise) {
				missing = append(missing, promise)
			}
		}
		if !slices.Equal(missing, step.missing) {
			t.Errorf("after %s: %q is unseen, want %q", step.path, missing, step.missing)
		}
	}
}

// node is an object of a document. Its methods take the path to an element, where ~ is a slash of
// a name.
type node map[string]any

// parent returns the object or the list that has an element, and the element's name there.
func (n node) parent(path string) (any, string) {
	parts := strings.Split(path, "/")
	var at any = map[string]any(n)
	for i, part := range parts {
		parts[i] = strings.ReplaceAll(part, "~", "/")
		if i == len(parts)-1 {
			break
		}
		switch of := at.(type) {
		case map[string]any:
			at = of[parts[i]]
		case []any:
			var index int
			if _, err := fmt.Sscan(part, &index); err != nil {
				panic(path + ": " + err.Error())
			}
			at = of[index]
		}
	}
	return at, parts[len(parts)-1]
}

func (n node) set(path string, value any) {
	of, name := n.parent(path)
	if _, is := of.(map[string]any)[name]; !is {
		panic(path + " does not exist")
	}
	of.(map[string]any)[name] = value
}

func (n node) remove(path string) {
	n.set(path, nil)
	of, name := n.parent(path)
	delete(of.(map[string]any), name)
}

func (n node) rename(path, to string) {
	of, name := n.parent(path)
	value := of.(map[string]any)[name]
	n.remove(path)
	of.(map[string]any)[to] = value
}
