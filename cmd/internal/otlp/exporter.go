package otlp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"

	"lockstep/scheduler/trace"
)

// CloseLimit is how long [Exporter.Close] takes at most.
const CloseLimit = 2 * time.Second

// Exporter sends spans to a receiver. A nil Exporter makes and sends none.
type Exporter struct {
	provider *sdk.TracerProvider
	tracer   *trace.Tracer
	valve    *valve
}

// Open returns what sends spans as the environment says, or nil if it asks for none. version is
// that of the build. The error names the variables with wrong values. Nothing is dialed before the
// first spans are sent. Call [Exporter.Close] at the end.
func Open(ctx context.Context, version string, log *slog.Logger) (*Exporter, error) {
	on, err := On(os.Getenv)
	if err != nil || !on {
		return nil, err
	}
	s, err := read(os.Getenv)
	if err != nil {
		return nil, err
	}
	// By default, the SDK reports to stderr. A wrong value was reported above, and lost spans are
	// counted.
	otel.SetLogger(logr.Discard())
	var client sdk.SpanExporter
	if s.grpc {
		client, err = otlptracegrpc.New(ctx)
	} else {
		client, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("export spans by OTLP: %w", err)
	}
	described, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithHost(),
		resource.WithAttributes(attribute.String("service.name", "lockstep"), attribute.String("service.version", version)), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx))
	v := &valve{onLost: func(int) {}, client: client, most: int64(s.queue), log: log, stopped: stopped, stop: stop}
	// Its queue has the same size, so it never drops anything itself.
	v.batches = sdk.NewBatchSpanProcessor((*sender)(v))
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(v), sdk.WithIDGenerator(trace.IDs{}), sdk.WithResource(described))
	return &Exporter{provider, trace.New(provider, version), v}, nil
}

// OnLost makes the exporter pass the number of lost spans to a function, from several goroutines.
// Call it before the first span.
func (e *Exporter) OnLost(lost func(n int)) {
	if e != nil {
		e.valve.onLost = lost
	}
}

// Tracer returns the tracer for runs; nil for a nil Exporter.
func (e *Exporter) Tracer() *trace.Tracer {
	if e == nil {
		return nil
	}
	return e.tracer
}

// Lost returns how many spans were not sent.
func (e *Exporter) Lost() int64 {
	if e == nil {
		return 0
	}
	return e.valve.lost.Load()
}

// untouched is the provider that the API has while no program has set another one.
var untouched = otel.GetTracerProvider()

// Share makes the provider that of the whole program, so that the instrumentations of handlers
// export their spans as well, unless the program has set one of its own.
func (e *Exporter) Share() {
	if e == nil || otel.GetTracerProvider() != untouched {
		return
	}
	otel.SetTracerProvider(e.provider)
	otel.SetTextMapPropagator(propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}))
}

// Close sends the spans that are left, and drops those that the receiver does not take within
// [CloseLimit].
func (e *Exporter) Close(ctx context.Context) {
	if e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, CloseLimit)
	defer cancel()
	// An export that hangs ends with the limit, so that no goroutine is left.
	defer context.AfterFunc(ctx, e.valve.stop)()
	defer e.valve.stop()
	if err := e.provider.Shutdown(ctx); err != nil {
		if left := e.valve.waiting.Load(); left > 0 {
			e.valve.lose(int(left), err)
		}
	}
	if lost := e.Lost(); lost > 0 {
		e.valve.log.WarnContext(ctx, "spans were lost", "spans", lost)
	}
}

// valve bounds what waits for the receiver, and counts what is lost. It is the processor in front
// of that of the SDK, which drops spans without a sound, and, as a sender, what that one sends to.
type valve struct {
	client  sdk.SpanExporter
	batches sdk.SpanProcessor
	most    int64 // spans that wait
	log     *slog.Logger
	stopped context.Context // ends what the sender is doing
	stop    context.CancelFunc

	onLost        func(n int)
	waiting, lost atomic.Int64

	mu     sync.Mutex
	outage bool  // a line has reported it
	began  int64 // the spans that were lost before it
}

func (v *valve) OnStart(ctx context.Context, span sdk.ReadWriteSpan) { v.batches.OnStart(ctx, span) }

// OnEnd never waits.
func (v *valve) OnEnd(span sdk.ReadOnlySpan) {
	if !span.SpanContext().IsSampled() {
		return
	}
	if v.waiting.Add(1) > v.most {
		v.waiting.Add(-1)
		v.lose(1, errFull)
		return
	}
	v.batches.OnEnd(span)
}

var errFull = errors.New("the queue of spans is full (OTEL_BSP_MAX_QUEUE_SIZE)")

// lose counts spans, and logs the first loss of an outage.
func (v *valve) lose(n int, err error) {
	v.onLost(n)
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.lost.Add(int64(n)) - int64(n)
	if v.outage {
		return
	}
	v.outage, v.began = true, before
	v.log.Warn("spans are lost, runs continue", "spans", n, "error", err)
}

// delivered notes that the receiver has taken spans.
func (v *valve) delivered() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.outage {
		return
	}
	v.outage = false
	v.log.Info("spans are sent again", "lost", v.lost.Load()-v.began)
}

func (v *valve) Shutdown(ctx context.Context) error   { return v.batches.Shutdown(ctx) }
func (v *valve) ForceFlush(ctx context.Context) error { return v.batches.ForceFlush(ctx) }

// sender is the exporter of a valve.
type sender valve

// ExportSpans sends a batch. It returns no error: the loss is counted and logged here.
func (s *sender) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	v := (*valve)(s)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.stopped, cancel)()
	err := v.client.ExportSpans(ctx, spans)
	v.waiting.Add(int64(-len(spans)))
	if err != nil {
		v.lose(len(spans), err)
		return nil
	}
	v.delivered()
	return nil
}

func (s *sender) Shutdown(ctx context.Context) error { return s.client.Shutdown(ctx) }

var (
	_ sdk.SpanProcessor = (*valve)(nil)
	_ sdk.SpanExporter  = (*sender)(nil)
	_ sdk.IDGenerator   = trace.IDs{}
)
