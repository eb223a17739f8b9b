package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	otel "go.opentelemetry.io/otel/trace"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
	"lockstep/scheduler/trace"
	"lockstep/scheduler/worker"
)

var requester = trace.Parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1")

// receiver receives the spans of the workers of one test.
type receiver struct {
	f        *fleet
	exporter *tracetest.InMemoryExporter
	tracer   *trace.Tracer
}

func (f *fleet) receiver() *receiver {
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter), sdk.WithIDGenerator(trace.IDs{}))
	f.Cleanup(func() { _ = provider.Shutdown(context.WithoutCancel(f.Context())) })
	return &receiver{f, exporter, trace.New(provider, "test")}
}

func (r *receiver) on(o *worker.Options) { o.Tracer = r.tracer }

// spans waits for the spans of a run with this name, and checks their number.
func (r *receiver) spans(run jobs.RunID, name string, n int) []tracetest.SpanStub {
	r.f.Helper()
	var found []tracetest.SpanStub
	r.f.await(fmt.Sprintf("%d spans %s of %s", n, name, run), func() bool {
		found = nil
		for _, span := range r.exporter.GetSpans() {
			if span.Name == name && (run == "" || value(span, "lockstep.run.id") == string(run)) {
				found = append(found, span)
			}
		}
		return len(found) >= n
	})
	if len(found) > n {
		r.f.Errorf("got %d spans %s of %s, want %d", len(found), name, run, n)
	}
	return found
}

func (r *receiver) one(run jobs.RunID, name string) tracetest.SpanStub {
	r.f.Helper()
	return r.spans(run, name, 1)[0]
}

func value(span tracetest.SpanStub, key string) string {
	for _, a := range span.Attributes {
		if string(a.Key) == key {
			return a.Value.String()
		}
	}
	return ""
}

// wantChild checks that a span is in the trace of another one, right below it.
func (r *receiver) wantChild(child, parent tracetest.SpanStub) {
	r.f.Helper()
	if child.Parent.SpanID() != parent.SpanContext.SpanID() || child.SpanContext.TraceID() != parent.SpanContext.TraceID() {
		r.f.Errorf("span %q is below %s of trace %s, want %q (%s) of trace %s", child.Name, child.Parent.SpanID(), child.SpanContext.TraceID(), parent.Name,
			parent.SpanContext.SpanID(), parent.SpanContext.TraceID())
	}
	// The clocks are those of this process and of the server, and a call may take long.
	if child.StartTime.Before(parent.StartTime.Add(-patience)) || child.EndTime.After(parent.EndTime.Add(patience)) {
		r.f.Errorf("span %q lasts from %v to %v, want within %q, from %v to %v", child.Name, child.StartTime, child.EndTime, parent.Name, parent.StartTime, parent.EndTime)
	}
}

func (f *fleet) enqueueIn(c trace.Context, job *jobs.Job, id string) jobs.RunID {
	f.Helper()
	enqueued, err := f.ledger.Enqueue(c.In(f.Context()), ledger.Request{Job: job, ID: id, Trigger: ledger.TriggerEnqueue})
	if err != nil {
		f.Fatal(err)
	}
	for _, due := range enqueued.Due {
		f.pushAndConfirm(due)
	}
	return enqueued.Run
}

