package notify

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// plainClient replaces ${secret} and reads one secret file.
func plainClient(t *testing.T) *Client {
	t.Helper()
	c := NewClient(func(text string) (string, []jobs.Secret, error) {
		if strings.Contains(text, "${none}") {
			return "", nil, errors.New("${none} is not set")
		}
		return strings.ReplaceAll(text, "${secret}", "s3cret-token"), []jobs.Secret{{Reference: "${secret}", Value: "s3cret-token"}}, nil
	}, func(path string) (string, error) {
		if path != "/key" {
			return "", os.ErrNotExist
		}
		return "the-key-of-the-hook", nil
	})
	t.Cleanup(c.Close)
	return c
}

// serve starts a receiver.
func serve(t *testing.T, handle http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server.URL
}

var someTime = time.Date(2026, 11, 21, 1, 0, 0, 0, time.UTC)

func message(id string) ledger.Message {
	return ledger.Message{ID: id, Event: jobs.EventFailed, At: someTime, Job: "backup", Run: "backup@2026-11-21T01:00:00Z", Attempt: 3, Error: "exit status 1"}
}

func TestAWebhookGetsASignedCloudEvent(t *testing.T) {
	t.Parallel()
	var got []byte
	var header http.Header
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got, _ = io.ReadAll(r.Body)
		header = r.Header
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "thanks, s3cret-token")
	})
	target := &Target{Name: "hook", Webhook: url + "/${secret}", SecretFile: "/key"}
	reply, err := plainClient(t).send(t.Context(), target, &event{"lockstep/shop", []ledger.Message{message("a.1")}}, someTime)
	if err != nil || reply.Status != http.StatusAccepted || reply.Text != "thanks, ${secret}" {
		t.Fatalf("got %+v, %v, want the reply without the secret", reply, err)
	}
	want := `{"specversion":"1.0","id":"a.1","source":"lockstep/shop","type":"lockstep.run.failed","subject":"backup",` +
		`"time":"2026-11-21T01:00:00Z","datacontenttype":"application/json","data":{"id":"a.1","event":"failed",` +
		`"text":"backup@2026-11-21T01:00:00Z has failed after 3 attempts: exit status 1","job":"backup",` +
		`"run":"backup@2026-11-21T01:00:00Z","attempts":3,"at":"2026-11-21T01:00:00Z","error":"exit status 1"}}`
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if kind := header.Get("Content-Type"); kind != "application/cloudevents+json; charset=utf-8" {
		t.Errorf("content type %q", kind)
	}
	signature := header.Get(SignatureHeader)
	key := []byte("the-key-of-the-hook")
	if err := Verify(key, got, signature, someTime.Add(time.Minute), 5*time.Minute); err != nil {
		t.Errorf("%s: %v", signature, err)
	}
	for what, err := range map[string]error{
		"another key":  Verify([]byte("x"), got, signature, someTime, 5*time.Minute),
		"another body": Verify(key, append(got, ' '), signature, someTime, 5*time.Minute),
		"another time": Verify(key, got, strings.Replace(signature, "t=1", "t=2", 1), someTime, 5*time.Minute),
		"a replay":     Verify(key, got, signature, someTime.Add(6*time.Minute), 5*time.Minute),
		"no signature": Verify(key, got, "", someTime, 5*time.Minute),
	} {
		if !errors.Is(err, ErrSignature) {
			t.Errorf("%s: got %v, want it refused", what, err)
		}
	}
}

func TestSeveralMessagesAreOneEvent(t *testing.T) {
	t.Parallel()
	var list []ledger.Message
	for i := range 8 {
		list = append(list, message(fmt.Sprintf("a.%d", i)))
	}
	list[7].Event = jobs.EventRecovered
	all := event{"lockstep/shop", list}
	var got struct {
		ID, Type string
		Data     combined
	}
	if err := json.Unmarshal(all.body(), &got); err != nil {
		t.Fatal(err)
	}
	if got.ID != "a.0+7" || got.Type != typeCombined || got.Data.Count != 8 || len(got.Data.First) != firstMost || len(got.Data.IDs) != 8 ||
		got.Data.Events["failed"] != 7 || got.Data.Events["recovered"] != 1 {
		t.Errorf("got %+v", got)
	}
	if !bytes.Equal(all.body(), all.body()) {
		t.Error("two requests with the same messages differ")
	}
	text := all.text()
	if !strings.HasPrefix(text, "8 messages about backup: 7 failed, 1 recovered\n- ") || !strings.HasSuffix(text, "\nand 3 more") {
		t.Errorf("got %s", text)
	}
}

