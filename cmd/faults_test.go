package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"lockstep/locks/redistest"
	"lockstep/scheduler"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// faultRow is a line of the failure table.
type faultRow struct {
	fault string
	tests []string // of this package, or: folder and test
}

// failureTable has a line for each row of the failure table: what goes wrong, and the tests that
// prove what comes of it. Those of this package do so with whole workers as processes.
// TestPromiseHoldsUnderRandomFaults has most of it happen at once.
var failureTable = []faultRow{
	{"all replicas down at a tick", []string{"TestFaultAllReplicasDownAtATick", "../scheduler TestEveryTickSinceTheCursorIsAccountedFor"}},
	{"two replicas create the same tick", []string{"TestFaultTwoReplicasCreateTheSameTick", "../scheduler/ledger TestATickIsCreatedOnceByTheFirstWorker"}},
	{"crash between create and delivery; delivery lost; delivery duplicated", []string{"TestFaultDeliveryNeverSentLostOrDoubled"}},
	// Not with processes: which moment a kill hits is chance.
	{"a worker dies between the fetch of a delivery and its claim", []string{
		"../scheduler/worker TestWhatAKilledWorkerHadFetchedIsPushedAgainWhenItsSessionEnds", "../scheduler/worker TestManyLostDeliveriesAreRepeatedInBatches",
	}},
	{"1,000,000 runs due at one instant", []string{"../scheduler/worker TestRunsThatAreDueAtOnceArePushedOnce"}},
	{"kill -9 of the working child, before, during, after the effect", []string{
		"TestRunOfAKilledChildContinuesElsewhere", "TestAbandonedRunIsLostAtOnce", "TestOrphansAreDeadBeforeTheSessionEnds", "TestTakeoverTime",
	}},
	{"host gone (kill -9 of the whole tree)", []string{"TestRunOfAKilledHostContinuesAfterTheLease"}},
	{"SIGSTOP longer than the lease", []string{"TestStoppedWorkerIsFenced"}},
	{"an acquire or claim arrives late, twice, or after its caller was answered", []string{
		"TestFaultClaimsArriveLateAndTwice", "../locks TestLateAcquireIsReleasedWithinARenewal", "../scheduler/ledger TestAClaimNamesTheCurrentDelivery",
	}},
	// Not with processes: over a network that loses every reply no connection is made at all, and
	// chance decides which comes first.
	{"finish applied, reply lost; asynq ack lost", []string{
		"../scheduler/worker TestLostReplyToAFinishIsRecordedOnce", "../scheduler/worker TestLostAckMakesNoSecondRun", "../scheduler/queue TestDeliveryActiveUnderADeadServerIsNotAlive",
	}},
	{"Redis away for less than 2/3 lease - cutoff - margin (6.9 s of 15 s)", []string{"TestFaultRedisAwayForAMoment", "../locks TestSurvivesAnOutageOfThePromisedLength"}},
	{"Redis away longer", []string{"TestFaultRedisAwayForLong", "TestCrashDuringAnOutageHeals"}},
	{"an outage shared by the whole fleet", []string{
		"TestFaultOutageSharedByTheFleet", "../scheduler/worker TestAWorkerConfirmsThatItSurvivedALostLease",
		"../scheduler/ledger TestALostLeaseIsNeitherACrashNorAFailure",
	}},
	{"Redis restarted empty, failover with lost writes", []string{
		"TestWorkersReassertWhatRedisLost", "../scheduler/ledger TestTheFurthestAssertionWinsInAnyOrder",
		"../locks TestHoldsSurviveTheLossOfAllData", "../locks TestHoldsSurviveASentinelFailover", "../locks TestHoldsSurviveAClusterThatChanges",
	}},
	{"the wall clock of a worker is stepped forward by 8 s", []string{
		"TestFaultWallClockIsStepped", "../locks TestAStepOfTheWallClockIsADoubt", "../locks TestAStepOfTheWallClockEndsNoWork",
	}},
	{"clocks of replicas 10 minutes apart", []string{"TestFaultClocksTenMinutesApart"}},
	{"kill -9 of the guard of a command", []string{"TestKilledGuardLeavesNothingRunning", "../jobs/command TestCommandDiesWithItsGuard"}},
	{"SIGTERM to every process of a worker", []string{"TestTerminatingEveryProcessHandsRunsBack", "TestTerminatingACommandFailsIt"}},
	{"poison job that kills its worker", []string{"TestPoisonJobFailsAlone", "../scheduler/ledger TestTheSuspectThatDiesAgainClearsTheOthers"}},
	{"poison job that kills its host", []string{"../scheduler/ledger TestARunWhoseHostsNeverComeBackEnds"}},
	{"max hold or revoke ends the lock under a handler that continues", []string{
		"TestFaultLockEndsUnderItsHandler", "../scheduler/worker TestAnAttemptThatHoldsItsLocksForTooLongHasFailed",
		"../scheduler/ledger TestASuccessAfterTheCountedCrashStandsUntilAnotherAttemptBegins",
	}},
	{"backlog of 10,000 due runs while a bill is contended", []string{"TestFaultBillIsContendedBehindABacklog"}},
	{"Go handler that ignores its context, past its timeout and in a drain", []string{
		"TestDrainEndsAlthoughAHandlerIgnoresItsContext", "../scheduler/worker TestAnAttemptThatIgnoresItsTimeoutShowsAsStuck",
		"../scheduler/worker TestADrainDoesNotWaitForAHandlerThatIgnoresItsContext",
	}},
	{"10,000 changed triggers in one deploy", []string{
		"TestFaultManyTriggersChangeInOneDeploy", "../scheduler/worker TestManyChangedTriggersDelayNoTick",
	}},
	{"1,000,000 outstanding runs at a round trip of 10 ms", []string{
		"TestFaultMillionRunsAreOutstanding", "../scheduler/ledger TestAPollCostsTheSameHoweverManyRunsAreOutstanding",
		"../scheduler/ledger TestManyChangesInOnePollReadNothingAnew",
	}},
	{"bad config on reload", []string{"TestBrokenConfigChangesNothingUntilItIsFixed"}},
	{"a worker with a newer definition comes and leaves in order", []string{
		"TestFaultCanaryLeaves", "../scheduler/worker TestADefinitionThatLeavesInOrderGivesWayAtOnce",
	}},
	{"one worker of some has the handler", []string{
		"TestFaultOneWorkerHasTheHandler", "../scheduler/worker TestRunsStartAtOnceOnTheOneWorkerThatHasTheirHandler",
		"../scheduler/worker TestARunThatNoWorkerCanDoStaysDueAndCostsNothing",
	}},
	{"a queue is renamed", []string{"TestFaultRenamedQueue", "../scheduler/worker TestRunsOfARenamedQueueMove"}},
	{"1,000 runs wait for one bill", []string{"TestFaultThousandRunsWaitForOneBill"}},
	{"workers are killed while runs fail and a webhook refuses requests", []string{
		"TestFaultWorkersAreKilledWhileRunsFail", "../scheduler/ledger TestAnEndIsRecordedWithItsMessages",
	}},
	{"a rolling upgrade, back and again, under kills", []string{
		"TestFaultLastReleaseBesideThisBuild", "../locks TestFormatIsRaisedWhenEveryLiveSessionKnowsIt",
	}},
	{"a sender of messages is killed before it records what it sent", []string{
		"TestFaultSenderIsKilledBeforeItRecords", "../scheduler/ledger TestABatchKeepsItsMessagesUntilItIsSent",
	}},
	{"a hot bill behind a backlog of 2,000", []string{
		"TestFaultHotBillBehindABacklog", "../scheduler/worker TestHotBillDoesNotStarveBehindABacklog",
	}},
}

