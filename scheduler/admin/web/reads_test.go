package web

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/admin/fakes"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/queue"
	"lockstep/scheduler/worker"
)

// getObject decodes an answer without this package's types.
func getObject(t *testing.T, s *Server, path string) map[string]any {
	t.Helper()
	w := get(s, path)
	var object map[string]any
	if err := json.Unmarshal(w.Body.Bytes(), &object); err != nil || w.Code != 200 {
		t.Fatalf("%s: %d, %s (%v)", path, w.Code, w.Body, err)
	}
	return object
}

func TestTheOverviewIsReadAsJSON(t *testing.T) {
	t.Parallel()
	overview := getObject(t, newServer(t, fakes.Fleet()), "/api/v1/overview")
	first := overview["workers"].([]any)[0].(map[string]any)
	if overview["at"] != "2026-11-21T12:00:00.000Z" || first["id"] != "web-1.x7k2m9qa" || len(first["holds"].([]any)) != 2 {
		t.Errorf("%v, want the time, and the workers with their holds", overview)
	}
	if count := overview["outstanding"].(map[string]any); count["running"] != 2.0 || count["waiting"] != 1.0 || overview["counted_all"] != true {
		t.Errorf("%v, want the outstanding runs by state", count)
	}
	for name, value := range getObject(t, newServer(t, &fakes.Fake{}), "/api/v1/overview") {
		if value == nil && name != "at" {
			t.Errorf("%s is null in an empty overview", name)
		}
	}
}

func TestNextTicksAreReadInPages(t *testing.T) {
	t.Parallel()
	s := newServer(t, fakes.Fleet())
	page := getList(t, s, "/api/v1/jobs/next?until=1h&limit=2")
	if got := page.names("tick"); !slices.Equal(got, []string{"2026-11-21T12:15:00Z", "2026-11-21T12:30:00Z"}) || page.NextCursor == nil {
		t.Fatalf("%q, %v, want two ticks and more", got, page.NextCursor)
	}
	rest := getList(t, s, "/api/v1/jobs/next?until=1h&limit=2&cursor="+*page.NextCursor)
	if got := rest.names("tick"); !slices.Equal(got, []string{"2026-11-21T12:45:00Z"}) || rest.NextCursor != nil {
		t.Errorf("%q, %v, want the last one", got, rest.NextCursor)
	}
	if got := getList(t, s, "/api/v1/jobs/next?limit=1&job=nightly-backup").names("tick"); !slices.Equal(got, []string{"2026-11-22T01:00:00Z"}) {
		t.Errorf("%q, want the next tick of the job", got)
	}
	for path, want := range map[string]int{"jobs/next?job=nobody": 404, "jobs/next?until=soon": 400, "jobs/next?since=1h": 400, "jobs/next?cursor=eA": 400} {
		if w := get(s, "/api/v1/"+path); w.Code != want {
			t.Errorf("%s: %d, %s, want %d", path, w.Code, w.Body, want)
		}
	}
}

// withQueues returns a server that reads the queues, too.
func (c *console) withQueues(rdb *redis.Client) *Server {
	c.t.Helper()
	client, err := queue.New(rdb, c.Namespace)
	if err != nil {
		c.t.Fatal(err)
	}
	return newServerOf(c.t, c.reader.WithQueues(client))
}

func TestQueuesShowWhatIsDueAndTheActorOfAPause(t *testing.T) {
	t.Parallel()
	redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
		t.Parallel()
		c := newConsole(t, rdb)
		server := c.withQueues(rdb)
		c.Open("w", &worker.Card{Host: "w", State: "ready", Slots: 2, Queues: map[string]int{c.queue: 1}})
		path := "/api/v1/queues/" + c.queue
		if q := getObject(t, server, path); q["due"] != 0.0 || q["oldest_seconds"] != nil || q["paused"] != false || q["workers"] != 1.0 {
			t.Errorf("%v, want an empty queue that one worker serves", q)
		}
		for i := range 2 {
			request := ledger.Request{Job: c.job, ID: fmt.Sprint(i), Trigger: ledger.TriggerEnqueue}
			if _, err := c.operator.Enqueue(t.Context(), request, admin.Actor{Who: "bob"}); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.operator.PauseQueue(t.Context(), c.queue, admin.Actor{Who: "ann", Why: `a "partner" <b>is</b> down`}); err != nil {
			t.Fatal(err)
		}
		server = c.withQueues(rdb) // the first one gives its answer for a second
		q := getObject(t, server, path)
		if q["due"] != 2.0 || q["pending"] != 2.0 || q["namespace"] != c.Namespace {
			t.Errorf("%v, want two due runs and their deliveries", q)
		}
		if q["paused"] != true || q["paused_by"] != "ann" || q["paused_why"] != `a "partner" <b>is</b> down` || q["paused_at"] == nil {
			t.Errorf("%v, want the actor and the reason", q)
		}
		list := getList(t, server, "/api/v1/queues?limit=1000")
		if !slices.Contains(list.names("queue"), c.queue) {
			t.Errorf("%q, want the queue", list.names("queue"))
		}
		for path, want := range map[string]int{path + "x": 404, "/api/v1/queues/%00%22%3Cscript%3E": 404, "/api/v1/queues?state=paused": 400} {
			if w := get(server, path); w.Code != want {
				t.Errorf("%s: %d, %s, want %d", path, w.Code, w.Body, want)
			}
		}
		if w := get(c.server, path); w.Code != 404 { // this one reads no queues
			t.Errorf("%d, %s, want 404", w.Code, w.Body)
		}
	})
}
