// Package otlp sets up the SDK of OpenTelemetry from the environment and exports spans by OTLP,
// over HTTP or gRPC. It is the only package that imports the SDK; package scheduler/trace makes the
// spans with the API alone.
//
// # When it is on
//
// Only if OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_TRACES_EXPORTER
// is set, OTEL_TRACES_EXPORTER is not none, and OTEL_SDK_DISABLED is not true. All variables mean
// what the specification of OpenTelemetry says, and an empty one is unset. The SDK ignores wrong
// values, and logs some of them; here, each is an error that names its variable ([Check]).
//
// # What it costs a run
//
// The end of a span puts it into a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE, 2,048 by default) and
// returns. When the queue is full, the span is dropped. One goroutine sends batches of what is in
// the queue. If a receiver hangs, refuses or returns an error, the spans of the batch are lost,
// after the retries that the specification requires. Lost spans are counted ([Exporter.Lost]), and
// a line in the log reports the first ones of an outage, another one its end. [Exporter.Close]
// sends what is left and returns after [CloseLimit] at the latest.
//
// # Why not autoexport
//
// go.opentelemetry.io/contrib/exporters/autoexport does the first half of this in one call. It also
// imports the exporters of metrics and logs, that of Prometheus, and those to stdout, whichever the
// environment selects, and it cannot report wrong values of other variables than the two that
// select an exporter.
package otlp