func TestTheAttemptsOfARunBelongToTheTraceOfItsRequester(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	var seen sync.Map // attempt -> the span of the handler's context
	draining := make(chan struct{})
	job := f.job("flaky", func(ctx context.Context, run *jobs.Run[struct{}]) error {
		seen.Store(run.Attempt(), otel.SpanContextFromContext(ctx))
		if run.Attempt() == 1 {
			<-draining // so that another worker makes the second attempt
			return errors.New("not yet")
		}
		return nil
	})
	first := f.start(r.on)
	run := f.enqueueIn(requester, job, "x")
	f.awaitState(run, ledger.StateRunning)
	f.start(r.on)
	stopped := make(chan struct{})
	go func() { defer close(stopped); first.stop() }()
	f.await("the drain of the first worker", first.Draining)
	close(draining)
	<-stopped
	f.awaitState(run, ledger.StateSucceeded)

	whole := r.one(run, "run flaky")
	if got := whole.Parent; got.TraceID().String() != requester.TraceID() || got.SpanID().String() != "b7ad6b7169203331" || !got.IsRemote() || got.TraceState().String() != "vendor=1" {
		t.Errorf("the run is below %+v, want the requester", got)
	}
	if whole.SpanKind != otel.SpanKindInternal || whole.Status.Code != codes.Ok || value(whole, "lockstep.run.state") != "succeeded" || value(whole, "lockstep.job") != "flaky" {
		t.Errorf("the span of the run is %+v", whole)
	}
	attempts := r.spans(run, "process "+f.queue, 2)
	for i, a := range attempts {
		r.wantChild(a, whole)
		if a.SpanKind != otel.SpanKindConsumer || len(a.Links) != 1 || a.Links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
			t.Errorf("attempt %d: kind %v, links %+v, want a consumer with a link to the requester", i+1, a.SpanKind, a.Links)
		}
		for key, want := range map[string]string{
			"messaging.system": "lockstep", "messaging.operation.name": "process", "messaging.operation.type": "process", "messaging.destination.name": f.queue,
			"messaging.message.id": string(run), "lockstep.attempt": fmt.Sprint(i + 1), "lockstep.job": "flaky", "lockstep.locks": `["run:flaky#x"]`,
			"lockstep.outcome": []string{"failed", "succeeded"}[i], "error.type": []string{"failed", ""}[i],
		} {
			if got := value(a, key); got != want {
				t.Errorf("attempt %d: %s is %q, want %q", i+1, key, got, want)
			}
		}
		if a.Status.Code == codes.Error != (i == 0) || i == 0 && a.Status.Description != "not yet" {
			t.Errorf("attempt %d has the status %+v", i+1, a.Status)
		}
	}
	if a, b := value(attempts[0], "lockstep.worker"), value(attempts[1], "lockstep.worker"); a == b || a == "" || b == "" {
		t.Errorf("the attempts ran on %s and %s, want two workers", a, b)
	}
	var works []tracetest.SpanStub
	for _, span := range r.exporter.GetSpans() {
		if span.Name == "flaky" {
			works = append(works, span)
		}
	}
	if len(works) != 2 {
		t.Fatalf("got %d spans of the handler, want 2", len(works))
	}
	for i, span := range works {
		r.wantChild(span, attempts[i])
		if got, _ := seen.Load(i + 1); !span.SpanContext.Equal(got.(otel.SpanContext)) {
			t.Errorf("the handler's context has %+v, want its span %+v", got, span.SpanContext)
		}
		if value(span, "lockstep.handler") != "flaky" || span.SpanKind != otel.SpanKindInternal {
			t.Errorf("the span of the handler is %+v", span)
		}
	}
}

func TestATickIsTheRootOfItsTrace(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	f.job("tick", func(context.Context, *jobs.Run[struct{}]) error { return nil }, func(j *jobs.Job) { j.Every = time.Second })
	f.start(r.on)
	f.start(r.on)
	whole := r.spans("", "run tick", 1)[0]
	run := jobs.RunID(value(whole, "lockstep.run.id"))
	if whole.Parent.IsValid() || value(whole, "lockstep.run.trigger") != "schedule" || value(whole, "lockstep.tick") == "" {
		t.Errorf("got %+v, want a root with its tick", whole)
	}
	created, attempt := r.one(run, "create "+f.queue), r.one(run, "process "+f.queue)
	r.wantChild(created, whole)
	r.wantChild(attempt, whole)
	if created.SpanKind != otel.SpanKindProducer || value(created, "messaging.operation.type") != "create" || len(attempt.Links) != 0 {
		t.Errorf("the creation is %+v, the attempt has the links %+v", created, attempt.Links)
	}
}

func TestAWaitForLocksIsASpan(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	release := make(chan struct{})
	job := f.job("billed", func(ctx context.Context, run *jobs.Run[struct{}]) error {
		if strings.HasSuffix(string(run.ID()), "first") {
			<-release
		}
		return nil
	}, func(j *jobs.Job) { j.Lock.Exclusive = []string{"bill:1"} })
	f.start(r.on)
	first := f.enqueue(job, "first")
	f.awaitState(first, ledger.StateRunning)
	second := f.enqueueIn(requester, job, "second")
	waited := f.awaitState(second, ledger.StateWaiting).Waited
	close(release)
	f.awaitState(second, ledger.StateSucceeded)
	wait, whole := r.one(second, "wait for locks"), r.one(second, "run billed")
	r.wantChild(wait, whole)
	if value(wait, "lockstep.lock") != "bill:1" || wait.SpanKind != otel.SpanKindInternal {
		t.Errorf("got %+v, want the lock that it waited for", wait.Attributes)
	}
	if off := wait.StartTime.Sub(waited).Abs(); off > time.Second || wait.EndTime.Before(wait.StartTime) {
		t.Errorf("the wait lasted from %v to %v, want from %v on", wait.StartTime, wait.EndTime, waited)
	}
	if !wait.EndTime.Equal(r.one(second, "process "+f.queue).StartTime) {
		t.Errorf("the wait ended at %v, want when the attempt began", wait.EndTime)
	}
	r.spans(first, "wait for locks", 0)
}

