// Package httpjob does jobs that are one HTTP request. (The folder is jobs/http; the name keeps it apart from net/http,
// which whoever wires it uses too.)
//
// # The request
//
// Method, URL and headers are the job's. Beside them go
//
//	Idempotency-Key    the same for every attempt of a run: a server that remembers it does the work once
//	Lockstep-Token     the fencing token, in decimal: a server that remembers the highest one refuses a lower one
//	Lockstep-Run-Id    the run
//	Lockstep-Attempt   1 for the first attempt
//	traceparent        W3C trace context, if the attempt has one
//
// and the run's args as a JSON body; without args that is {}, or no body at all for GET and HEAD, which many servers
// do not take one from. A header that the job sets itself wins.
//
// # The answer
//
//	2xx, read to its end                         success
//	408, 425, 429, 5xx, an error of the network  failed attempt; Retry-After is honoured
//	any other status                             failed for good
//
// The work counts as going on until the body has ended, so the lock is kept while a server streams its progress. The
// status line and the first part of the body go to the run's output, the rest is read and dropped.
//
// Redirects are not followed: 301, 302 and 303 would turn a POST into a GET, and any of them would carry the token and
// the job's headers, secrets among them, to a place that the job does not name. So a 3xx fails for good and says where
// it points to.
//
// URLs may contain secrets (a token in the query, a webhook's path), and errors are kept in Redis. So errors name the
// method and the host only.
//
// # What is not promised
//
// When the context ends, the connection is closed, but nothing stops the server from finishing what it began. If that
// must not happen after the lock has passed on, the server has to check Lockstep-Token.
//
// net/http sends a request a second time on a new connection when an idle one turns out to be closed. Both carry the
// same Idempotency-Key and token.
package httpjob
