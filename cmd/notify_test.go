package cmd

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"lockstep/configs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/notify"
)

// receiver is a webhook that keeps what it gets. It refuses requests without a valid signature.
type receiver struct {
	t      *testing.T
	url    string
	key    string // the file with its key
	server *httptest.Server

	mu       sync.Mutex
	requests []string            // the bodies of those that it accepted, in order
	events   map[string]int      // id of an event -> how many accepted requests had it
	refuse   func(n int) (r int) // the status of the n-th request; 0: it is accepted
	n        int
	hold     chan struct{} // while it is not closed, accepted requests get no reply; nil: they do
	got      chan string   // the bodies of the first requests that get no reply yet
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{t: t, key: writeFile(t, "key", "the key of the hook\n"), events: make(map[string]int), got: make(chan string, 10)}
	r.listen("127.0.0.1:0")
	t.Cleanup(func() { r.server.Close() })
	return r
}

// listen makes the receiver serve at an address. A receiver that was closed may return to its own.
func (r *receiver) listen(address string) {
	r.t.Helper()
	listener, err := new(net.ListenConfig).Listen(r.t.Context(), "tcp", address)
	must(r.t, err)
	r.server = httptest.NewUnstartedServer(r)
	must(r.t, r.server.Listener.Close())
	r.server.Listener = listener
	r.server.Start()
	r.url = r.server.URL
}

// bodies returns those of the requests that it accepted, in order.
func (r *receiver) bodies() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

// refuseAll sets the status of all further replies; 0: requests are accepted.
func (r *receiver) refuseAll(status int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = func(int) int { return status }
}

// hang makes accepted requests get no reply until the returned function is called.
func (r *receiver) hang() (over func()) {
	hold := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hold = hold
	return sync.OnceFunc(func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(hold)
		r.hold = nil
	})
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return
	}
	if err := notify.Verify([]byte("the key of the hook"), body, request.Header.Get(notify.SignatureHeader), time.Now(), time.Minute); err != nil {
		r.t.Errorf("%s: %v", body, err)
		return
	}
	r.mu.Lock()
	r.n++
	status := 0
	if r.refuse != nil {
		status = r.refuse(r.n)
	}
	hold := r.hold
	if status == 0 {
		r.requests = append(r.requests, string(body))
		var event struct {
			ID   string
			Data struct{ IDs []string }
		}
		if err := json.Unmarshal(body, &event); err != nil {
			r.t.Errorf("%s: %v", body, err)
		}
		if event.Data.IDs == nil {
			event.Data.IDs = []string{event.ID}
		}
		for _, id := range event.Data.IDs {
			r.events[id]++
		}
	}
	r.mu.Unlock()
	if status != 0 {
		w.WriteHeader(status)
		return
	}
	if hold != nil {
		select {
		case r.got <- string(body):
		default:
		}
		select {
		case <-hold:
		case <-request.Context().Done():
		}
	}
}

