package trace

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// StateMost is how many bytes of a tracestate are kept: as many as the W3C requires of every
// participant.
const StateMost = 512

// memberMost is the length of a member of a tracestate from which on it is removed before others.
const memberMost = 128

// Context is the W3C trace context of a span, as text. The zero Context is that of none.
type Context struct {
	Parent string // traceparent, of version 00: 55 bytes
	State  string // tracestate, at most [StateMost] bytes; often empty
}

// Parse returns the context that a client gave as the headers traceparent and tracestate. An
// invalid traceparent is none, and an invalid tracestate is empty: the W3C forbids that a request
// fails because of them. Of a tracestate that is too long, whole members are removed: first those
// of more than 128 bytes, then the last ones.
func Parse(parent, state string) Context {
	if parent == "" {
		return Context{}
	}
	carrier := propagation.MapCarrier{"traceparent": strings.TrimSpace(parent), "tracestate": state}
	//nolint:forbidigo // only a carrier of the result: the propagator returns it in a context
	return Of(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// Of returns the context of the span that ctx has, or none.
func Of(ctx context.Context) Context {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	return Context{carrier["traceparent"], bounded(carrier["tracestate"])}
}

// In returns a ctx for spans that continue the trace of c. Without one it returns ctx.
func (c Context) In(ctx context.Context) context.Context {
	if c.Parent == "" {
		return ctx
	}
	return propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Parent, "tracestate": c.State})
}

// TraceID returns the trace of the context, 32 hexadecimal digits, or "" for none.
func (c Context) TraceID() string {
	if len(c.Parent) < 35 {
		return ""
	}
	return c.Parent[3:35]
}

// bounded removes members of a tracestate until it has at most [StateMost] bytes.
func bounded(state string) string {
	if len(state) <= StateMost {
		return state
	}
	members := strings.Split(state, ",")
	length := len(state)
	for i := len(members) - 1; i >= 0 && length > StateMost; i-- {
		if len(members[i]) > memberMost {
			length -= len(members[i]) + 1
			members = append(members[:i], members[i+1:]...)
		}
	}
	for length > StateMost {
		last := len(members) - 1
		length -= len(members[last]) + 1
		members = members[:last]
	}
	return strings.Join(members, ",")
}

// spanContext returns the span of the context; it is invalid for none.
func (c Context) spanContext(ctx context.Context) trace.SpanContext {
	if c.Parent == "" {
		return trace.SpanContext{}
	}
	return trace.SpanContextFromContext(c.In(ctx))
}
