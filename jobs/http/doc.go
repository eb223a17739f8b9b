// Package httpjob runs jobs that consist of one HTTP request. (The folder is jobs/http. The package
// name differs from net/http, because code that uses this package usually imports net/http too.)
//
// # The request
//
// The job defines the method, the URL and the headers. The executor adds these headers:
//
//	Idempotency-Key    the same for every attempt of a run; a server that remembers it works once
//	Lockstep-Token     the fencing token, in decimal; a server that keeps the highest one
//	                   refuses a lower one
//	Lockstep-Run-Id    the run
//	Lockstep-Attempt   1 for the first attempt
//	traceparent        W3C trace context, if the attempt has one: the span of this request, or
//	                   that of the run's requester in a worker that exports no spans
//	tracestate         the same, unless it is empty
//
// The JSON body is the run's args. Without args it is {}, except that GET and HEAD then have no
// body, because many servers do not accept one. A header that the job sets takes precedence.
//
// # The response
//
//	2xx, read to its end                     success
//	408, 425, 429, 5xx, or a network error   failed attempt; Retry-After is honored
//	any other status                         failed, without a retry
//
// The attempt lasts until the response body has ended, so the worker keeps the lock while a server
// streams its progress. The status line and the first part of the body go to the run's output. The
// rest is read and discarded.
//
// The executor does not follow redirects. 301, 302 and 303 would turn a POST into a GET, and any
// redirect would carry the token and the job's headers, secrets included, to a host that the job
// does not name. So a 3xx status fails the run, and the error names the target of the redirect.
//
// URLs may contain secrets (a token in the query, the path of a webhook), and errors are stored in
// Redis. So errors name only the method and the host.
//
// # What is not promised
//
// When the context ends, the executor closes the connection, but nothing stops the server from
// finishing the request. If the server must not do that after the lock has passed to another
// worker, it must check Lockstep-Token.
//
// When an idle connection turns out to be closed, net/http sends the request again on a new one.
// Both requests carry the same Idempotency-Key and token.
package httpjob