// TestFailureTableNamesTestsThatAreThere: a test that is renamed is renamed in the table, too.
func TestFailureTableNamesTestsThatAreThere(t *testing.T) {
	t.Parallel()
	tests := make(map[string][]string) // by folder
	for _, row := range failureTable {
		if len(row.tests) == 0 {
			t.Errorf("%s: no test", row.fault)
		}
		for _, test := range row.tests {
			folder, name, elsewhere := strings.Cut(test, " ")
			if !elsewhere {
				folder, name = ".", test
			}
			if tests[folder] == nil {
				tests[folder] = testsIn(t, folder)
			}
			if !slices.Contains(tests[folder], name) {
				t.Errorf("%s: there is no %s in %s", row.fault, name, folder)
			}
		}
	}
	for _, name := range tests["."] {
		if strings.HasPrefix(name, "TestFault") && !slices.ContainsFunc(failureTable, func(row faultRow) bool { return slices.Contains(row.tests, name) }) {
			t.Errorf("%s is of no row of the table", name)
		}
	}
}

// TestReadmeNamesTestsThatExist: each row of the README's failure table names tests, all of them
// exist, and the tests of failureTable are among them.
func TestReadmeNamesTestsThatExist(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../scheduler/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## When something fails\n")
	section, _, _ = strings.Cut(section, "\n## ")
	folders := map[string]string{
		"cmd": ".", "scheduler": "../scheduler", "ledger": "../scheduler/ledger", "queue": "../scheduler/queue", "worker": "../scheduler/worker",
		"locks": "../locks", "command": "../jobs/command",
	}
	// tests by folder; named: folder and test
	tests, named, rows := make(map[string][]string), make(map[string]bool), 0
	for row := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		if len(cells) != 5 || strings.HasPrefix(row, "| fault ") || strings.HasPrefix(row, "|---") {
			continue
		}
		rows++
		folder, count := "", 0
		for _, word := range strings.Fields(cells[len(cells)-1]) {
			word = strings.TrimRight(word, ",")
			if name := strings.Trim(word, "`"); name != word {
				if folder = folders[name]; folder == "" {
					t.Errorf("%s: %q is no package of this table", cells[0], name)
				} else if tests[folder] == nil {
					tests[folder] = testsIn(t, folder)
				}
				continue
			}
			count++
			named[folder+" "+word] = true
			if !slices.Contains(tests[folder], word) {
				t.Errorf("%s: there is no %s in %s", cells[0], word, folder)
			}
		}
		if count == 0 {
			t.Errorf("%s: no test", cells[0])
		}
	}
	for _, row := range failureTable {
		for _, test := range row.tests {
			if !strings.Contains(test, " ") {
				test = ". " + test
			}
			if !named[test] {
				t.Errorf("the README does not name %s, which proves: %s", test, row.fault)
			}
		}
	}
	if rows < len(failureTable) {
		t.Errorf("the README has %d rows, and there are %d faults", rows, len(failureTable))
	}
}