// ids returns the events that it has got, sorted.
func (r *receiver) ids() (ids []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range r.events {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// ends returns what the ends of the failed runs of a job are called.
func (f *fleet) ends(conn *connection, job string) (ids []string) {
	f.t.Helper()
	records, err := conn.ledger.History(f.t.Context(), job, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range records {
		if r.State == ledger.StateFailed {
			ids = append(ids, fmt.Sprintf("%s.%d", r.ID, r.Last().Token))
		}
	}
	slices.Sort(ids)
	return ids
}

// TestFaultWorkersAreKilledWhileRunsFail kills workers at random while a run fails every second,
// and while their webhook refuses every third request. In the end it has got exactly the ends that
// are in the ledger. `make soak FOR=5m RUN=TestFaultWorkersAreKilledWhileRunsFail` takes longer.
func TestFaultWorkersAreKilledWhileRunsFail(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	hook.refuse = func(n int) int {
		if n%3 == 0 {
			return http.StatusInternalServerError
		}
		return 0
	}
	f, _ := newPack(t, fmt.Sprintf(`
notify: {hook: {webhook: "%s", secret_file: %s, on: [failed, lost]}}
defaults: {notify: [hook], retry: {max: 0}, max_crashes: 1000, history: {runs: 100000}}
jobs: {fails: {every: 1s, command: ["false"]}}
`, hook.url, hook.key))
	f.startAll(3)
	conn, kills := f.connection(), 0
	total, seed := soakTime(t)
	random := rand.New(rand.NewPCG(seed, 6))
	for end := time.Now().Add(max(total, 20*time.Second)); time.Now().Before(end); kills++ {
		before := len(f.ends(conn, "fails"))
		eventually(t, time.Minute, "three more runs have failed", func() bool { return len(f.ends(conn, "fails")) >= before+3 })
		i := random.IntN(len(f.workers))
		if kills%4 < 3 {
			f.workers[i].killChild()
		} else { // its parent as well
			f.workers[i].killAll()
			f.workers[i] = launch(t, f.env, "start")
		}
		f.settled()
	}
	if _, stderr, code := runTool(t, f.env, "job", "pause", "fails", "--reason", "enough"); code != 0 {
		t.Fatal(stderr)
	}
	eventually(t, time.Minute, "all runs have ended", func() bool {
		left, err := conn.ledger.Outstanding(t.Context(), "", 1)
		return err == nil && len(left) == 0
	})
	want := f.ends(conn, "fails")
	eventually(t, 3*time.Minute, "the webhook has got all of them", func() bool { return len(hook.ids()) >= len(want) })
	if got := hook.ids(); !slices.Equal(got, want) || len(want) < 6 {
		t.Errorf("the webhook got %q, and in the ledger are %q", got, want)
	}
	t.Logf("seed %d: %d ends in %d requests, %d kills", seed, len(want), len(hook.bodies()), kills)
	f.drain()
}

// TestFaultSenderIsKilledBeforeItRecords: the target gets the same request again, under one id.
func TestFaultSenderIsKilledBeforeItRecords(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	over := hook.hang()
	f, _ := newPack(t, fmt.Sprintf(`
notify: {hook: {webhook: "%s", secret_file: %s}}
jobs: {fails: {notify: [hook], retry: {max: 0}, command: ["false"]}}
`, hook.url, hook.key))
	f.startAll(1)
	conn := f.connection()
	f.await(f.enqueue("fails", "1"), "failed")
	first := <-hook.got
	f.workers[0].killChild()
	over()
	eventually(t, 2*time.Minute, "the webhook has got it again", func() bool { return len(hook.bodies()) == 2 })
	if again := hook.bodies()[1]; again != first || !slices.Equal(hook.ids(), f.ends(conn, "fails")) {
		t.Errorf("the webhook got %q, then %q; in the ledger is %q", first, again, f.ends(conn, "fails"))
	}
	eventually(t, time.Minute, "it is recorded", func() bool {
		all := ask[[]notified](t, f.env, "notify", "ls")
		return len(all) == 1 && all[0].Sent == 1 && all[0].Waiting == 0
	})
	f.drain()
}

// TestPingsAndRefusedConfigsAreReported checks the requests that a worker sends for both.
func TestPingsAndRefusedConfigsAreReported(t *testing.T) {
	t.Parallel()
	hook := newReceiver(t)
	pings := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { pings <- r.URL.Path }))
	t.Cleanup(server.Close)
	config := fmt.Sprintf(`
notify: {hook: {webhook: "%s", secret_file: %s, on: [config_refused]}}
jobs:
  fails: {ping: "%[3]s/a", retry: {max: 0}, command: ["false"]}
  works: {ping: "%[3]s/b", command: ["true"]}
`, hook.url, hook.key, server.URL)
	f, _ := newPack(t, config)
	f.startAll(1)
	for _, job := range []string{"fails", "works"} {
		f.enqueue(job, "1")
		want := map[string][]string{"fails": {"/a/start", "/a/fail"}, "works": {"/b/start", "/b"}}[job]
		for _, path := range want {
			if got := <-pings; got != path {
				t.Errorf("%s: pinged %s, want %s", job, got, path)
			}
		}
	}
	write(t, f.config, config+"nonsense: 1\n")
	f.workers[0].signal(syscall.SIGHUP)
	eventually(t, time.Minute, "the webhook has heard of it", func() bool { return len(hook.ids()) == 1 })
	if got := hook.bodies()[0]; !strings.Contains(got, `"type":"lockstep.config.refused"`) || !strings.Contains(got, `unknown key \"nonsense\"`) {
		t.Errorf("the webhook got %s", got)
	}
	write(t, f.config, config) // for the commands of drain
	f.drain()
}

// TestNoSecretOfATargetLeavesItsWorker looks for the secrets of targets in Redis and in logs, also
// after they have failed.
func TestNoSecretOfATargetLeavesItsWorker(t *testing.T) {
	t.Parallel()
	refused := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "no "+r.URL.String(), http.StatusForbidden)
	}))
	t.Cleanup(refused.Close)
	secret := writeFile(t, "secret", "hunter2-hunter2")
	host := strings.TrimPrefix(refused.URL, "http://")
	f, server := newPack(t, fmt.Sprintf(`
notify:
  hook: {webhook: "%s/${file:%s}"}
  service: {url: "ntfy://%s/${file:%[2]s}?scheme=http"}
defaults: {notify: [hook, service], retry: {max: 0}}
jobs: {fails: {command: ["false"]}}
`, refused.URL, secret, host))
	f.startAll(1)
	f.await(f.enqueue("fails", "1"), "failed")
	var all []notified
	eventually(t, time.Minute, "both have failed", func() bool {
		all = ask[[]notified](t, f.env, "notify", "ls")
		return len(all) == 2 && all[0].Error != "" && all[1].Error != ""
	})
	stdout, _, _ := runTool(t, f.env, "notify", "ls", "-o", "yaml")
	_, stderr, code := runTool(t, f.env, "notify", "test", "hook")
	if code != 1 || !strings.Contains(stderr, "status 403") {
		t.Errorf("test exits with %d and says %s", code, stderr)
	}
	doctor, _, _ := runTool(t, f.env, "doctor")
	if !strings.Contains(doctor, "the last request failed") {
		t.Errorf("doctor says %s", doctor)
	}
	for what, text := range map[string]string{"notify ls": stdout, "notify test": stderr, "doctor": doctor, "the log": f.workers[0].stderr.String()} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has the secret: %s", what, text)
		}
	}
	rdb := server.Client(t)
	for _, key := range rdb.Keys(t.Context(), "*").Val() {
		dump := rdb.Dump(t.Context(), key).Val()
		if strings.Contains(dump, "hunter2") {
			t.Errorf("the key %s has the secret", key)
		}
	}
	f.drain()
}

// TestEveryServiceOfAConfigIsKnown: shoutrrr has those that a target may have.
func TestEveryServiceOfAConfigIsKnown(t *testing.T) {
	t.Parallel()
	for _, name := range configs.Services() {
		if !notify.KnowsService(name) {
			t.Errorf("shoutrrr does not know %s", name)
		}
	}
	if notify.KnowsService("nothing") {
		t.Error("it knows a service called nothing")
	}
}
