//go:build linux

package cmd

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"lockstep/cmd/internal/otlp"
)

// otlpReceiver receives spans by OTLP over HTTP, as a collector does.
type otlpReceiver struct {
	t      *testing.T
	server *httptest.Server

	mu       sync.Mutex
	received []receivedSpan
}

type receivedSpan struct {
	*spans.Span
	resource map[string]string
}

func newOTLPReceiver(t *testing.T) *otlpReceiver {
	r := &otlpReceiver{t: t}
	r.server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(r.server.Close)
	return r
}

func (r *otlpReceiver) serve(w http.ResponseWriter, request *http.Request) {
	body := request.Body
	if request.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unpacked
	}
	text, err := io.ReadAll(body)
	export := new(collector.ExportTraceServiceRequest)
	if err == nil {
		err = proto.Unmarshal(text, export)
	}
	if err != nil || request.URL.Path != "/v1/traces" {
		r.t.Errorf("the receiver got %s %s: %v", request.Method, request.URL, err)
		http.Error(w, "not spans", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, of := range export.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				r.received = append(r.received, receivedSpan{span, attributesOf(of.Resource.Attributes)})
			}
		}
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func attributesOf(list []*common.KeyValue) map[string]string {
	all := make(map[string]string)
	for _, a := range list {
		switch value := a.Value.Value.(type) {
		case *common.AnyValue_StringValue:
			all[a.Key] = value.StringValue
		case *common.AnyValue_IntValue:
			all[a.Key] = fmt.Sprint(value.IntValue)
		case *common.AnyValue_ArrayValue:
			for _, v := range value.ArrayValue.Values {
				all[a.Key] += v.GetStringValue() + " "
			}
		}
	}
	return all
}

// named waits for n spans of this name that fit, and returns them in the order of their beginnings.
func (r *otlpReceiver) named(name string, n int, fits func(receivedSpan) bool) (found []receivedSpan) {
	r.t.Helper()
	eventually(r.t, time.Minute, fmt.Sprintf("%d spans %s arrive", n, name), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		found = nil
		for _, span := range r.received {
			if span.Name == name && (fits == nil || fits(span)) {
				found = append(found, span)
			}
		}
		return len(found) >= n
	})
	if len(found) > n {
		r.t.Errorf("%d spans %s arrived, want %d", len(found), name, n)
	}
	slices.SortFunc(found, func(a, b receivedSpan) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	return found
}

func ofRun(run string) func(receivedSpan) bool {
	return func(s receivedSpan) bool { return s.of("lockstep.run.id") == run }
}

func (s receivedSpan) of(key string) string { return attributesOf(s.Attributes)[key] }

// below fails unless a span is right below another one, or below a span of another process.
func (s receivedSpan) below(t *testing.T, parent receivedSpan) {
	t.Helper()
	if !bytes.Equal(s.ParentSpanId, parent.SpanId) || !bytes.Equal(s.TraceId, parent.TraceId) {
		t.Errorf("span %s is below %x of trace %x, want %s, %x of trace %x", s.Name, s.ParentSpanId, s.TraceId, parent.Name, parent.SpanId, parent.TraceId)
	}
}

func (s receivedSpan) context() string { return fmt.Sprintf("00-%x-%x-01", s.TraceId, s.SpanId) }

const (
	requesterTrace  = "0af7651916cd43dd8448eb211c80319c"
	requesterParent = "00-" + requesterTrace + "-b7ad6b7169203331-01"
)

