package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Tracer makes the spans of runs. A nil Tracer makes none, and passes on the contexts of
// requesters. A Tracer is safe for concurrent use.
type Tracer struct{ tracer trace.Tracer }

// scope is the name of what makes the spans.
const scope = "lockstep"

// New returns a tracer. The provider must generate IDs by [IDs].
func New(provider trace.TracerProvider, version string) *Tracer {
	return &Tracer{provider.Tracer(scope, trace.WithInstrumentationVersion(version))}
}

// On reports whether the tracer makes spans.
func (t *Tracer) On() bool { return t != nil }

// Run is what the spans of a run need of its record.
type Run struct {
	ID, Job, Queue, Trigger string

	Tick    time.Time // zero without one
	Created time.Time

	// Key distinguishes the run from every other one, also from an earlier run with the same ID.
	// Again distinguishes it from itself before it was run again by hand; else it is empty.
	Key, Again string

	// Kept is the context of the request, which the ledger keeps with the run. None for the run of
	// a tick, and if the requester gave none.
	Kept Context
}

// attributes of a run's spans.
func (r Run) attributes() []attribute.KeyValue {
	list := []attribute.KeyValue{attribute.String("lockstep.job", r.Job), attribute.String("lockstep.run.id", r.ID)}
	if r.Trigger != "" {
		list = append(list, attribute.String("lockstep.run.trigger", r.Trigger))
	}
	if !r.Tick.IsZero() {
		list = append(list, attribute.String("lockstep.tick", r.Tick.UTC().Format(time.RFC3339)))
	}
	return list
}

// messaging returns the attributes by the conventions for messaging, and those of the run.
func (r Run) messaging(operation, kind string) []attribute.KeyValue {
	return append(r.attributes(),
		attribute.String("messaging.system", "lockstep"),
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", kind),
		attribute.String("messaging.destination.name", r.Queue),
		attribute.String("messaging.message.id", r.ID),
	)
}

// run begins the span of a run, and returns a ctx for its children. The span must be ended by the
// process that records the end of the run, and by no other one.
func (t *Tracer) run(ctx context.Context, run Run, began time.Time) (context.Context, trace.Span) {
	ctx = run.Kept.In(ctx)
	if run.Kept.Parent == "" { // a root, whatever the caller does
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContext{})
	}
	chosen := ids{derived("run", run.Key).trace, derived("run"+run.Again, run.Key).span}
	_, span := t.tracer.Start(context.WithValue(ctx, idsKey{}, chosen), "run "+run.Job,
		trace.WithTimestamp(began), trace.WithAttributes(run.attributes()...))
	// not the ctx with the IDs, which its children must not have
	return trace.ContextWithSpan(ctx, span), span
}

// Publication is the span of a request for a run.
type Publication struct{ span trace.Span }

// Enqueue begins the span of a request for a run, below the span that ctx has. The returned ctx has
// it, so that the ledger keeps it with the run. Call one method of the publication afterward.
func (t *Tracer) Enqueue(ctx context.Context, run Run) (context.Context, *Publication) {
	return t.publish(ctx, run, "enqueue", "send", trace.SpanKindProducer)
}

// Adopt is [Tracer.Enqueue] for a task of a plain asynq client, which becomes a run.
func (t *Tracer) Adopt(ctx context.Context, run Run) (context.Context, *Publication) {
	return t.publish(ctx, run, "adopt", "receive", trace.SpanKindConsumer)
}

func (t *Tracer) publish(ctx context.Context, run Run, operation, kind string, role trace.SpanKind) (context.Context, *Publication) {
	if t == nil {
		return ctx, nil
	}
	ctx, span := t.tracer.Start(ctx, operation+" "+run.Queue, trace.WithSpanKind(role), trace.WithAttributes(run.messaging(operation, kind)...))
	return ctx, &Publication{span}
}

// Recorded ends the span. exists: the run existed already, so it keeps the context of an earlier
// request.
func (p *Publication) Recorded(run string, exists bool) {
	if p == nil {
		return
	}
	p.span.SetAttributes(attribute.String("lockstep.run.id", run), attribute.String("messaging.message.id", run))
	if exists {
		p.span.SetAttributes(attribute.Bool("lockstep.run.existed", true))
	}
	p.span.End()
}

// Failed ends the span of a request without a run.
func (p *Publication) Failed(err error) {
	if p == nil {
		return
	}
	p.span.SetStatus(codes.Error, err.Error())
	p.span.SetAttributes(attribute.String("error.type", "refused"))
	p.span.End()
}

// Created sends the span of the creation of a tick's run, below that of the run.
func (t *Tracer) Created(ctx context.Context, run Run, began, ended time.Time) {
	if t == nil {
		return
	}
	ctx, _ = t.run(ctx, run, began)
	_, span := t.tracer.Start(ctx, "create "+run.Queue, trace.WithSpanKind(trace.SpanKindProducer), trace.WithTimestamp(began),
		trace.WithAttributes(run.messaging("create", "create")...))
	span.End(trace.WithTimestamp(ended))
}

// End is how a run ended.
type End struct {
	State  string // final, as in the ledger
	Reason string
	At     time.Time
}

// Ended sends the span of a run that has ended without an attempt in this process.
func (t *Tracer) Ended(ctx context.Context, run Run, end End) {
	if t == nil {
		return
	}
	_, span := t.run(ctx, run, run.Created)
	endRun(span, end)
}

func endRun(span trace.Span, end End) {
	span.SetAttributes(attribute.String("lockstep.run.state", end.State))
	switch end.State {
	case "failed", "lost", "missed":
		span.SetAttributes(attribute.String("error.type", end.State))
		span.SetStatus(codes.Error, end.Reason)
	case "succeeded":
		span.SetStatus(codes.Ok, "")
	}
	span.End(trace.WithTimestamp(end.At))
}
