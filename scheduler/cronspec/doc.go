// Package cronspec turns the trigger of a job, cron text or an interval, into its ticks.
//
// Start with [Parse] (cron text in a time zone from [LoadZone]) or [Every] (an interval), then ask the [Schedule] for
// [Schedule.Next]. The package is pure: no clock, no goroutine, no network. Two replicas that ask the same schedule the
// same question get the same answer, and that is what the ledger rests on: a tick is an instant, not a moment at which
// some process happened to look.
//
// # The problem
//
// Cron text speaks of wall clocks, and wall clocks jump. In the night when Berlin puts its clocks forward there is no
// 02:30, in the night when it puts them back there are two. A daily job must run once in both. A job that runs every
// ten minutes must run every ten real minutes in both. The same text can mean either, so there has to be a rule.
//
// # The rule
//
// A schedule follows real time when its hour field is a star or a star with a step ("*", "*/2"; also @hourly). Each
// instant whose wall clock matches is a tick, so a repeated hour has its ticks twice, and a skipped one has none. An
// [Every] schedule knows no wall clock at all: its ticks are the multiples of the interval since 1970-01-01T00:00Z.
//
// Any other schedule is meant by the wall clock, and each matching wall time is due once: when the zone's clock first
// shows this time, or a later one.
//
//	forward, 02:00 -> 03:00:  01:58  01:59 | 03:00  03:01        02:30 is due at |, as is 02:45: one tick
//	back,    03:00 -> 02:00:  02:30  02:59 | 02:00  02:30        02:30 is due at its first showing only
//
// So the ticks in a gap become one, at the first instant after the gap, and a repeated time runs at its first
// occurrence. The rule does not ask how far the clock jumps, when, or why: half an hour at Lord Howe, midnight in
// Havana, the whole day that Apia skipped and the one that Kwajalein had twice are all the same case.
//
// "Hour field" is taken by its letters: 0-23 names the same hours as * and is still meant by the wall clock.
//
// # How it is computed
//
// A wall time is counted in seconds as if the zone were UTC. Between two changes of the zone it is the instant plus a
// constant. The pattern's bits give the first matching wall time at or after another one by looking at a calendar,
// without a zone. What is left to do for a schedule that is meant by the wall clock:
//
//	shown = the latest wall time that the zone's clock has shown up to the given instant
//	due   = the first matching wall time later than shown
//	tick  = the first instant at which the clock shows due, or a later time
//
// This is the rule word for word. It follows that Next is monotonic and that no wall time is lost or doubled, whatever
// the zone does. For real time it is simpler: in each stretch of constant offset, the first matching wall time of it.
//
// # What is read and what is refused
//
// github.com/robfig/cron/v3 reads the fields; nothing else of it is used, because its Next loses and doubles ticks at
// clock changes and its runner hides the due time. It also lets mistakes pass, so every field is checked first: a step
// that is never taken twice (*/100), an empty place in a list, a range backwards, a date that never comes, a time zone
// in front (the library panics on some of these). Sunday is 0 and 7. Day of month and weekday: a day matches when
// either does, as in cron, unless one of them is * or ? (*/2 is not a star: "0 0 */2 * 1" is odd days and Mondays).
//
// What is wrong is said by an [Error]: the part, where it stands, and what to write instead.
//
// # What is not promised
//
//   - Time zones change by law. The zone files of the system come first, then those inside the binary, as in
//     [time.LoadLocation]. Replicas whose files differ agree on all ticks but those between the old law and the new.
//     (Each is still decided once; the ledger sees to that.)
//   - Leap seconds do not exist here, as in Unix time.
//   - Ticks lie in the years 1 to 9999.
package cronspec
