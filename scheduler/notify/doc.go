// Package notify sends messages about jobs to people and programs: to webhooks, to the services
// that shoutrrr knows (Slack, mail, Telegram, ...), and to dead man's switches.
//
// # Senders
//
// The ledger stores a message in the same script as the end that it reports, and every worker sends
// the messages to those targets that its config declares ([Sender]). The section "Messages" of the
// ledger's documentation has the states of a message and what a crash does. This package adds:
//
//   - A request takes at most [RequestLimit], and a worker has at most one under way for each
//     target. They have goroutines of their own, so no run waits for a target.
//   - A webhook is not redirected, and at most 4 KiB of a reply are read. shoutrrr sends to its
//     services with clients of its own, which follow redirects.
//   - Secrets (${...} and secret_file) are read for each request and exist only in memory. No error
//     has them: what a target replies, and why a request failed, passes through a redactor. The
//     words of a service's URL are redacted, too, since a service puts them together anew.
//
// # Webhooks
//
// A request is a POST with a CloudEvent 1.0 in structured JSON. Its id is the same however often
// the event is sent, so a receiver that remembers ids can drop repeats: a worker that dies between
// sending and recording leaves the batch to another one, which sends it again.
//
// Events about one job that come within [ledger.MailPause] of each other are sent together, under
// one id: the type is then lockstep.combined, and data has their number, the first few, and the ids
// of all of them.
//
// With a secret, the request is signed:
//
//	Lockstep-Signature: t=1795259675,v1=5257a869e7ec...
//
// v1 is the HMAC-SHA-256, in hexadecimal, of the text "<t>.<body>" under the secret, and t is the
// time of the request in seconds since 1970, by the clock of Redis: that of a worker may be wrong.
// A receiver computes it over the body as it arrived, compares in constant time, and refuses a t
// that is more than five minutes off, so that a recorded request cannot be sent again later:
// [Verify] does that.
//
// # Dead man's switches
//
// The ping of a job is the URL of a service such as Healthchecks, which raises an alarm when it
// hears nothing ([Pinger]): a GET of URL/start at the start of each attempt, of URL when the run
// has succeeded, and a POST of the error to URL/fail when it has failed or is lost. An attempt that
// is tried again sends nothing at its end. Pings are sent once and from memory: one that fails, or
// that finds too many others waiting, is lost. That is what such a service is for: it misses the
// ping.
//
// # What is not promised
//
//   - That a target gets a message only once. It gets each one under one id.
//   - Every message after Redis has lost data. Those that waited may be lost, and those of the last
//     ten minutes are sent again under their ids; the ledger's documentation has the details.
//   - The order of messages about different jobs.
//   - A limit on what shoutrrr reads of a service's reply.
package notify
