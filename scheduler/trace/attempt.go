package trace

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// locksMost is how many locks of a bundle a span names.
const locksMost = 20

// Try describes an attempt.
type Try struct {
	Number int
	Worker string
	Token  string
	Locks  []string

	// Began is the instant of the claim by the clock of this process, and Claimed the same one by
	// the clock of Redis. Their difference makes the other instants comparable.
	Began, Claimed time.Time

	// Waited is when the run began to wait for its locks, by the clock of Redis; zero if it did not
	// wait, or before an earlier attempt. Blocker is what was in its way.
	Waited  time.Time
	Blocker string

	ArgsBytes int
}

// attributes of an attempt.
func (t Try) attributes(run Run) []attribute.KeyValue {
	list := append(run.messaging("process", "process"), attribute.Int("lockstep.attempt", t.Number),
		attribute.String("lockstep.worker", t.Worker), attribute.String("lockstep.token", t.Token))
	if len(t.Locks) > 0 {
		list = append(list, attribute.StringSlice("lockstep.locks", t.Locks[:min(len(t.Locks), locksMost)]), attribute.Int("lockstep.locks.count", len(t.Locks)))
	}
	if t.ArgsBytes > 0 {
		list = append(list, attribute.Int("messaging.message.body.size", t.ArgsBytes))
	}
	return list
}

// Attempt is the span of an attempt that runs here, and of its run. Its methods also work on the
// Attempt of a nil [Tracer].
type Attempt struct {
	tracer    *Tracer
	run, span trace.Span // nil without a tracer
	kept      Context
}

// Begin begins the span of an attempt, and returns the ctx for the work. It has that span, or the
// context that the requester gave. [Attempt.End] must be called.
func (t *Tracer) Begin(ctx context.Context, run Run, try Try) (context.Context, *Attempt) {
	if t == nil {
		return run.Kept.In(ctx), &Attempt{kept: run.Kept}
	}
	local := func(at time.Time) time.Time { return try.Began.Add(at.Sub(try.Claimed)) }
	request := run.Kept.spanContext(ctx)
	ctx, whole := t.run(ctx, run, local(run.Created))
	if !try.Waited.IsZero() {
		_, wait := t.tracer.Start(ctx, "wait for locks", trace.WithTimestamp(local(try.Waited)), trace.WithAttributes(run.attributes()...),
			trace.WithAttributes(attribute.String("lockstep.lock", try.Blocker)))
		wait.End(trace.WithTimestamp(try.Began))
	}
	ctx, span := t.begin(ctx, run, try, request, try.Began)
	return ctx, &Attempt{t, whole, span, run.Kept}
}

func (t *Tracer) begin(ctx context.Context, run Run, try Try, request trace.SpanContext, at time.Time) (context.Context, trace.Span) {
	options := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(at), trace.WithAttributes(try.attributes(run)...)}
	if request.IsValid() {
		options = append(options, trace.WithLinks(trace.Link{SpanContext: request}))
	}
	// The ID follows from the token: a worker that takes the run over sends the span in the place
	// of a process that has died.
	chosen := derived("attempt "+try.Token, run.Key)
	_, span := t.tracer.Start(context.WithValue(ctx, idsKey{}, chosen), "process "+run.Queue, options...)
	return trace.ContextWithSpan(ctx, span), span
}

// Crashed sends the span of an attempt after the death of its process.
func (t *Tracer) Crashed(ctx context.Context, run Run, try Try, outcome, reason string, ended time.Time) {
	if t == nil {
		return
	}
	request := run.Kept.spanContext(ctx)
	ctx, _ = t.run(ctx, run, run.Created)
	_, span := t.begin(ctx, run, try, request, try.Claimed)
	endAttempt(span, outcome, reason, true)
	span.End(trace.WithTimestamp(ended))
}

// LogAttrs returns the IDs of the attempt for the lines of a log.
func (a *Attempt) LogAttrs() []any {
	if a.span != nil {
		sc := a.span.SpanContext()
		return []any{slog.String("trace_id", sc.TraceID().String()), slog.String("span_id", sc.SpanID().String())}
	}
	if id := a.kept.TraceID(); id != "" {
		return []any{slog.String("trace_id", id)}
	}
	return nil
}

// Work describes what an executor does.
type Work struct {
	Kind string // as in package jobs

	// Its attributes with a convention of OpenTelemetry, and the handler; "" for what it lacks.
	Program string // that it starts
	Method  string // of the request that it sends
	Host    string // of that request
	Port    int    // of that request; 0 for the port of the scheme
	Handler string // that it calls
}

// Execution is the span of the work of an attempt.
type Execution struct{ span trace.Span }

// Execute begins the span of the work, below that of the attempt, which ctx has. [Execution.End]
// must be called. Without a tracer it returns ctx, and nil. The methods of a nil Execution do
// nothing.
func (a *Attempt) Execute(ctx context.Context, work Work) (context.Context, *Execution) {
	if a.tracer == nil {
		return ctx, nil
	}
	kind, attributes := trace.SpanKindInternal, []attribute.KeyValue{attribute.String("lockstep.kind", work.Kind)}
	if work.Program != "" {
		kind, attributes = trace.SpanKindClient, append(attributes, attribute.String("process.executable.name", work.Program))
	}
	if work.Method != "" {
		kind, attributes = trace.SpanKindClient, append(attributes, attribute.String("http.request.method", work.Method), attribute.String("server.address", work.Host))
	}
	if work.Port > 0 {
		attributes = append(attributes, attribute.Int("server.port", work.Port))
	}
	if work.Handler != "" {
		attributes = append(attributes, attribute.String("lockstep.handler", work.Handler))
	}
	name := cmp.Or(work.Program, work.Method, work.Handler, work.Kind)
	ctx, span := a.tracer.tracer.Start(ctx, name, trace.WithSpanKind(kind), trace.WithAttributes(attributes...))
	return ctx, &Execution{span}
}

// Note adds a number to the span, under its name in the conventions of OpenTelemetry.
func (e *Execution) Note(name string, value int) {
	if e != nil {
		e.span.SetAttributes(attribute.Int(name, value))
	}
}

// End ends the span. reason is why the work failed, without secrets; "" for success.
func (e *Execution) End(err error, reason string) {
	if e == nil {
		return
	}
	if err != nil {
		e.span.SetStatus(codes.Error, reason)
		what := "failed"
		if errors.Is(err, context.DeadlineExceeded) {
			what = "timeout"
		}
		e.span.SetAttributes(attribute.String("error.type", what))
	}
	e.span.End()
}

// End ends the span of the attempt. outcome is a word of the ledger, such as handed back; reason
// says why it failed, without secrets. failed: it counts as an error. If it was the end of the run,
// run is that, and the span of the run is sent, too; else nil.
func (a *Attempt) End(outcome, reason string, failed bool, run *End) {
	if a.tracer == nil {
		return
	}
	endAttempt(a.span, outcome, reason, failed)
	a.span.End()
	if run != nil {
		endRun(a.run, *run)
	}
}

func endAttempt(span trace.Span, outcome, reason string, failed bool) {
	span.SetAttributes(attribute.String("lockstep.outcome", outcome))
	if failed {
		span.SetAttributes(attribute.String("error.type", outcome))
		span.SetStatus(codes.Error, reason)
	}
}