// testsIn returns the names of the tests of a folder.
func testsIn(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, declaration := range parsed.Decls {
			if f, ok := declaration.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				names = append(names, f.Name.Name)
			}
		}
	}
	return names
}

// All replicas down at a tick: the first one up decides (cursor, now] by `on_missed`, and each tick
// has a ledger line. Three minutes of absence are made by moving the cursors back.
func TestFaultAllReplicasDownAtATick(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, nil)
	write(t, f.config, `
defaults: {overlap: queue, max_queued: 1000}
jobs:
  none: {every: 10s, on_missed: skip, command: ["true"]}
  last: {every: 10s, on_missed: last, command: ["true"]}
  all: {every: 10s, on_missed: all, command: ["true"]}
`)
	f.startAll(1)
	conn := f.connection()
	cursors := func() map[string]time.Time {
		list, err := conn.reader.Jobs(t.Context(), admin.Filter{}, "")
		if err != nil {
			t.Fatal(err)
		}
		found := make(map[string]time.Time)
		for _, job := range list {
			if !job.Cursor.IsZero() {
				found[job.Name] = job.Cursor.Time
			}
		}
		return found
	}
	eventually(t, 20*time.Second, "the jobs are known", func() bool { return len(cursors()) == 3 })
	f.drain()
	down := time.Now().Add(-3 * time.Minute).Truncate(10 * time.Second)
	for name := range cursors() {
		if err := conn.rdb.HSet(t.Context(), "{lockstep}:cursor", name, down.UnixMilli()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	// A worker decides a moment before its decision is recorded. No tick is a minute late in that
	// moment, because the ticks have just come.
	pause(t.Context(), time.Until(time.Now().Truncate(10*time.Second).Add(11*time.Second)))
	began := time.Now()
	f.startAll(1)
	up := time.Now()
	eventually(t, 20*time.Second, "all ticks are decided", func() bool {
		for _, cursor := range cursors() {
			if cursor.Before(up.Add(-10 * time.Second)) {
				return false
			}
		}
		return true
	})
	t.Logf("the ticks of three minutes were decided %s after the start of a worker", time.Since(began))
	eventually(t, 30*time.Second, "all runs have ended", func() bool {
		return !slices.ContainsFunc(f.runs(), func(r runJSON) bool { return !r.final() })
	})
	for name, want := range map[string]string{"none": "missed", "last": "missed", "all": "succeeded"} {
		ticks, err := conn.reader.Ticks(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		lines := make(map[int64]tickJSON)
		for _, line := range as[[]tickJSON](t, ticks) {
			lines[line.Tick.Unix()] = line
		}
		var late []tickJSON // those that were decided more than a minute late, oldest first
		for second := down.Unix() + 10; second <= up.Unix()-10; second += 10 {
			line, ok := lines[second]
			if !ok {
				t.Errorf("%s: the tick %s has no line", name, time.Unix(second, 0).UTC())
			}
			if line.Decided.Sub(line.Tick) > time.Minute {
				late = append(late, line)
			} else if line.Outcome != "succeeded" {
				t.Errorf("%s: the tick %s is %s, though it was not a minute late", name, line.Tick, line.Outcome)
			}
		}
		if len(late) < 10 {
			t.Fatalf("%s: %d ticks were missed, want some", name, len(late))
		}
		for i, line := range late {
			want := want
			if name == "last" && i == len(late)-1 {
				want = "succeeded"
			}
			if line.Outcome != want {
				t.Errorf("%s: missed tick %d of %d is %s, want %s", name, i+1, len(late), line.Outcome, want)
			}
		}
	}
	f.drain()
}

// Two replicas create the same tick: one wins. Both try because the one that has duty is stopped
// and continued repeatedly, with the alarms of its past.
func TestFaultTwoReplicasCreateTheSameTick(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, []spec{
		{name: "one", trigger: "every: 1s", work: ":", more: "overlap: queue"}, {name: "two", trigger: `schedule: "*/2 * * * * *"`, work: ":", more: "overlap: queue"},
	})
	f.startAll(2)
	from := time.Now()
	for i := range 6 {
		child := f.workers[i%2].worker()
		if err := syscall.Kill(child, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		// others take over overdue ticks; its lease continues
		pause(t.Context(), 1300*time.Millisecond)
		if err := syscall.Kill(child, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	to := time.Now()
	f.drain()
	f.finish()
	h := f.read(from, to)
	f.check(h)
	by := make(map[string]bool)
	ticks, err := f.connection().reader.Ticks(t.Context(), "one", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, tick := range ticks {
		by[string(tick.DecidedBy)] = true
	}
	if len(by) < 2 {
		t.Errorf("ticks were decided by %v, want both", by)
	}
}

// Crash between create and delivery; delivery lost; delivery duplicated: the sweep re-delivers
// within 2 s or so, and the second claim is dropped.
func TestFaultDeliveryNeverSentLostOrDoubled(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, []spec{{name: "work", work: ":"}})
	f.startAll(1)
	conn := f.connection()
	create := func(id string) ledger.Due {
		record, err := conn.ledger.Job(t.Context(), "work")
		if err != nil {
			t.Fatal(err)
		}
		enqueued, err := conn.ledger.Enqueue(t.Context(), ledger.Request{Job: record.Job, ID: id, Trigger: ledger.TriggerEnqueue})
		if err != nil || len(enqueued.Due) != 1 {
			t.Fatalf("%+v, %v", enqueued, err)
		}
		return enqueued.Due[0]
	}
	push := func(due ledger.Due) {
		if _, err := conn.queue.Push(t.Context(), due); err != nil {
			t.Fatal(err)
		}
	}
	once := func(due ledger.Due) {
		t.Helper()
		if got := f.await(string(due.Run), "succeeded"); len(got.Attempts) != 1 {
			t.Errorf("%s: %d attempts, want 1", due.Run, len(got.Attempts))
		}
	}
	began := time.Now()
	once(create("never-sent")) // its creator died then
	t.Logf("what nobody had sent had run after %s", time.Since(began))

	lost := create("lost")
	// it was sent, and then asynq's data went
	if err := conn.ledger.Confirm(t.Context(), []ledger.Due{lost}); err != nil {
		t.Fatal(err)
	}
	// a while ago
	if err := conn.rdb.ZAddXX(t.Context(), "{lockstep}:sent", redis.Z{Score: 1, Member: string(lost.Run)}).Err(); err != nil {
		t.Fatal(err)
	}
	once(lost)
	sums, _ := f.sums()
	repeated := 0.0
	for _, reason := range scheduler.Reasons {
		repeated += sums[fmt.Sprintf("lockstep_deliveries_repeated_total{reason=%q}", reason)]
	}
	if repeated < 2 {
		t.Errorf("the metric of repeated deliveries counts %v, want at least 2", repeated)
	}

	doubled := create("doubled")
	push(doubled)
	once(doubled)
	push(doubled) // its task has ended, so asynq takes the same once more
	again := doubled
	again.N++
	push(again)
	eventually(t, 20*time.Second, "the late deliveries are removed", func() bool {
		for _, n := range []int64{doubled.N, again.N} {
			if alive, err := conn.queue.AllAlive(t.Context(), []ledger.Due{{Run: doubled.Run, N: n, Queue: doubled.Queue}}); err != nil || alive[0] {
				return false
			}
		}
		return true
	})
	once(doubled)
	if n := len(f.readEffects()); n != 6 {
		t.Errorf("%d effects of three runs, want a start and an end of each", n)
	}
	f.drain()
}

// An acquire or claim arrives late, twice, or after its caller was answered: it takes nothing, or
// is given back with the next renewal. The only worker makes the runs itself, and so claims them
// without a queue, whose own requests are doubled here like all others.
func TestFaultClaimsArriveLateAndTwice(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, []spec{
		{name: "one", trigger: "every: 1s", work: "sleep 0.1", more: "overlap: queue, lock: {exclusive: [desk]}"},
		{name: "two", trigger: "every: 1s", work: "sleep 0.1", more: "overlap: queue, lock: {exclusive: [desk]}"},
	}, "LOCKSTEP_LOCKS__LEASE=6s")
	proxy := f.server.Proxy(t)
	direct := f.env
	f.env = append(slices.Clone(f.env), "REDIS_URL="+proxy.URL())
	f.start()
	f.env = direct
	f.startAll(0)
	from := time.Now()
	proxy.Set(redistest.Faults{Commands: []string{"evalsha", "eval"}, Resend: 0.5, Repeat: 0.5, RepeatDelay: 700 * time.Millisecond})
	pause(t.Context(), 6*time.Second)
	proxy.Set(redistest.Faults{})
	to := time.Now()
	f.drain()
	f.startAll(1) // two have to begin again, to find what may be left
	eventually(t, time.Minute, "a run after that", func() bool {
		return slices.ContainsFunc(f.runs(), func(run runJSON) bool { return run.Created.After(to) && run.final() })
	})
	f.drain()
	f.finish()
	h := f.read(from, to)
	f.check(h)
	for _, run := range h.runs {
		if len(run.Attempts) != 1 {
			t.Errorf("%s: %+v, want one attempt", run.ID, run.Attempts)
		}
	}
	t.Logf("%d runs had one attempt each, with half of all requests sent twice and half repeated 700 ms later", len(h.runs))
	if held := ask[[]admin.Lock](t, f.env, "lock", "ls"); len(held) != 0 {
		t.Errorf("%+v are held for ever", held)
	}
}

// Redis away for less than 2/3 lease - cutoff - margin (6.9 s of 15 s): nothing is lost, nothing
// canceled.
func TestFaultRedisAwayForAMoment(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	// the lease is 15 s
	f := newFleet(t, nil, []spec{{name: "work", work: "until [ -e " + gate + " ]; do sleep 0.05; done"}})
	f.startAll(2)
	run := f.enqueue("work", "x")
	f.await(run, "running")
	if err := f.server.Pause(); err != nil {
		t.Fatal(err)
	}
	away := time.Now()
	pause(t.Context(), 3*time.Second)
	if err := f.server.Resume(); err != nil {
		t.Fatal(err)
	}
	t.Logf("Redis was unreachable for %s", time.Since(away))
	write(t, gate, "")
	if got := f.await(run, "succeeded"); len(got.Attempts) != 1 {
		t.Errorf("%+v, want one attempt", got.Attempts)
	}
	if n := len(f.up()); n != 2 {
		t.Errorf("%d workers, want both", n)
	}
	f.drain()
}

// Redis away longer: every worker cuts off in time, and runs continue elsewhere after the outage.
func TestFaultRedisAwayForLong(t *testing.T) {
	t.Parallel()
	const lease = 4 * time.Second
	f, server := newPack(t, `jobs: {during: {command: HOLD, lock: `+anyLock+`}}`, "LOCKSTEP_LOCKS__LEASE="+lease.String())
	f.startAll(2)
	run := f.enqueue("during", "x")
	command := f.held(run)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	away := time.Now()
	eventually(t, 20*time.Second, "the command is dead", func() bool { return !goesOn(command) })
	took := time.Since(away)
	t.Logf("with a lease of %s the command was dead after %s", lease, took)
	pause(t.Context(), 2*lease-took) // by Redis' clock the session is over, too
	f.healed(server, run, lostLease, away)
}

// An outage shared by the whole fleet: no worker has died, so no run is counted or held back for
// it, and all run again at once.
func TestFaultOutageSharedByTheFleet(t *testing.T) {
	t.Parallel()
	const (
		lease   = 4 * time.Second
		workers = 2
		runs    = 24
	)
	f, server := newPack(t, `jobs: {long: {handler: waits}}`,
		"LOCKSTEP_LOCKS__LEASE="+lease.String(), "LOCKSTEP_WORKER__CONCURRENCY=16", withHandlers+"=1")
	f.startAll(workers)
	for i := range runs {
		f.enqueue("long", strconv.Itoa(i))
	}
	running := func() (list []runJSON) {
		return ask[[]runJSON](t, f.env, "run", "ls", "--state", "running")
	}
	eventually(t, 30*time.Second, "all are running", func() bool { return len(running()) == runs })
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	pause(t.Context(), 2*lease)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	var all []runJSON
	eventually(t, time.Minute, "all are running again", func() bool {
		all = running()
		return len(all) == runs && !slices.ContainsFunc(all, func(run runJSON) bool { return len(run.Attempts) < 2 })
	})
	var first, last time.Time
	for _, run := range all {
		if run.Crashes != 0 || len(run.Attempts) != 2 || run.Attempts[0].outcome() != lostLease {
			t.Errorf("%+v, want one lost lease, no crash, and the second attempt", run)
		}
		began := run.Attempts[1].Started
		if first.IsZero() || began.Before(first) {
			first = began
		}
		if began.After(last) {
			last = began
		}
	}
	took := last.Sub(first)
	t.Logf("after an outage of %s with a lease of %s, the last of %d runs began %s after the first", 2*lease, lease, runs, took)
	// 2 s on a machine that does nothing else; one by one, they would take minutes
	if took > 10*time.Second {
		t.Errorf("the last of %d runs began %s after the first, want 2 s", runs, took)
	}
}

// The wall clock of a worker is stepped forward, as chrony does after a resume: its work continues,
// since Redis renews its lease.
func TestFaultWallClockIsStepped(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("no clock can be shifted on this system")
	}
	program, err := skewed()
	if err != nil {
		t.Fatal(err)
	}
	const lease = 6 * time.Second
	f, _ := newPack(t, `jobs: {during: {command: HOLD}}`, "LOCKSTEP_LOCKS__LEASE="+lease.String())
	worker := launchProgram(t, program, append(slices.Clone(f.env), "LOCKSTEP_TEST_CLOCK=0"), "start")
	f.workers = append(f.workers, worker)
	f.startAll(0)
	run := f.enqueue("during", "x")
	command := f.held(run)
	if err := syscall.Kill(worker.worker(), syscall.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the clock is stepped", func() bool {
		return strings.Contains(worker.stderr.String(), "the wall clock is 8 s ahead")
	})
	pause(t.Context(), 2*lease)
	got := f.show(run)
	if got.State != "running" || len(got.Attempts) != 1 || !goesOn(command) {
		t.Errorf("8 s forward with a lease of %s: %+v, the command works: %v; want its first attempt to go on", lease, got, goesOn(command))
	}
}

// Clocks of replicas 10 minutes apart: no difference.
func TestFaultClocksTenMinutesApart(t *testing.T) {
	t.Parallel()
	f := newFleet(t, nil, twentyJobs(50 * time.Millisecond)[:8], shortLease)
	_, _ = skewed() // clocked needs it, and it takes long to build
	from := time.Now()
	for _, offset := range []time.Duration{10 * time.Minute, -10 * time.Minute, 0} {
		program, env := clocked(t, offset)
		if offset != 0 && env == nil {
			t.Skip("no clock can be shifted on this system")
		}
		f.workers = append(f.workers, launchProgram(t, program, append(slices.Clone(f.env), env...), "start"))
	}
	f.settled()
	for _, worker := range slices.Clone(f.workers) { // so that each of them has duty some time
		pause(t.Context(), 2*time.Second)
		worker.killChild()
	}
	pause(t.Context(), time.Second)
	to := time.Now()
	f.drain()
	f.finish()
	h := f.read(from, to)
	h.slack = 15 * time.Second
	f.check(h)
	var lates []time.Duration
	for _, run := range h.runs {
		late := run.Created.Sub(*run.Tick)
		if late < 0 || late > time.Minute {
			t.Errorf("run %s was made %s after its tick", run.ID, late)
		}
		lates = append(lates, late)
	}
	_, _, text := quantiles(lates)
	t.Logf("%d ticks were decided by Redis' clock after: %s", len(lates), text)
}

// Max hold or revoke ends the lock under a handler that continues: the attempt failed and says so;
// a late success counts only while no other attempt has started.
func TestFaultLockEndsUnderItsHandler(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	f, _ := newPack(t, `
jobs:
  held: {handler: stubborn, args: {effects: EFFECTS, gate: `+gate+`}, lock: {exclusive: [desk], max_hold: 2s}, retry: {max: 1, initial: 100ms}}
  revoked: {handler: stubborn, args: {effects: EFFECTS, gate: `+gate+`}, lock: {exclusive: [chair]}, retry: {max: 1, initial: 100ms}}
`, long, withHandlers+"=1")
	f.startAll(1)
	held, revoked := f.enqueue("held", "x"), f.enqueue("revoked", "x")
	f.await(revoked, "running")
	token := f.show(revoked).Attempts[0].Token
	released := time.Now()
	if _, stderr, code := runTool(t, f.env, "lock", "release", "chair", "--token", token, "--reason", "a test", "--force", "--yes"); code != 0 {
		t.Fatal(stderr)
	}
	for _, run := range []string{held, revoked} {
		var got runJSON
		eventually(t, 30*time.Second, run+" has its second attempt", func() bool {
			got = f.show(run)
			return len(got.Attempts) == 2 && got.final()
		})
		if first := got.Attempts[0]; first.outcome() != "failed" || !strings.Contains(textOf(first.Error), "locks ended under it") || got.Crashes != 0 {
			t.Errorf("%s: %+v, want its first attempt to have failed and to say why", run, got)
		}
		if run == revoked {
			t.Logf("by force: the next attempt began %s after it was asked for", got.Attempts[1].Started.Sub(released))
		} else {
			t.Logf("max_hold 2s: the next attempt began %s after the first one", got.Attempts[1].Started.Sub(got.Attempts[0].Started))
		}
	}
	write(t, gate, "") // now the first attempts say that they have succeeded
	eventually(t, 20*time.Second, "both are told that it does not count", func() bool {
		return strings.Count(f.workers[0].stderr.String(), `"outcome":"succeeded","recorded":"fenced"`) == 2
	})
	for _, run := range []string{held, revoked} {
		if got := f.show(run); got.State != "succeeded" || got.Attempts[0].outcome() != "failed" {
			t.Errorf("%s: %+v, want the success of its second attempt", run, got)
		}
	}
	f.drain()
}

// enqueueMany asks for many runs, without a process for each.
func (f *fleet) enqueueMany(job string, n int, args any) {
	f.t.Helper()
	conn := f.connection()
	record, err := conn.ledger.Job(f.t.Context(), job)
	if err != nil {
		f.t.Fatal(err)
	}
	text, err := json.Marshal(args)
	if err != nil {
		f.t.Fatal(err)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range n {
		group.Go(func() error {
			_, err := conn.ledger.Enqueue(f.t.Context(), ledger.Request{Job: record.Job, ID: fmt.Sprintf("%05d", i), Args: text, Trigger: ledger.TriggerEnqueue})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		f.t.Fatal(err)
	}
}

// hold takes a lock by the command line, until it is let go.
func (f *fleet) hold(lock string) (release func()) {
	f.t.Helper()
	p := launchProgram(f.t, toolPath, f.env, "lock", "exec", "--exclusive", lock, "--", "sh", "-c", "echo held; exec sleep 1000")
	eventually(f.t, 20*time.Second, lock+" is held", func() bool { return strings.Contains(p.stdout.String(), "held") })
	return func() {
		p.signal(syscall.SIGTERM)
		p.code(20 * time.Second)
	}
}

// inOrder proves that runs began in an order. At most so many pairs of them may be the other way
// round; without any order, it is half of all pairs.
func (f *fleet) inOrder(want []string, most int) {
	f.t.Helper()
	place := make(map[string]int)
	for i, run := range want {
		place[run] = i
	}
	var began []string
	swapped := 0
	for _, e := range f.readEffects() {
		if _, known := place[e.run]; e.end || !known {
			continue
		}
		for _, earlier := range began {
			if place[earlier] > place[e.run] {
				swapped++
			}
		}
		began = append(began, e.run)
	}
	if swapped > most || len(began) != len(want) {
		f.t.Errorf("%d pairs of %d runs began in the wrong order, want at most %d; the order is\n%v, want\n%v",
			swapped, len(began), most, began, want)
	}
}

// waiting waits until so many runs wait for a lock, and returns them in their order.
func (f *fleet) waiting(lock string, n int) []string {
	f.t.Helper()
	conn := f.connection()
	var runs []string
	eventually(f.t, time.Minute, fmt.Sprintf("%d runs wait for %s", n, lock), func() bool {
		found, err := conn.reader.Lock(f.t.Context(), lock)
		if err != nil {
			f.t.Fatal(err)
		}
		runs = nil
		for _, wait := range found.Waits {
			runs = append(runs, string(wait.RunID))
		}
		return len(runs) == n
	})
	return runs
}

// 1,000 runs wait for one bill: other jobs run on. And when it is free, they run in their order.
func TestFaultThousandRunsWaitForOneBill(t *testing.T) {
	t.Parallel()
	f, _ := newPack(t, `
worker: {concurrency: 2}
jobs:
  settle: {handler: traces, args: {effects: EFFECTS}, lock: {exclusive: ["bill:1"]}}
  other: {handler: traces, args: {effects: EFFECTS}}
`, withHandlers+"=1")
	f.startAll(1)
	release := f.hold("bill:1")
	const many = 1000
	f.enqueueMany("settle", many, crashArgs{Effects: f.effects})
	runs := f.waiting("bill:1", many)
	began := time.Now()
	other := f.enqueue("other", "x")
	f.await(other, "succeeded")
	t.Logf("another job had run after %s", time.Since(began))
	release()
	f.await(runs[many-1], "succeeded")
	f.inOrder(runs, 0)
	f.drain()
}

// A hot bill behind a backlog of 2,000: the bill's waiters run in order, and the bill is idle for
// at most 100 ms between two of them, although all slots are taken and the queue is long.
func TestFaultHotBillBehindABacklog(t *testing.T) {
	t.Parallel()
	backlog := 800
	if allTests() {
		backlog = 2_000
	}
	f, _ := newPack(t, `
worker: {concurrency: 4}
jobs:
  settle: {handler: naps, lock: {exclusive: ["bill:1"]}}
  other: {handler: naps}
`, withHandlers+"=1")
	f.startAll(2)
	release := f.hold("bill:1")
	f.enqueueMany("settle", 20, struct{}{})
	settle := f.waiting("bill:1", 20)
	f.enqueueMany("other", backlog, struct{}{})
	conn := f.connection()
	outstanding := func() int {
		left, err := conn.ledger.Outstanding(context.WithoutCancel(t.Context()), "other", 0)
		if err != nil {
			t.Fatal(err)
		}
		return len(left)
	}
	eventually(t, 20*time.Second, "all slots work off the backlog", func() bool { return outstanding() < backlog-16 })
	behind := outstanding()
	release()
	for _, run := range settle {
		f.await(run, "succeeded")
	}
	last := f.await(fmt.Sprintf("other#%05d", backlog-1), "succeeded")

	type span struct {
		run         string
		began, done time.Time
	}
	var spans []span
	for _, run := range settle {
		got := f.show(run)
		if len(got.Attempts) != 1 || got.Attempts[0].Finished.IsZero() {
			t.Fatalf("%s: attempts %+v, want one that ended", run, got.Attempts)
		}
		spans = append(spans, span{run, got.Attempts[0].Started, got.Attempts[0].Finished})
	}
	slices.SortFunc(spans, func(a, b span) int { return a.began.Compare(b.began) })
	var gaps []time.Duration
	for i, s := range spans {
		if s.run != settle[i] {
			t.Errorf("run %d of the bill is %s, want %s", i+1, s.run, settle[i])
		}
		if i > 0 {
			gaps = append(gaps, s.began.Sub(spans[i-1].done))
		}
	}
	slices.Sort(gaps)
	ahead := last.Attempts[0].Started.Sub(spans[len(spans)-1].done)
	t.Logf("behind %d runs, the bill was idle for %s at most, %s in the median; it was settled %s before the last of the others began",
		behind, gaps[len(gaps)-1], gaps[len(gaps)/2], ahead)
	// A machine that starves the processes makes some longer. Behind the backlog, they would take
	// many seconds.
	if p50, p90 := gaps[len(gaps)/2], gaps[len(gaps)*9/10-1]; p50 > 100*time.Millisecond || p90 > time.Second {
		t.Errorf("the bill was idle for %s (p50) and %s (p90) between two runs, want at most 100ms: %s", p50, p90, gaps)
	}
	if ahead <= 0 && behind > backlog/2 {
		t.Error("the runs of the bill ended with the backlog, although they were due before all of it")
	}
}

// Backlog of 10,000 due runs while a bill is contended: the bill's waiters still run in order, none
// pushed twice: one gets its delivery when it is offered the bill, and no second one.
func TestFaultBillIsContendedBehindABacklog(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes many runs")
	}
	t.Parallel()
	backlog := 2_000
	if allTests() {
		backlog = 10_000
	}
	f, _ := newPack(t, `
worker: {concurrency: 4}
jobs:
  settle: {handler: traces, args: {effects: EFFECTS}, lock: {exclusive: ["bill:1"]}}
  other: {handler: nothing}
`, withHandlers+"=1")
	f.startAll(2)
	release := f.hold("bill:1")
	// Deliveries of the other process pass a delivery that a slow process has fetched. Few can,
	// because each run takes longer than a busy machine stalls.
	f.enqueueMany("settle", 20, crashArgs{Effects: f.effects, Takes: time.Second})
	settle := f.waiting("bill:1", 20)
	conn := f.connection()
	number := func(key, run string) int { // of the run's last delivery
		record, err := conn.rdb.HGet(t.Context(), key, run).Result()
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.Split(record, "\x1f")[1])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := make(map[string]int)
	for _, run := range settle {
		before[run] = number("{lockstep}:run", run)
	}
	if err := conn.rdb.Set(t.Context(), "asynq:{default}:paused", time.Now().Unix(), 0).Err(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the queue is paused", func() bool {
		for _, q := range ask[[]struct {
			Queue  string
			Paused bool
		}](t, f.env, "queue", "ls") {
			if q.Queue == "default" && q.Paused {
				return true
			}
		}
		return false
	})
	f.enqueueMany("other", backlog, struct{}{})
	release()
	if err := conn.rdb.Del(t.Context(), "asynq:{default}:paused").Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for _, run := range settle {
		f.await(run, "succeeded")
	}
	left, err := conn.ledger.Outstanding(context.WithoutCancel(t.Context()), "other", 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the bill's %d waiters had run after %s; of %d others %d were still to do", len(settle), time.Since(began), backlog, len(left))
	// An offer that no worker takes within two seconds lapses, and then the deliveries keep the
	// order. Those that a slow process has fetched, or has yet to push, are passed by others. A
	// random order has half of the pairs wrong.
	f.inOrder(settle, len(settle)*(len(settle)-1)/2/3)
	most := 0
	for _, run := range settle {
		if got := f.show(run); len(got.Attempts) != 1 {
			t.Errorf("%s: %d attempts, want 1", run, len(got.Attempts))
		}
		most = max(most, number("{lockstep}:hist:settle", run)-before[run])
	}
	// Offered, due, begun, and perhaps pushed once more because nobody confirmed the first push in
	// time; a run that is pushed by every look at it would count with the backlog.
	if t.Logf("no waiter changed its state more than %d times", most); most > 20 {
		t.Errorf("a waiter was made due or not due %d times after its bill was free", most)
	}
	f.drain()
}
