package web

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks/redistest"
	"lockstep/scheduler/trace"
)

func TestARunKeepsTheTraceContextOfItsRequest(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		for id, test := range map[string]struct {
			path, body string
			header     http.Header
			want       trace.Context
		}{
			"enqueued": {"enqueue", `{"job": "nightly", "id": "enqueued"}`, http.Header{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}}, trace.Context{Parent: parent, State: "a=1,b=2"}},
			"hand":     {"jobs/nightly/run", `{"id": "hand"}`, http.Header{"Traceparent": {parent}}, trace.Context{Parent: parent}},
			"none":     {"enqueue", `{"job": "nightly", "id": "none"}`, nil, trace.Context{}},
			"broken":   {"enqueue", `{"job": "nightly", "id": "broken"}`, http.Header{"Traceparent": {"00-1-2-3"}, "Tracestate": {"a=1"}}, trace.Context{}},
			"twice":    {"enqueue", `{"job": "nightly", "id": "twice"}`, http.Header{"Traceparent": {parent, parent}}, trace.Context{}},
		} {
			r := httptest.NewRequest(http.MethodPost, "/api/v1/"+test.path, strings.NewReader(test.body))
			r.Host, r.RemoteAddr = "127.0.0.1:9620", "127.0.0.1:1234"
			for name, values := range test.header {
				r.Header[name] = values
			}
			w := httptest.NewRecorder()
			c.server.ServeHTTP(w, r)
			if w.Code != http.StatusCreated {
				t.Fatalf("%s: %d, %s", id, w.Code, w.Body)
			}
			record, err := c.Ledger.FindRecord(t.Context(), jobs.RunID("nightly#"+id))
			if err != nil {
				t.Fatal(err)
			}
			if record.Trace != test.want {
				t.Errorf("%s: kept %+v, want %+v", id, record.Trace, test.want)
			}
			shown := strings.Contains(w.Body.String(), `"trace_id":"0af7651916cd43dd8448eb211c80319c"`)
			if shown != (test.want.Parent != "") {
				t.Errorf("%s: the reply is %s", id, w.Body)
			}
		}
	})
}