// A run is requested on the command line, waits for a lock, crashes with its worker, fails on
// another one, and then succeeds.
func TestOneTraceFollowsARunAcrossWorkers(t *testing.T) {
	t.Parallel()
	receiver := newOTLPReceiver(t)
	seen := make(chan http.Header, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) { seen <- request.Header }))
	t.Cleanup(target.Close)
	passed := filepath.Join(t.TempDir(), "passed")
	f, _ := newPack(t, `
worker: {queues: {default: 1}}
jobs:
  settle:
    command: [sh, -c, 'echo $LOCKSTEP_ATTEMPT $TRACEPARENT $TRACESTATE >> `+passed+`; case $LOCKSTEP_ATTEMPT in 1) exec sleep 1000;; 2) exit 3;; esac']
    lock: {exclusive: ["bill:1"]}
    retry: {max: 1, initial: 10ms}
  call: {http: {method: PUT, url: "`+target.URL+`/secret"}}
`, "OTEL_EXPORTER_OTLP_ENDPOINT="+receiver.server.URL, "OTEL_BSP_SCHEDULE_DELAY=50", "OTEL_SERVICE_NAME=shop",
		"OTEL_RESOURCE_ATTRIBUTES=service.name=not-this,deployment.environment.name=a%20test")
	f.startAll(2)
	release := f.hold("bill:1")
	asked := append(slices.Clone(f.env), "TRACEPARENT="+requesterParent, "TRACESTATE=vendor=1")
	if _, stderr, code := runTool(t, asked, "enqueue", "settle", "--id", "x"); code != 0 || stderr != "" {
		t.Fatalf("enqueue exits with %d: %s", code, stderr)
	}
	const run = "settle#x"
	f.await(run, "waiting")
	release()
	eventually(t, 20*time.Second, "its first attempt runs", func() bool { return exists(passed) })
	first, _ := f.runner(run)
	first.killChild()
	f.await(run, "succeeded")

	enqueued := receiver.named("enqueue default", 1, ofRun(run))[0]
	if got := fmt.Sprintf("%x %x", enqueued.TraceId, enqueued.ParentSpanId); got != requesterTrace+" b7ad6b7169203331" || enqueued.Kind != spans.Span_SPAN_KIND_PRODUCER {
		t.Errorf("the request is below %s, of kind %v, want a producer below the requester", got, enqueued.Kind)
	}
	whole := receiver.named("run settle", 1, ofRun(run))[0]
	whole.below(t, enqueued)
	if whole.Kind != spans.Span_SPAN_KIND_INTERNAL || whole.Status.GetCode() != spans.Status_STATUS_CODE_OK || whole.of("lockstep.run.state") != "succeeded" {
		t.Errorf("the run is %v", whole.Span)
	}
	wait := receiver.named("wait for locks", 1, ofRun(run))[0]
	wait.below(t, whole)
	if wait.of("lockstep.lock") != "bill:1" {
		t.Errorf("the wait is %v", wait.Span)
	}
	attempts := receiver.named("process default", 3, ofRun(run))
	for i, a := range attempts {
		a.below(t, whole)
		want := []string{"crashed", "failed", "succeeded"}[i]
		if a.Kind != spans.Span_SPAN_KIND_CONSUMER || a.of("lockstep.outcome") != want || a.of("lockstep.attempt") != fmt.Sprint(i+1) ||
			a.Status.GetCode() == spans.Status_STATUS_CODE_ERROR != (want != "succeeded") {
			t.Errorf("attempt %d is %v, want %s", i+1, a.Span, want)
		}
		if len(a.Links) != 1 || !bytes.Equal(a.Links[0].SpanId, enqueued.SpanId) || !bytes.Equal(a.Links[0].TraceId, enqueued.TraceId) {
			t.Errorf("attempt %d has the links %v, want the request", i+1, a.Links)
		}
		for key, want := range map[string]string{"messaging.system": "lockstep", "messaging.operation.type": "process", "messaging.destination.name": "default", "messaging.message.id": run} {
			if got := a.of(key); got != want {
				t.Errorf("attempt %d: %s is %q, want %q", i+1, key, got, want)
			}
		}
		if a.resource["service.name"] != "shop" || a.resource["deployment.environment.name"] != "a test" {
			t.Errorf("attempt %d comes from %v", i+1, a.resource)
		}
	}
	if attempts[0].of("lockstep.worker") == attempts[1].of("lockstep.worker") {
		t.Errorf("the second attempt ran on the same worker: %s", attempts[1].of("lockstep.worker"))
	}
	commands := receiver.named("sh", 2, nil) // that of the crashed attempt died with its process
	lines := strings.Split(strings.TrimSpace(string(must2(os.ReadFile(passed))(t))), "\n")
	for i, command := range commands {
		command.below(t, attempts[i+1])
		if want := fmt.Sprintf("%d %s vendor=1", i+2, command.context()); lines[i+1] != want {
			t.Errorf("the command got %q, want %q", lines[i+1], want)
		}
		if got, want := command.of("process.exit.code"), []string{"3", "0"}[i]; got != want || command.Kind != spans.Span_SPAN_KIND_CLIENT {
			t.Errorf("the command is %v, want the exit code %s", command.Span, want)
		}
	}
	eventually(t, 20*time.Second, "a line of the log has the span", func() bool {
		want := fmt.Sprintf(`"trace_id":"%s","span_id":"%x"`, requesterTrace, attempts[2].SpanId)
		return slices.ContainsFunc(f.workers, func(w *process) bool { return strings.Contains(w.stderr.String(), want) })
	})

	f.enqueue("call", "y")
	f.await("call#y", "succeeded")
	sent := receiver.named("PUT", 1, nil)[0]
	sent.below(t, receiver.named("process default", 1, ofRun("call#y"))[0])
	header := <-seen
	if got := header.Get("traceparent"); got != sent.context() {
		t.Errorf("the request has the traceparent %s, want %s", got, sent.context())
	}
	if sent.Kind != spans.Span_SPAN_KIND_CLIENT || sent.of("http.response.status_code") != "200" || sent.of("server.address") != "127.0.0.1" || strings.Contains(sent.String(), "secret") {
		t.Errorf("the request is %v", sent.Span)
	}
}

func must2[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		must(t, err)
		return value
	}
}