// TestWhatAReceiverMayDoWrong: each is an error that names it, without the secret in its address,
// soon.
func TestWhatAReceiverMayDoWrong(t *testing.T) {
	t.Parallel()
	elsewhere := 0
	other := serve(t, func(http.ResponseWriter, *http.Request) { elsewhere++ })
	secure := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(secure.Close)
	secure.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	gone := httptest.NewServer(nil)
	gone.Close()
	client := plainClient(t)
	for what, test := range map[string]struct {
		url  string
		want string
	}{
		"500":                     {serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no s3cret-token", 500) }), "it replied with status 500: no ${secret}"},
		"a redirect":              {serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other, http.StatusTemporaryRedirect) }), "redirect (status 307)"},
		"a certificate of nobody": {secure.URL, "certificate"},
		"nobody listens":          {gone.URL, "connection refused"},
		"a cut connection":        {serve(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), "EOF"},
	} {
		reply, err := client.send(t.Context(), &Target{Webhook: test.url + "/${secret}"}, &event{"s", []ledger.Message{message("a")}}, someTime)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %+v, %v, want %s", what, reply, err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error has the secret: %v", what, err)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
	for what, target := range map[string]*Target{
		"${none} is not set":             {Webhook: other + "/${none}"},
		"secret_file /no: file does not": {Webhook: other, SecretFile: "/no"},
		"its webhook is not a URL":       {Webhook: "ftp://x/${secret}"},
		"unknown service":                {URL: "none://${secret}"},
		"its url: ":                      {URL: "slack://${secret}"},
	} {
		_, err := client.send(t.Context(), target, &event{"s", []ledger.Message{message("a")}}, someTime)
		if err == nil || !strings.Contains(err.Error(), what) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("got %v, want %s", err, what)
		}
	}
}

func TestAReplyIsReadUpToALimit(t *testing.T) {
	t.Parallel()
	written := make(chan int, 1)
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		chunk, n := bytes.Repeat([]byte("x"), 1<<20), 0
		for range 1024 {
			k, err := w.Write(chunk)
			if n += k; err != nil {
				break
			}
		}
		written <- n
	})
	client := plainClient(t)
	reply, err := client.send(t.Context(), &Target{Webhook: url}, &event{"s", []ledger.Message{message("a")}}, someTime)
	if err != nil || len(reply.Text) != replyMost {
		t.Fatalf("got %v, %v, want %d bytes", reply, err, replyMost)
	}
	if n := <-written; n > 64<<20 {
		t.Errorf("the receiver could write %d bytes", n)
	}
}

func TestARequestThatHangsEndsInTime(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	url := serve(t, func(http.ResponseWriter, *http.Request) { <-hang })
	t.Cleanup(func() { close(hang) })
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond) // as RequestLimit does
	defer cancel()
	_, err := plainClient(t).send(ctx, &Target{Webhook: url}, &event{"s", []ledger.Message{message("a")}}, someTime)
	if err == nil || !strings.Contains(err.Error(), "no reply within") {
		t.Errorf("got %v", err)
	}
}

// TestAServiceGetsAText: ntfy has a host of one's own.
func TestAServiceGetsAText(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, "{}")
		got <- r.URL.Path + " " + string(body)
	})
	client := plainClient(t)
	address := strings.Replace(url, "http://", "ntfy://", 1) + "/${secret}?scheme=http"
	if _, err := client.send(t.Context(), &Target{URL: address}, &event{"s", []ledger.Message{message("a")}}, someTime); err != nil {
		t.Fatal(err)
	}
	if said := <-got; !strings.Contains(said, "backup@2026-11-21T01:00:00Z has failed") {
		t.Errorf("got %s", said)
	}
}

