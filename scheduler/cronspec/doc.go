// Package cronspec turns the trigger of a job, cron text or an interval, into its ticks.
//
// Start with [Parse] (cron text in a time zone from [LoadZone]) or [Every] (an interval), then call
// [Schedule.Next]. The package is pure: no clock, no goroutine, no network. Two replicas that ask
// the same schedule the same question get the same answer, and the ledger relies on that: a tick is
// an instant, not a moment at which some process happened to look.
//
// # The problem
//
// Cron text speaks of wall clocks, and wall clocks jump. In the night when Berlin puts its clocks
// forward there is no 02:30, and in the night when it puts them back there are two. A daily job
// must run once in both. A job that runs every ten minutes must run every ten real minutes in both.
// The same text can mean either, so there must be a rule.
//
// # The rule
//
// A schedule follows real time when its hour field is a star or a star with a step ("*", "*/2";
// also @hourly). Each instant with a matching wall clock is a tick, so a repeated hour has its
// ticks twice, and a skipped one has none. An [Every] schedule knows no wall clock at all: its
// ticks are the multiples of the interval since 1970-01-01T00:00Z.
//
// Any other schedule follows the wall clock, and each matching wall time is due once: when the
// zone's clock first shows this time, or a later one.
//
//	forward, 02:00 -> 03:00:  01:58  01:59 | 03:00  03:01   02:30 and 02:45 are due at |: one tick
//	back,    03:00 -> 02:00:  02:30  02:59 | 02:00  02:30   02:30 is due at its first showing only
//
// So the ticks in a gap become one, at the first instant after the gap, and a repeated time runs at
// its first occurrence. The rule does not ask how far the clock jumps, when, or why: half an hour
// at Lord Howe, midnight in Havana, the whole day that Apia skipped and the one that Kwajalein had
// twice are all the same case.
//
// The spelling of the hour field decides: 0-23 names the same hours as * and still follows the wall
// clock.
//
// # How it is computed
//
// A wall time is counted in seconds as if the zone were UTC. Between two changes of the zone it is
// the instant plus a constant. The pattern's bits give the first matching wall time at or after
// another one by looking at a calendar, without a zone. A schedule that follows the wall clock then
// needs three steps:
//
//	shown = the latest wall time that the zone's clock has shown up to the given instant
//	due   = the first matching wall time later than shown
//	tick  = the first instant at which the clock shows due, or a later time
//
// This is the rule word for word. It follows that Next is monotonic and that no wall time is lost
// or doubled, whatever the zone does. Real time is simpler: each stretch of constant offset is
// searched for its first matching wall time.
//
// # What is accepted and what is refused
//
// github.com/robfig/cron/v3 parses the fields. Nothing else of it is used, because its Next loses
// and doubles ticks at clock changes and its runner hides the due time. It also accepts mistakes,
// so every field is checked first: a step that is never taken twice (*/100), an empty place in a
// list, a backwards range, a date that never comes, a time zone in front (the library panics on
// some of these). Sunday is 0 and 7. Day of month and weekday: a day matches when either does, as
// in cron, unless one of them is * or ? (*/2 is not a star: "0 0 */2 * 1" is odd days and Mondays).
//
// An [Error] describes each mistake: the part, its position, and what to write instead.
//
// # What is not promised
//
//   - Time zones change by law. The zone files of the system come first, then those inside the
//     binary, as in [time.LoadLocation]. Replicas with different files agree on all ticks but those
//     between the old law and the new. (The ledger still decides each tick once.)
//   - Leap seconds do not exist here, as in Unix time.
//   - Ticks are in the years 1 to 9999.
package cronspec
