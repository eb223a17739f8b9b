// Package trace makes the spans of runs, and carries the trace context of a run's requester to its
// attempts. It uses only the API of OpenTelemetry: the command line sets up the SDK and an exporter
// (lockstep/cmd/internal/otlp) and passes a [Tracer] to the packages that have events.
//
// # The problem
//
// A run is requested in one process, waits in Redis, and is tried in others, one of which may die.
// No process sees all of it, and most of its life has no process at all. So no span object can
// exist from its beginning to its end, and yet all parts must belong to one trace.
//
// # The spans
//
//	requester's span                        of the client, if it gave one
//	└─ enqueue default        PRODUCER      the request, in the process that records it
//	   └─ run settle-bills    INTERNAL      from its record to its end
//	      ├─ wait for locks   INTERNAL      its first wait
//	      ├─ process default  CONSUMER      attempt 1; links to the request
//	      │  └─ pg_dump, POST, bills.settle the command, the HTTP request, or the handler
//	      └─ process default  CONSUMER      attempt 2, perhaps on another worker
//
// A task of a plain asynq client has "adopt default", of the worker that received it, in the place
// of "enqueue default". The run of a tick has no requester: its run is the root of the trace, and
// "create default", the span of the worker that decided the tick, is below it. A list of requests
// has no span: its runs are directly below that of the requester.
//
// Messages are runs, their destination is the queue, and names and attributes follow the
// conventions of OpenTelemetry for messaging. Attributes of our own begin with lockstep. They never
// contain args, nor the words of a command, nor a URL: all of these may have secrets. Errors have
// gone through the redactor of their attempt.
//
// # What is kept with a run
//
// The ledger keeps one [Context] with a run: that of the span "enqueue", or that of the requester
// if the process that recorded the run has no tracer. The tick of a job has none.
//
// # Spans without a process
//
// The IDs of a run's span follow from the record of the run ([Run].Key, and the trace ID of what is
// kept with it): each process that has the record computes the same ones. So an attempt can be the
// child of a span that does not exist yet, and the process that records the end of the run sends
// that span, with the times of the record. After the death of a process, the worker that takes over
// its runs sends their attempts in the same way. Spans of different attempts at one run have the
// same parent, whichever worker they had. A run that is retried by hand has another span, in the
// same trace.
//
// A sampler decides by the trace ID, or follows the context that is kept with the run, so all
// workers with the same sampler decide alike.
//
// # Without an exporter
//
// A nil [Tracer] makes no spans. The context that a requester gave is then passed on unchanged: its
// span exists in the requester. Without one, executors pass nothing on, since no span exists that
// could be a parent.
//
// # What is not promised
//
//   - That each span arrives: an exporter drops what it cannot send.
//   - The span of a run that a worker without an exporter ends, or a later tick, or a command line;
//     its attempts then have a parent that the receiver does not know. The same holds until the run
//     has ended.
//   - More waits than the first of a run: its record has no other.
package trace