// box is a mailbox in memory, with one message for each target; it does what the ledger's does.
type box struct {
	mu      sync.Mutex
	waiting map[string]ledger.Batch
	sent    []string
	failed  []string
	pauses  []time.Duration
	added   []string
	asked   int // Silences
	changed chan struct{}
}

func newBox(targets ...string) *box {
	b := &box{waiting: make(map[string]ledger.Batch), changed: make(chan struct{}, 100)}
	for _, target := range targets {
		b.waiting[target] = ledger.Batch{Target: target, Job: "backup", Messages: []ledger.Message{message(target + ".1")}}
	}
	return b
}

func (b *box) TakeMail(_ context.Context, targets []string, _ int) (batches []ledger.Batch, next int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, batch := range b.waiting {
		if slices.Contains(targets, name) {
			batches = append(batches, batch)
			delete(b.waiting, name)
		}
	}
	return batches, 0, nil
}

func (b *box) MailSent(_ context.Context, batch *ledger.Batch) error {
	return b.note(&b.sent, batch.Messages[0].ID)
}

func (b *box) MailFailed(_ context.Context, batch *ledger.Batch, pause time.Duration, reason string) (bool, error) {
	b.mu.Lock()
	b.pauses = append(b.pauses, pause)
	b.mu.Unlock()
	return false, b.note(&b.failed, batch.Target+": "+reason)
}

func (b *box) AddMail(_ context.Context, _ string, event jobs.Event, worker locks.SessionID, text string, targets []string) error {
	return b.note(&b.added, fmt.Sprint(event, " ", worker, " ", text, " ", targets))
}

func (b *box) Silences(_ context.Context, list []*ledger.Encoded) ([]time.Duration, error) {
	b.mu.Lock()
	b.asked += len(list)
	b.mu.Unlock()
	again := make([]time.Duration, len(list))
	for i := range again {
		again[i] = time.Hour
	}
	return again, b.note(new([]string), "")
}

func (b *box) note(list *[]string, what string) error {
	b.mu.Lock()
	*list = append(*list, what)
	b.mu.Unlock()
	b.changed <- struct{}{}
	return nil
}

// run runs a sender with targets until the test ends.
func (b *box) run(t *testing.T, targets []Target, definitions ...*jobs.Job) *Sender {
	t.Helper()
	s, err := New(Options{Mailbox: b, Client: plainClient(t), Source: "lockstep/shop", Worker: func() locks.SessionID { return "w.1" },
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	s.Set(targets, definitions)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// until waits until something is true of the box.
func (b *box) until(t *testing.T, is func() bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		b.mu.Lock()
		done := is()
		b.mu.Unlock()
		if done {
			return
		}
		select {
		case <-b.changed:
		case <-limit:
			t.Fatalf("sent %q, failed %q, added %q", b.sent, b.failed, b.added)
		}
	}
}

// TestTheServerDecidesTheTimeOfASignature: a worker with a wrong clock must not sign requests that
// receivers refuse.
func TestTheServerDecidesTheTimeOfASignature(t *testing.T) {
	t.Parallel()
	signed := make(chan error, 1)
	server := time.Now().Add(-10 * time.Minute)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		signed <- Verify([]byte("the-key-of-the-hook"), body, r.Header.Get(SignatureHeader), server, 2*time.Minute)
	})
	b := newBox("hook")
	batch := b.waiting["hook"]
	batch.Taken = server
	b.waiting["hook"] = batch
	b.run(t, []Target{{Name: "hook", Webhook: url, SecretFile: "/key"}})
	if err := <-signed; err != nil {
		t.Error(err)
	}
}

