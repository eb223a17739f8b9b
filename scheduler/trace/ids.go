package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"

	"go.opentelemetry.io/otel/trace"
)

// IDs generates the IDs of spans, for the SDK: random ones, except for the span of a run and those
// that are sent in the place of a dead process. A provider for a [Tracer] must use it.
type IDs struct{}

// ids are the IDs that the next span of a context gets. The trace counts for a root only.
type ids struct {
	trace trace.TraceID
	span  trace.SpanID
}

type idsKey struct{}

// NewIDs returns the IDs of a root.
func (IDs) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	if chosen, ok := ctx.Value(idsKey{}).(ids); ok {
		return chosen.trace, chosen.span
	}
	var id trace.TraceID
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, newSpanID()
}

// NewSpanID returns the ID of a child.
func (IDs) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	if chosen, ok := ctx.Value(idsKey{}).(ids); ok {
		return chosen.span
	}
	return newSpanID()
}

func newSpanID() (id trace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// derived returns the IDs that follow from some texts. They are as good as random ones, which
// samplers assume of a trace ID.
func derived(what, key string) (chosen ids) {
	sum := sha256.Sum256([]byte(what + "\x00" + key))
	copy(chosen.trace[:], sum[:16])
	copy(chosen.span[:], sum[16:24])
	return chosen
}