func TestAnAttemptWhoseProcessDiedIsASpan(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	begun := make(chan struct{}, 2)
	job := f.job("dies", func(ctx context.Context, run *jobs.Run[struct{}]) error {
		begun <- struct{}{}
		if run.Attempt() == 1 {
			<-ctx.Done()
		}
		return nil
	})
	// The process of this worker has no exporter, as if it had died: its own spans are not sent.
	dead := f.start()
	run := f.enqueueIn(requester, job, "x")
	<-begun
	f.start(r.on)
	f.dies(dead)
	f.awaitState(run, ledger.StateSucceeded)
	whole, attempts := r.one(run, "run dies"), r.spans(run, "process "+f.queue, 2)
	crashed := attempts[0]
	for _, a := range attempts {
		r.wantChild(a, whole)
		if value(a, "lockstep.attempt") == "1" {
			crashed = a
		}
	}
	if value(crashed, "lockstep.outcome") != "crashed" || crashed.Status.Code != codes.Error || value(crashed, "lockstep.worker") == "" {
		t.Errorf("the crashed attempt is %+v", crashed)
	}
}

func TestARunThatEndsWithoutAnAttemptHasASpan(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	job := f.job("dies", func(ctx context.Context, _ *jobs.Run[struct{}]) error { <-ctx.Done(); return nil }, func(j *jobs.Job) { j.OnCrash = jobs.CrashAbandon })
	dead := f.start()
	run := f.enqueueIn(requester, job, "x")
	f.awaitState(run, ledger.StateRunning)
	f.start(r.on)
	f.dies(dead)
	f.awaitState(run, ledger.StateLost)
	if whole := r.one(run, "run dies"); value(whole, "lockstep.run.state") != "lost" || whole.Status.Code != codes.Error || whole.Parent.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("got %+v, want the lost run", whole)
	}
}

// passing is an executor that notes the trace context of its attempts.
type passing chan trace.Context

func (p passing) Execute(ctx context.Context, a *jobs.Attempt) error {
	if got := trace.Of(ctx); got != (trace.Context{Parent: a.TraceParent, State: a.TraceState}) {
		return fmt.Errorf("the ctx has %+v, the attempt %s %s", got, a.TraceParent, a.TraceState)
	}
	p <- trace.Context{Parent: a.TraceParent, State: a.TraceState}
	return nil
}