// TestATargetThatHangsDelaysNoOther: each has a request of its own.
func TestATargetThatHangsDelaysNoOther(t *testing.T) {
	t.Parallel()
	hang, asked := make(chan struct{}), make(chan struct{}, 1)
	slow := serve(t, func(http.ResponseWriter, *http.Request) { asked <- struct{}{}; <-hang })
	t.Cleanup(func() { close(hang) })
	fast := serve(t, func(http.ResponseWriter, *http.Request) {})
	b := newBox("slow")
	b.run(t, []Target{{Name: "slow", Webhook: slow}, {Name: "fast", Webhook: fast}})
	<-asked
	b.mu.Lock()
	b.waiting["fast"] = ledger.Batch{Target: "fast", Messages: []ledger.Message{message("fast.1")}}
	b.waiting["slow"] = ledger.Batch{Target: "slow", Messages: []ledger.Message{message("slow.2")}}
	b.mu.Unlock()
	b.until(t, func() bool { return slices.Contains(b.sent, "fast.1") })
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, waits := b.waiting["slow"]; !waits {
		t.Error("a second message was taken for the target whose request is under way")
	}
}

func TestAFailureIsRecordedWithALongerPauseEachTime(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/later" {
			w.Header().Set("Retry-After", "120")
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	b := newBox("a", "b", "later")
	third := b.waiting["b"]
	third.Tries = 2
	b.waiting["b"] = third
	b.waiting["old"] = ledger.Batch{Target: "a", Tries: 40, Messages: []ledger.Message{message("old")}}
	b.run(t, []Target{{Name: "a", Webhook: url}, {Name: "b", Webhook: url}, {Name: "later", Webhook: url + "/later"}, {Name: "old", Webhook: url}})
	b.until(t, func() bool { return len(b.failed) == 4 })
	slices.Sort(b.pauses)
	if want := []time.Duration{pauseMin, 4 * pauseMin, 2 * time.Minute, pauseMost}; !slices.Equal(b.pauses, want) {
		t.Errorf("pauses %v, want %v", b.pauses, want)
	}
}

func TestARefusedConfigIsToldOnce(t *testing.T) {
	t.Parallel()
	b := newBox()
	s := b.run(t, []Target{{Name: "ops", Webhook: "http://127.0.0.1:1", On: []jobs.Event{jobs.EventRefused}},
		{Name: "hook", Webhook: "http://127.0.0.1:1", On: []jobs.Event{jobs.EventFailed}}})
	s.ConfigRefused("1 error: a.yaml:1:1: x")
	b.until(t, func() bool { return len(b.added) == 1 })
	s.ConfigRefused("1 error: a.yaml:1:1: x")
	b.mu.Lock()
	// The loop has seen the second refusal when this has failed.
	b.waiting["ops"] = ledger.Batch{Target: "ops", Messages: []ledger.Message{message("next")}}
	b.mu.Unlock()
	b.until(t, func() bool { return len(b.failed) == 1 })
	if want := []string{"config_refused w.1 1 error: a.yaml:1:1: x [ops]"}; !slices.Equal(b.added, want) {
		t.Errorf("added %q, want %q", b.added, want)
	}
}

func TestOnlyJobsThatCanBeLateAreLookedAt(t *testing.T) {
	t.Parallel()
	on := []jobs.Notify{{Target: "ops", On: []jobs.Event{jobs.EventLate}}}
	b := newBox()
	b.run(t, []Target{{Name: "ops", Webhook: "http://127.0.0.1:1"}}, &jobs.Job{Name: "a", MaxSilence: time.Hour, Notify: on},
		&jobs.Job{Name: "b", MaxSilence: time.Hour}, &jobs.Job{Name: "c", Notify: on})
	b.until(t, func() bool { return b.asked == 1 })
}

func TestPingsOfAJobKeepTheirOrder(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- strings.TrimSpace(r.Method + " " + r.URL.RequestURI() + " " + string(body))
	})
	p := NewPinger(plainClient(t), slog.New(slog.DiscardHandler))
	p.Ping("a", url+"/${secret}?x=1", SignalStart, "")
	p.Ping("a", url+"/${secret}?x=1", SignalFail, "it is lost")
	p.Ping("a", url+"/${secret}?x=1", SignalSuccess, "")
	for range 200 { // more than may wait: it does not block
		p.Ping("a", "http://127.0.0.1:1/", SignalStart, "")
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	for _, want := range []string{"GET /s3cret-token/start?x=1", "POST /s3cret-token/fail?x=1 it is lost", "GET /s3cret-token?x=1"} {
		if one := <-got; one != want {
			t.Errorf("got %s, want %s", one, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