func TestWithoutAnExporterTheTraceOfTheRequesterIsPassedOn(t *testing.T) {
	t.Parallel()
	for name, more := range map[string][]string{"no exporter": nil, "disabled": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_SDK_DISABLED=true"}, "none": {"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:1", "OTEL_TRACES_EXPORTER=none"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newPack(t, `jobs: {prints: {command: [sh, -c, 'echo "<$TRACEPARENT|$TRACESTATE>"']}}`, more...)
			f.startAll(1)
			output := func(id string, env ...string) string {
				t.Helper()
				if _, stderr, code := runTool(t, append(slices.Clone(f.env), env...), "job", "run", "prints", "--id", id, "--wait=30s"); code != 0 {
					t.Fatal(stderr)
				}
				stdout, _, _ := runTool(t, f.env, "run", "output", "prints#"+id)
				return stdout
			}
			if got, want := output("x", "TRACEPARENT="+requesterParent, "TRACESTATE=vendor=1"), "<"+requesterParent+"|vendor=1>\n"; got != want {
				t.Errorf("the command got %q, want %q", got, want)
			}
			if got := output("y"); got != "<|>\n" {
				t.Errorf("without a requester's context, the command got %q, want none", got)
			}
			if got := output("z", "TRACEPARENT=00-nothing-01", "TRACESTATE=vendor=1"); got != "<|>\n" {
				t.Errorf("of an invalid context, the command got %q, want none", got)
			}
		})
	}
}

// A receiver of spans that hangs, refuses or fails costs no run anything, and a drain at most
// otlp.CloseLimit.
func TestAReceiverThatFailsIsNotInTheWay(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	hangs := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, request *http.Request) {
		select {
		case <-hang:
		case <-request.Context().Done():
		}
	}))
	t.Cleanup(hangs.Close)
	t.Cleanup(func() { close(hang) })
	fails := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) }))
	t.Cleanup(fails.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	for name, url := range map[string]string{"hangs": hangs.URL, "fails": fails.URL, "refuses": gone.URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newPack(t, `
worker: {concurrency: 8}
jobs: {quick: {command: ["true"]}}`, "OTEL_EXPORTER_OTLP_ENDPOINT="+url, "OTEL_BSP_SCHEDULE_DELAY=20", "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4")
			f.startAll(1)
			plain := slices.DeleteFunc(slices.Clone(f.env), func(entry string) bool { return strings.HasPrefix(entry, "OTEL_") })
			began := time.Now()
			var all []string
			for i := range 12 {
				if _, stderr, code := runTool(t, plain, "enqueue", "quick", "--id", fmt.Sprint(i)); code != 0 {
					t.Fatal(stderr)
				}
				all = append(all, fmt.Sprint("quick#", i))
			}
			for _, run := range all {
				f.await(run, "succeeded")
			}
			t.Logf("12 runs took %v", time.Since(began))
			asked := time.Now()
			stdout, stderr, code := runTool(t, f.env, "enqueue", "quick", "--id", "last")
			if took := time.Since(asked); code != 0 || stdout != "quick#last\n" || took > otlp.CloseLimit+5*time.Second {
				t.Errorf("a request took %v and exits with %d: %s", took, code, stderr)
			}
			if want := "lockstep: the span of this request was not sent: " + url + " did not take it\n"; stderr != want {
				t.Errorf("it says %q, want %q", stderr, want)
			}
			f.await("quick#last", "succeeded")
			w := f.workers[0]
			drained := time.Now()
			w.signal(syscall.SIGTERM)
			<-w.done
			if took := time.Since(drained); w.err != nil || took > otlp.CloseLimit+8*time.Second {
				t.Errorf("the drain took %v: %v", took, w.err)
			}
			t.Logf("the drain took %v", time.Since(drained))
			log := w.stderr.String()
			if n := strings.Count(log, "spans are lost, runs continue"); n != 1 {
				t.Errorf("%d lines report the loss of spans, want one:\n%s", n, log)
			}
			if !strings.Contains(log, `"spans were lost","spans":`) {
				t.Errorf("no line has their number:\n%s", log)
			}
		})
	}
}

func TestAWrongSettingOfTheExporterIsAnErrorAtStart(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `jobs: {quick: {command: ["true"]}}`, "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4318", "OTEL_TRACES_SAMPLER=sometimes")
	_, stderr, code := runTool(t, f.env, "start")
	if code != exitConfig || !strings.Contains(stderr, "OTEL_EXPORTER_OTLP_ENDPOINT") || !strings.Contains(stderr, "OTEL_TRACES_SAMPLER=") {
		t.Errorf("start exits with %d: %s", code, stderr)
	}
	stdout, stderr, code := runTool(t, f.env, "enqueue", "quick", "--id", "x")
	if code != 0 || stdout != "quick#x\n" || !strings.Contains(stderr, "OTEL_TRACES_SAMPLER") {
		t.Errorf("enqueue exits with %d, %q: %s; want a run all the same", code, stdout, stderr)
	}
}