func TestWithoutAnExporterTheContextOfTheRequesterIsPassedOn(t *testing.T) {
	f := newFleet(t)
	got := make(passing, 1)
	job := f.job("plain", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command = "", []string{"x"}
	var log logBuffer
	f.start(func(o *worker.Options) {
		o.Executors = map[string]jobs.Executor{"command": got}
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	f.awaitState(f.enqueueIn(requester, job, "x"), ledger.StateSucceeded)
	if c := <-got; c != requester {
		t.Errorf("passed on %+v, want %+v", c, requester)
	}
	f.await("a line of the beginning and one of the end, with the trace", func() bool {
		return strings.Count(log.String(), "trace_id="+requester.TraceID()) >= 2
	})
	before := len(log.String())
	f.awaitState(f.enqueue(job, "y"), ledger.StateSucceeded)
	if c := <-got; c != (trace.Context{}) {
		t.Errorf("passed on %+v for a run without a requester's context, want none: no span exists", c)
	}
	if strings.Contains(log.String()[before:], "trace_id") || strings.Contains(log.String(), "span_id") {
		t.Errorf("a line names a trace or a span that does not exist:\n%s", log.String())
	}
}

func TestWithAnExporterTheWorkHasASpanOfItsOwn(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	got := make(passing, 1)
	job := f.job("plain", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command = "", []string{"/usr/bin/settle", "--password=secret"}
	var log logBuffer
	f.start(r.on, func(o *worker.Options) {
		o.Executors = map[string]jobs.Executor{"command": got}
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	run := f.enqueue(job, "x")
	f.awaitState(run, ledger.StateSucceeded)
	passed, work := <-got, r.spans("", "settle", 1)[0]
	if want := "00-" + work.SpanContext.TraceID().String() + "-" + work.SpanContext.SpanID().String() + "-01"; passed.Parent != want {
		t.Errorf("passed on %s, want %s", passed.Parent, want)
	}
	if work.SpanKind != otel.SpanKindClient || value(work, "process.executable.name") != "settle" || value(work, "process.exit.code") != "0" {
		t.Errorf("got %+v", work)
	}
	attempt := r.one(run, "process "+f.queue)
	line := "trace_id=" + attempt.SpanContext.TraceID().String() + " span_id=" + attempt.SpanContext.SpanID().String()
	f.await("lines with the span", func() bool { return strings.Count(log.String(), line) >= 2 })
	for _, span := range r.exporter.GetSpans() {
		if strings.Contains(fmt.Sprint(span.Attributes, span.Status, span.Name), "secret") {
			t.Errorf("span %s has words of the command: %v", span.Name, span.Attributes)
		}
	}
}

func TestASamplerDecidesForAllSpansOfARun(t *testing.T) {
	f := newFleet(t)
	exporter := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(exporter), sdk.WithIDGenerator(trace.IDs{}), sdk.WithSampler(sdk.ParentBased(sdk.NeverSample())))
	got := make(passing, 2)
	job := f.job("plain", func(context.Context, *jobs.Run[struct{}]) error { return nil })
	job.Handler, job.Command = "", []string{"x"}
	f.start(func(o *worker.Options) {
		o.Tracer, o.Executors = trace.New(provider, "test"), map[string]jobs.Executor{"command": got}
	})
	f.awaitState(f.enqueue(job, "dropped"), ledger.StateSucceeded)
	if c := <-got; !strings.HasSuffix(c.Parent, "-00") {
		t.Errorf("passed on %s, want a context that is not sampled", c.Parent)
	}
	sampled := f.enqueueIn(requester, job, "sampled")
	f.awaitState(sampled, ledger.StateSucceeded)
	if c := <-got; c.TraceID() != requester.TraceID() || !strings.HasSuffix(c.Parent, "-01") || c.State != requester.State {
		t.Errorf("passed on %+v, want what the requester has decided", c)
	}
	f.await("the spans of the sampled run", func() bool { return len(exporter.GetSpans()) >= 3 })
	for _, span := range exporter.GetSpans() {
		if span.SpanContext.TraceID().String() != requester.TraceID() {
			t.Errorf("span %s of another trace was sent", span.Name)
		}
	}
}

func TestATaskOfAPlainClientContinuesItsTrace(t *testing.T) {
	f := newFleet(t)
	r := f.receiver()
	job := f.job("adopted", (&done{}).handle)
	f.start(r.on)
	task := asynq.NewTaskWithHeaders(job.Name, nil, map[string]string{"traceparent": requester.Parent, "Tracestate": requester.State})
	if _, err := asynq.NewClientFromRedisClient(f.rdb).Enqueue(task, asynq.Queue(f.queue), asynq.TaskID("x")); err != nil {
		t.Fatal(err)
	}
	run := f.adopted(job.Name, "x")
	f.becomes(run, ledger.StateSucceeded)
	adopt, whole := r.one(run, "adopt "+f.queue), r.one(run, "run adopted")
	if adopt.Parent.SpanID().String() != "b7ad6b7169203331" || adopt.SpanContext.TraceID().String() != requester.TraceID() || adopt.Parent.TraceState().String() != requester.State {
		t.Errorf("the adoption is below %+v, want the requester", adopt.Parent)
	}
	if whole.Parent.SpanID() != adopt.SpanContext.SpanID() {
		t.Errorf("the run is below %s, want the adoption", whole.Parent.SpanID())
	}
	if a := r.one(run, "process "+f.queue); len(a.Links) != 1 || a.Links[0].SpanContext.SpanID() != adopt.SpanContext.SpanID() {
		t.Errorf("the attempt has the links %+v, want the adoption", a.Links)
	}
}

// logBuffer is safe for concurrent use.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
