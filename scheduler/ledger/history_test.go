package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/ledger"
)

// foundIn are the histories that are known to find planted faults, where the first one finds none.
var foundIn = map[string]uint64{
	"a claim passes a request that waits":               45,
	"a claim takes what its worker cannot run":          7,
	"a finish looks at the first lock alone":            1,
	"a finish passes its locks to no wait":              1,
	"a finish tells nobody of a recovery":               2,
	"a finish that is sent again has its message again": 1,
	"a late record ends the next batch":                 3,
	"a new message ends the lease of the others":        5,
	"a reopened run has another end":                    8,
	"a reopened run has another session":                8,
	"a reopened run has another start":                  8,
	"a reopened run has no log":                         8,
	"a reopened run keeps a short log":                  8,
	"an id asked for twice is two runs":                 1,
	"several ends are counted as one":                   7,
	"two ends have one name":                            28,
}

// historiesFor yields the seeds of n histories, of which one must find a planted fault. It begins
// with the one that is known to find it. If the histories have changed, the others follow.
func historiesFor(fault string, n uint64) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		for i := range n {
			if !yield((foundIn[fault] + i) % n) {
				return
			}
		}
	}
}

// TestRandomHistoriesKeepThePromise plays workers that lose replies and deliveries, send late and
// twice, crash and are taken for dead, and people that cancel and reopen runs. The runs compete for
// three bills, wait for them for a limited time, replace each other and have start deadlines. The
// messages about their ends are sent (mailplay_test.go). The test checks every key after every
// step. In the end all faults stop, every run must reach its end, and every message its target.
func TestRandomHistoriesKeepThePromise(t *testing.T) {
	steps, seeds := 150, 4
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_SOAK")); err == nil {
		seeds = n
	}
	each(t, func(f *fixture) {
		for seed := range uint64(seeds) {
			f.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
				f := &fixture{T: t, rdb: f.rdb, namespace: f.namespace + strconv.FormatUint(seed, 10), job: newJob("j")}
				space, err := locks.NewSpace(f.rdb, f.namespace)
				if err != nil {
					t.Fatal(err)
				}
				f.Ledger = ledger.New(f.rdb, space)
				var leave func()
				if seed%2 == 1 { // in every other one an older build is present at first
					leave = f.older()
				}
				p := newPlay(f, seed)
				for n := range steps {
					if n == steps/2 && leave != nil {
						leave()
					}
					p.step()
					p.mailStep()
					p.check()
				}
				p.settle()
				p.settleMail()
			})
		}
	})
}

// play is one random history and what its players know.
type play struct {
	*fixture
	rand    *rand.Rand
	workers []*locks.Client
	cursors map[string]time.Time
	// with a schedule: one queues its runs, one replaces them, one lets them overlap
	ticking []*jobs.Job
	asked   int
	queue   []ledger.Due // deliveries in flight: any may be lost, duplicated or late
	sent    []sentClaim  // claims, of which a copy may still arrive
	acting  []attempt    // attempts of a live worker that has not noticed a loss
	// attempts that have ended or are taken for dead: a late finish may arrive
	stale []attempt
	// attempts of a live worker that have lost their lease: it reports them
	cut     []attempt
	library []*locks.Hold
	success map[jobs.RunID]int
	tokens  locks.Token
	paused  map[string]bool // queues
	trace   []string
	seen    *snapshot // what is being checked

	// of all runs, when they were last checked
	records map[jobs.RunID]*ledger.Record
	// ends of runs that targets are told of
	told []*ledger.Record
	// the holds and waits of that time, and how many ends of each were kept
	present map[string]bool
	ended   map[string]int

	mailing *mailing
	finds   bool // what is wrong ends the history, but not its test

	bills int  // that runs compete for
	plain bool // runs mostly find their bundles free, and an id may be requested again
}

type sentClaim struct {
	request *locks.Request
	due     ledger.Due
	before  []string
	wait    time.Duration // for which others may pass the wait that it may cause
}

// playedTargets are the targets of all jobs in random histories: one learns of everything, one of
// some ends and not of recoveries, and one of recoveries from few ends.
var playedTargets = []jobs.Notify{
	{Target: "all", On: jobs.Events()},
	{Target: "few", On: []jobs.Event{jobs.EventLost, jobs.EventRecovered}},
	{Target: "some", On: []jobs.Event{jobs.EventFailed, jobs.EventLost}},
}

// playedJobs are the jobs of all runs in random histories.
var playedJobs = []string{string(jobs.OverlapQueue), string(jobs.OverlapReplace), string(jobs.OverlapAllow), "billed"}

func newPlay(f *fixture, seed uint64) *play {
	p := &play{fixture: f, rand: rand.New(rand.NewPCG(seed, 1)), success: make(map[jobs.RunID]int), paused: make(map[string]bool), bills: 3}
	p.mailing = newMailing(seed)
	p.cursors = make(map[string]time.Time)
	for _, overlap := range []jobs.Overlap{jobs.OverlapQueue, jobs.OverlapReplace, jobs.OverlapAllow} {
		job := newJob(string(overlap))
		job.Overlap, job.MaxCrashes, job.Retry.Max, job.StartDeadline = overlap, 5, 5, 2*time.Hour
		job.Lock = jobs.Lock{Wait: time.Hour, OnBusy: []jobs.OnBusy{jobs.BusyRequeue, jobs.BusySkip, jobs.BusyFail}[p.rand.IntN(3)]}
		job.Notify = playedTargets
		p.ticking = append(p.ticking, job)
		p.cursors[job.Name] = f.cursor(job, 3000)
	}
	for range 3 {
		p.workers = append(p.workers, f.session("w"))
	}
	return p
}

func (p *play) fatalf(format string, args ...any) {
	p.Helper()
	if p.finds {
		panic(foundFault(fmt.Sprintf(format, args...)))
	}
	p.Fatalf("%s\nafter:\n  %s", fmt.Sprintf(format, args...), strings.Join(p.trace, "\n  "))
}

func (p *play) say(format string, args ...any) {
	p.trace = append(p.trace, fmt.Sprintf(format, args...))
}

// push takes deliveries; some get lost, some are duplicated.
func (p *play) push(due []ledger.Due) {
	for _, d := range due {
		switch p.rand.IntN(10) {
		case 0:
		case 1:
			p.queue = append(p.queue, d, d)
		default:
			p.queue = append(p.queue, d)
		}
	}
}

// pick takes one element out of a slice.
func pick[T any](r *rand.Rand, all *[]T) T {
	i := r.IntN(len(*all))
	one := (*all)[i]
	*all = slices.Delete(*all, i, i+1)
	return one
}

func (p *play) step() {
	switch n := p.rand.IntN(121); {
	case n >= 118:
		if len(p.cut) > 0 {
			p.reportCut()
		}
	case n < 12:
		job := p.ticking[p.rand.IntN(len(p.ticking))]
		created := p.tick(job, p.cursors[job.Name], 1, []ledger.Verdict{ledger.VerdictCatchUp, ledger.VerdictRun}[p.rand.IntN(2)])
		p.say("tick %v of %s: due %v", created.Cursor, job.Name, created.Due)
		p.cursors[job.Name] = created.Cursor
		p.push(created.Due)
	case n >= 115:
		p.pauseOne()
	case n >= 112:
		p.cancelOne()
	case n >= 108:
		p.reopenOne()
	case n >= 104:
		p.late()
	case n >= 100:
		p.stopAsked()
	case n < 25:
		p.enqueue()
	case n < 32 && len(p.queue) > 1:
		p.sendSeveral()
	case n < 60 && len(p.queue) > 0:
		p.send(sentClaim{p.begin(), pick(p.rand, &p.queue), [][]string{nil, {"default"}}[p.rand.IntN(2)], time.Duration(p.rand.IntN(2)) * time.Hour})
	case n < 63 && len(p.sent) > 0: // a copy of an older claim arrives; its reply is lost
		claim := pick(p.rand, &p.sent)
		claimed, err := p.Claim(p.Context(), claim.request, claim.due, claim.wait, claim.before)
		if err != nil {
			p.fatalf("%v", err)
		}
		p.say("late copy of claim %s n %d by %s: %s", claim.due.Run, claim.due.N, claim.request.ID(), claimed.Outcome)
		runs := func(a attempt) bool { return a.request.ID() == claim.request.ID() }
		if claimed.Outcome != ledger.ClaimStale && claimed.Outcome != ledger.ClaimSessionEnded && !slices.ContainsFunc(p.acting, runs) {
			p.fatalf("it did something, and nobody hears of it")
		}
	case n < 70 && len(p.acting) > 1:
		p.endSeveral()
	case n < 83 && len(p.acting) > 0:
		a := pick(p.rand, &p.acting)
		p.end(a, []ledger.Outcome{ledger.OutcomeSuccess, ledger.OutcomeSuccess, ledger.OutcomeRetry, ledger.OutcomeHandBack, ledger.OutcomeFailure}[p.rand.IntN(5)])
	// recent ones, so that their runs may be running again
	case p.plain && n < 89 && len(p.stale) > 0:
		p.end(p.stale[max(0, len(p.stale)-1-p.rand.IntN(4))], ledger.OutcomeSuccess)
	case n < 86 && len(p.stale) > 0:
		p.end(p.stale[p.rand.IntN(len(p.stale))], []ledger.Outcome{ledger.OutcomeSuccess, ledger.OutcomeRetry}[p.rand.IntN(2)])
	case n < 89:
		p.crashOne()
	case n < 93:
		p.useLibrary()
	case n < 96:
		p.lapse()
	default:
		p.sweepAll(time.Duration(p.rand.IntN(2)) * time.Hour)
	}
}

// some returns the id of an outstanding run for which a field of its record is as wanted, or "".
func (p *play) some(is func(fields []string) bool) jobs.RunID {
	var found []string
	for id, record := range p.all("run") {
		if is(strings.Split(record, us)) {
			found = append(found, id)
		}
	}
	if len(found) == 0 {
		return ""
	}
	slices.Sort(found)
	return jobs.RunID(found[p.rand.IntN(len(found))])
}

// pauseOne pauses or resumes a queue: by request, or as the worker on duty finds it.
func (p *play) pauseOne() {
	queue := []string{"default", "slow"}[p.rand.IntN(2)]
	p.paused[queue] = !p.paused[queue]
	var due []ledger.Due
	var err error
	switch {
	case p.rand.IntN(2) == 0:
		due, err = p.QueuesPaused(p.Context(), p.pausedQueues())
	case p.paused[queue]:
		err = p.QueuePaused(p.Context(), queue)
	default:
		due, err = p.QueueResumed(p.Context(), queue)
	}
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("paused are %v: due %v", p.pausedQueues(), due)
	p.push(due)
}

func (p *play) pausedQueues() (queues []string) {
	for queue, is := range p.paused {
		if is {
			queues = append(queues, queue)
		}
	}
	return queues
}

// cancelOne cancels any outstanding run.
func (p *play) cancelOne() {
	id := p.some(func([]string) bool { return true })
	if id == "" {
		return
	}
	job, err := p.Definition(p.Context(), id)
	if err != nil {
		p.fatalf("%v", err)
	}
	canceled, err := p.Cancel(p.Context(), id, job, ledger.Act{Who: "ann", What: "cancel run", On: string(id)})
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("cancel %s: %+v", id, canceled)
	p.push(canceled.Due)
}

// reopenOne reopens a run that has ended.
func (p *play) reopenOne() {
	job := p.ticking[p.rand.IntN(len(p.ticking))]
	history, err := p.History(p.Context(), job.Name, 20)
	if err != nil {
		p.fatalf("%v", err)
	}
	if len(history) == 0 {
		return
	}
	record := history[p.rand.IntN(len(history))]
	due, err := p.Reopen(p.Context(), ledger.Reopening{Run: record.ID, Tick: record.Tick, Job: job, Any: p.rand.IntN(2) == 0,
		Act: &ledger.Act{Who: "ann"}})
	p.say("reopen %s, which is %s: %v, %v", record.ID, record.State, due, err)
	if err != nil && !errors.Is(err, ledger.ErrRefused) {
		p.fatalf("%v", err)
	}
	if len(due) > 0 {
		p.success[record.ID] = 0
	}
	p.push(due)
}

// late makes a time of some run expire, and the sweep see it.
func (p *play) late() {
	field := []int{fieldDeadline, fieldWaitBy}[p.rand.IntN(2)]
	id := p.some(func(f []string) bool {
		return f[fieldState] != "running" && f[field] != "" && (field == fieldDeadline || f[fieldState] == "waiting")
	})
	if id == "" {
		return
	}
	p.say("a time of %s is over", id)
	p.set(id, field, "1")
	if err := p.rdb.ZAddXX(p.Context(), p.key("late"), redis.Z{Score: 1, Member: string(id)}).Err(); err != nil {
		p.fatalf("%v", err)
	}
	if p.rand.IntN(3) > 0 { // else the first script that meets it
		p.push(p.expire())
	}
}

// stopAsked lets a worker hear what it is asked to stop.
func (p *play) stopAsked() {
	w := p.workers[p.rand.IntN(len(p.workers))]
	for id := range p.fixture.asked(w).Stop {
		i := slices.IndexFunc(p.acting, func(a attempt) bool { return a.Record.ID == id && a.request.Session() == w.Session() })
		if i < 0 {
			p.fatalf("%s is asked to stop %s, which it does not run", w.Session(), id)
		}
		a := p.acting[i]
		p.acting = slices.Delete(p.acting, i, i+1)
		p.end(a, ledger.OutcomeCanceled)
	}
}

func (p *play) begin() *locks.Request { return p.request(p.workers[p.rand.IntN(len(p.workers))]) }

func (p *play) enqueue() {
	if !p.plain && p.rand.IntN(3) == 0 {
		p.enqueueSeveral()
		return
	}
	if p.asked++; p.plain && p.rand.IntN(4) == 0 {
		p.asked -= p.rand.IntN(4)
	}
	request := p.ask()
	ctx := p.Context()
	if p.asked%3 == 0 {
		ctx = requester.In(ctx)
	}
	enqueued, err := p.Enqueue(ctx, request)
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("enqueue %s %v", enqueued.Run, request.Job.Lock.Exclusive)
	p.push(enqueued.Due)
}

// enqueueSeveral sends a list; some of it was requested before, or is requested twice.
func (p *play) enqueueSeveral() {
	var list ledger.List
	for range 1 + p.rand.IntN(4) {
		if p.asked++; p.rand.IntN(4) == 0 {
			p.asked -= p.rand.IntN(4)
		}
		list.Items = append(list.Items, p.ask())
	}
	list.Atomic = p.rand.IntN(2) == 0
	replies, err := p.EnqueueAll(p.Context(), list)
	if err != nil {
		p.fatalf("%v", err)
	}
	for i, r := range replies {
		if r.Err != nil {
			p.fatalf("%v", r.Err)
		}
		p.say("enqueue %s %v with others, existed %t", r.Run, list.Items[i].Job.Lock.Exclusive, r.Exists)
		p.push(r.Due)
	}
}

// ask returns a request for the run p.asked.
func (p *play) ask() ledger.Request {
	job := newJob("billed")
	job.Every = 0
	if p.rand.IntN(2) == 0 {
		job.Queue = "slow"
	}
	job.MaxCrashes, job.Retry.Max, job.Notify = 5, 5, playedTargets
	if !p.plain && p.rand.IntN(2) == 0 {
		job.Lock.Wait, job.Lock.OnBusy = time.Hour, []jobs.OnBusy{jobs.BusyRequeue, jobs.BusySkip, jobs.BusyFail}[p.rand.IntN(3)]
	}
	for i := range p.bills {
		if p.plain && p.rand.IntN(p.bills) == 0 || !p.plain && p.rand.IntN(2) == 0 {
			job.Lock.Exclusive = append(job.Lock.Exclusive, fmt.Sprint("bill:", i))
		}
	}
	return ledger.Request{Job: job, ID: fmt.Sprint(p.asked), Trigger: ledger.TriggerEnqueue}
}

func (p *play) send(claim sentClaim) {
	claimed, err := p.Claim(p.Context(), claim.request, claim.due, claim.wait, claim.before)
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("claim %s n %d by %s: %s", claim.due.Run, claim.due.N, claim.request.ID(), claimed.Outcome)
	p.claimed(claim, claimed)
}

// sendSeveral claims several runs together, for one worker.
func (p *play) sendSeveral() {
	w := p.workers[p.rand.IntN(len(p.workers))]
	var claims []ledger.Claim
	for range min(2+p.rand.IntN(4), len(p.queue)) {
		claims = append(claims, ledger.Claim{Request: p.request(w), Due: pick(p.rand, &p.queue)})
	}
	wait := time.Duration(p.rand.IntN(2)) * time.Hour
	all := p.ClaimAll(p.Context(), claims, wait)
	for i, claim := range claims {
		if all[i] == nil { // its definition is new to these workers
			var err error
			if all[i], err = p.ClaimSound(p.Context(), claim.Request, claim.Due, wait, nil); err != nil {
				p.fatalf("claim of %s: %v", claim.Due.Run, err)
			}
		}
	}
	order := make([]int, len(all)) // of tokens: runs that are not plain come after the others
	for i := range order {
		order[i] = i
	}
	token := func(i int) locks.Token {
		if all[i] == nil || all[i].Outcome != ledger.ClaimGranted {
			return 0
		}
		return all[i].Record.Last().Token
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(token(a), token(b)) })
	var suspects []sentClaim
	for _, i := range order {
		claimed, claim := all[i], sentClaim{claims[i].Request, claims[i].Due, nil, wait}
		p.say("claim %s n %d by %s with %d others: %s", claim.due.Run, claim.due.N, claim.request.ID(), len(claims)-1, claimed.Outcome)
		if claimed.Outcome == ledger.ClaimCrashed {
			p.checkSuspect(claim.due.Run, claimed.Suspected)
			suspects = append(suspects, claim)
			continue
		}
		p.claimed(claim, claimed)
	}
	for _, claim := range suspects {
		p.send(claim)
	}
}

// claimed notes the reply to a claim.
func (p *play) claimed(claim sentClaim, claimed *ledger.Claimed) {
	p.push(claimed.Due)
	if p.rand.IntN(4) == 0 {
		p.sent = append(p.sent, claim)
	}
	if claimed.Outcome != ledger.ClaimGranted {
		return
	}
	a := attempt{Claimed: claimed, request: claim.request}
	for _, other := range p.acting {
		if other.request.ID() == claim.request.ID() {
			return // the reply once more
		}
	}
	if a.token() <= p.tokens {
		p.fatalf("token %v after %v", a.token(), p.tokens)
	}
	p.tokens = a.token()
	if p.success[a.Record.ID] > 0 {
		p.fatalf("run %s was started again after its success", a.Record.ID)
	}
	p.acting = append(p.acting, a)
}

func (p *play) end(a attempt, outcome ledger.Outcome) {
	finish := ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: outcome}
	times := 1 + p.rand.IntN(2) // a lost reply: it is sent again
	for i := range times {
		finished, err := p.Finish(p.Context(), finish)
		if err != nil {
			p.fatalf("%v", err)
		}
		p.say("finish %s token %v %s: %s, %s", a.Record.ID, a.token(), outcome, finished.Verdict, finished.State)
		p.push(finished.Due)
		if finished.Verdict == ledger.FinishRecorded && outcome == ledger.OutcomeSuccess && i == 0 && !p.knows(a) {
			p.success[a.Record.ID]++
		}
	}
	p.stale = append(p.stale, a)
}

// endSeveral ends several attempts together, some of which are known to have ended or lost
// something.
func (p *play) endSeveral() {
	var ending []attempt
	for range min(2+p.rand.IntN(4), len(p.acting)) {
		ending = append(ending, pick(p.rand, &p.acting))
	}
	if len(p.stale) > 0 && p.rand.IntN(3) == 0 {
		ending = append(ending, p.stale[p.rand.IntN(len(p.stale))])
	}
	finishes := make([]ledger.Finish, len(ending))
	for i, a := range ending {
		finishes[i] = ledger.Finish{Run: a.Record.ID, Job: a.Job, Token: a.token(), Hold: a.request.ID(), Outcome: ledger.OutcomeSuccess}
	}
	for range 1 + p.rand.IntN(2) { // a lost reply: they are sent again
		for i, finished := range p.FinishAll(p.Context(), finishes) {
			a := ending[i]
			if finished == nil {
				p.fatalf("finish of %s was not answered", a.Record.ID)
			}
			p.say("finish %s token %v together: %s, %s", a.Record.ID, a.token(), finished.Verdict, finished.State)
			p.push(finished.Due)
			if finished.Verdict == ledger.FinishRecorded && !p.knows(a) {
				p.success[a.Record.ID]++
				p.stale = append(p.stale, a)
			}
		}
	}
	p.stale = append(p.stale, ending...)
}

// knows reports whether this attempt's end is recorded already.
func (p *play) knows(a attempt) bool {
	return slices.ContainsFunc(p.stale, func(s attempt) bool { return s.token() == a.token() }) && p.success[a.Record.ID] > 0
}

// crashOne ends a session: its process has died, or it has lost its lease and continues.
func (p *play) crashOne() {
	i := p.rand.IntN(len(p.workers))
	dead := p.workers[i]
	died := p.rand.IntN(2) == 0
	p.say("session %s ends, its process died: %v", dead.Session(), died)
	if died {
		if err := p.Died(p.Context(), dead.Session()); err != nil {
			p.fatalf("%v", err)
		}
	}
	early := !died && p.rand.IntN(3) == 0 // it cuts off its work before its lease ends
	if !early {
		p.fixture.end(dead)
	}
	p.workers[i] = p.session("w")
	p.acting = slices.DeleteFunc(p.acting, func(a attempt) bool {
		gone := a.request.Session() == dead.Session()
		if gone && !died {
			p.cut = append(p.cut, a)
		}
		if gone {
			p.stale = append(p.stale, a)
		}
		return gone
	})
	if early {
		for p.rand.IntN(3) > 0 && len(p.cut) > 0 {
			p.reportCut()
		}
		p.fixture.end(dead)
	}
}

// reportCut lets a worker report an attempt that it cut off. It may do so again, and late.
func (p *play) reportCut() {
	i := p.rand.IntN(len(p.cut))
	a, w := p.cut[i], p.workers[p.rand.IntN(len(p.workers))]
	if p.rand.IntN(3) > 0 {
		p.cut = slices.Delete(p.cut, i, i+1)
	}
	lost := ledger.Dead{Run: a.Record.ID, Token: a.token(), Job: a.Record.Job, Fails: a.Record.Fails}
	closed, err := p.LostLease(p.Context(), w.Session(), lost, a.Job)
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("%s reports that %s of %s has lost its lease: %+v", w.Session(), lost.Token, lost.Run, closed)
	if closed != nil {
		p.push(closed.Due)
	}
}

// useLibrary takes or releases a bill without any run.
func (p *play) useLibrary() {
	if len(p.library) > 0 && p.rand.IntN(2) == 0 {
		hold := pick(p.rand, &p.library)
		err := hold.Release()
		p.say("release %s: %v", hold.ID(), err)
		return
	}
	if p.plain && len(p.library) > 1 {
		return
	}
	bill := fmt.Sprint("bill:", p.rand.IntN(p.bills))
	hold, err := p.workers[p.rand.IntN(len(p.workers))].TryAcquire(p.Context(), locks.Exclusive(bill))
	p.say("try %s: %v", bill, err)
	if err == nil {
		p.library = append(p.library, hold)
	}
}

func (p *play) lapse() {
	for _, owner := range p.all("own") {
		if strings.HasPrefix(owner, "o") {
			p.say("offer %s lapses", owner[1:])
			if err := p.rdb.ZAddXX(p.Context(), p.key("exp"), redis.Z{Score: 1, Member: owner}).Err(); err != nil {
				p.fatalf("%v", err)
			}
			return
		}
	}
}

func (p *play) sweepAll(unconfirmed time.Duration) {
	sweep, err := p.Sweep(p.Context(), ledger.SweepLimits{Most: 100, Unconfirmed: unconfirmed})
	if err != nil {
		p.fatalf("%v", err)
	}
	p.say("sweep: due %v, dead %v", sweep.Due, sweep.Dead)
	p.push(sweep.Due)
	for _, dead := range sweep.Dead {
		job, err := p.Definition(p.Context(), dead.Run)
		if err != nil {
			p.fatalf("%v", err)
		}
		closed, err := p.Crash(p.Context(), dead, job)
		if err != nil {
			p.fatalf("%v", err)
		}
		if closed != nil {
			p.say("%s of %s has %s", dead.Token, dead.Run, closed.Outcome)
			p.push(closed.Due)
		}
	}
}

// checkSuspect compares a claim's reply about a run with the run's record.
func (p *play) checkSuspect(run jobs.RunID, suspected bool) {
	p.Helper()
	record, _, err := p.Find(p.Context(), run)
	if err != nil {
		p.fatalf("%v", err)
	}
	if record.Suspect() != suspected {
		p.fatalf("the claim says suspect: %v, the record %v: %+v", suspected, record.Suspect(), record)
	}
}

// snapshot is what the keys of a namespace had at one instant: hashes, and members of sorted sets.
type snapshot struct {
	hashes map[string]map[string]string
	sets   map[string][]string
}

// look reads all keys in one step: offers lapse at any time, so keys that are read one after the
// other may contradict each other.
func (p *play) look() *snapshot {
	p.Helper()
	hashes, sets := make(map[string]*redis.MapStringStringCmd), make(map[string]*redis.StringSliceCmd)
	if _, err := p.rdb.TxPipelined(p.Context(), func(pipe redis.Pipeliner) error {
		for _, key := range []string{"own", "wait", "run", "body", "defs", "log", "facts", "mailed"} {
			hashes[key] = pipe.HGetAll(p.Context(), p.key(key))
		}
		for _, key := range []string{"hold", "q", "ready", "push", "sent", "busy", "timer", "open", "died", "late", "ask"} {
			sets[key] = pipe.ZRange(p.Context(), p.key(key), 0, -1)
		}
		return nil
	}); err != nil {
		p.fatalf("%v", err)
	}
	seen := &snapshot{make(map[string]map[string]string), make(map[string][]string)}
	for key, cmd := range hashes {
		seen.hashes[key] = cmd.Val()
	}
	for key, cmd := range sets {
		seen.sets[key] = cmd.Val()
	}
	return seen
}

func (p *play) all(hash string) map[string]string {
	if p.seen != nil {
		return p.seen.hashes[hash]
	}
	all, err := p.rdb.HGetAll(p.Context(), p.key(hash)).Result()
	if err != nil {
		p.fatalf("%v", err)
	}
	return all
}

func (p *play) members(zset string) map[string]bool {
	set := make(map[string]bool)
	for _, m := range p.seen.sets[zset] {
		set[m] = true
	}
	return set
}

const (
	us        = "\x1f"
	itemsHold = 6  // where the items begin, in a hold's record,
	itemsWait = 8  // in a wait's,
	itemsRun  = 32 // and in a run's
)

// check reads every key and compares it with every other one and with what the players know.
func (p *play) check() {
	p.Helper()
	p.seen = p.look()
	defer func() { p.seen = nil }()
	own, waits, runs := p.all("own"), p.all("wait"), p.all("run")
	holds := make(map[string]string)
	for member := range p.members("hold") {
		_, id, _ := strings.Cut(strings.Split(member, us)[0], "\x00")
		holds[id] = member
	}
	q := p.members("q")
	soon := strconv.FormatInt(time.Now().Add(30*time.Minute).UnixMilli(), 10)
	owned, queued := 0, 0
	for id, record := range holds {
		for _, item := range strings.Split(record, us)[itemsHold:] {
			owned++
			if own[item[1:]] != "x"+id {
				p.fatalf("hold %s has %s, which is %q", id, item, own[item[1:]])
			}
		}
	}
	for id, record := range waits {
		f := strings.Split(record, us)
		free := true
		for _, item := range f[itemsWait:] {
			name := item[1:]
			switch f[3] {
			case "o":
				owned++
				if own[name] != "o"+id {
					p.fatalf("offer %s has %s, which is %q", id, name, own[name])
				}
			case "w":
				queued++
				if !q[strings.Join([]string{name, f[1], "x", f[4], id}, "\x00")] {
					p.fatalf("wait %s is not in the queue of %s", id, name)
				}
				free = free && own[name] == ""
				for member := range q { // an older wait without patience is never passed
					if m := strings.Split(member, "\x00"); m[0] == name && m[1] < f[1] && m[3] < soon {
						free = false
					}
				}
			}
		}
		queue := strings.Split(runs[strings.TrimPrefix(id, "+")], us)[3]
		if f[3] == "w" && p.paused[queue] || f[3] == "k" && !p.paused[queue] {
			p.fatalf("wait %s of queue %s is in state %s, paused are %v", id, queue, f[3], p.pausedQueues())
		}
		if f[3] == "w" && free {
			p.fatalf("wait %s is grantable: %q", id, record)
		}
		if run := strings.Split(runs[strings.TrimPrefix(id, "+")], us); run[0] != "waiting" && run[0] != "due" {
			p.fatalf("wait %s of a run that is %q", id, run[0])
		}
	}
	if owned != len(own) || queued != len(q) {
		p.fatalf("%d of %d resources, %d of %d queue members belong to somebody", owned, len(own), queued, len(q))
	}
	p.checkRuns(runs, holds, waits)
	p.checkPast(holds, waits)
	kept, err := keptDefinitions(p.Context(), p.rdb, p.namespace)
	if err != nil {
		p.fatalf("%v", err)
	}
	if wrong := wrongDefinitions(p.all("body"), p.all("defs"), kept); wrong != "" || len(p.all("body")) != len(runs) {
		p.fatalf("%d runs, %d bodies: %s", len(runs), len(p.all("body")), wrong)
	}
	p.checkRecords()
	if wrong := wrongMade(p.records, p.all("defs"), kept); wrong != "" {
		p.fatalf("%s", wrong)
	}
	p.checkDied(runs)
	p.checkBeside(runs)
	p.checkActing(own)
}

func (p *play) checkRuns(runs, holds, waits map[string]string) {
	p.Helper()
	ready, push, sent, busy, timer, open := p.members("ready"), p.members("push"), p.members("sent"), p.members("busy"), p.members("timer"), p.members("open")
	if len(open) != len(runs) {
		p.fatalf("%d runs, %d in the index", len(runs), len(open))
	}
	count := make(map[ledger.Index]int)
	for id, record := range runs {
		f := strings.Split(record, us)
		state := ledger.State(f[0])
		index := state.Facts().Index
		count[index]++
		due, _ := strconv.Atoi(f[7])
		is := map[string]bool{
			"ready": ready[fmt.Sprintf("%s\x00%016d\x00%s", f[3], due, id)], "push": push[id] || sent[id], "timer": timer[id],
			"busy": busy[f[10]+"\x00"+id], "wait": waits["+"+id] != "",
		}
		want := map[string]bool{
			"ready": index == ledger.IndexQueue, "push": index == ledger.IndexQueue, "timer": index == ledger.IndexTime,
			"busy": index == ledger.IndexWorker, "wait": state == ledger.StateWaiting || state == ledger.StateDue && f[22] == "1",
		}
		for what := range want {
			if is[what] != want[what] {
				p.fatalf("run %s, %s: %s is %v, want %v: %q", id, state, what, is[what], want[what], record)
			}
		}
		if f[22] == "1" != is["wait"] {
			p.fatalf("run %s, %s, says wait %q, has one: %v", id, state, f[22], is["wait"])
		}
		if len(f) <= itemsRun {
			p.fatalf("run %s has no bundle: %q", id, record)
		}
	}
	if len(ready) != count[ledger.IndexQueue] || len(busy) != count[ledger.IndexWorker] || len(timer) != count[ledger.IndexTime] {
		p.fatalf("runs by index %v, but %d ready, %d busy, %d in the timer", count, len(ready), len(busy), len(timer))
	}
}

// checkPast checks that each hold that has ended since the last time has exactly one entry, and
// each wait one for each of its ends.
func (p *play) checkPast(holds, waits map[string]string) {
	p.Helper()
	ended, present := make(map[string]int), make(map[string]bool)
	page, err := p.Space().Past(p.Context(), "", time.Time{})
	for ; err == nil; page, err = p.Space().Past(p.Context(), page.Next, time.Time{}) {
		for _, e := range page.Entries {
			kind := "hold "
			if e.Wait {
				kind = "wait "
			}
			ended[kind+string(e.ID)]++
		}
		if page.Next == "" {
			break
		}
	}
	if err != nil {
		p.fatalf("%v", err)
	}
	for id, member := range holds {
		if !strings.HasPrefix(member, "@") { // a resting hold has ended
			present["hold "+id] = true
		}
	}
	for id := range waits {
		present["wait "+id] = true
	}
	for what, n := range ended {
		if strings.HasPrefix(what, "hold") && (n != 1 || present[what]) {
			p.fatalf("%s has ended %d times, and is present: %v", what, n, present[what])
		}
	}
	for what := range p.present {
		if !present[what] && ended[what] <= p.ended[what] {
			p.fatalf("the end of %s was not kept", what)
		}
	}
	p.present, p.ended = present, ended
}

// checkDied checks the records of deaths: each suspect is an outstanding run that crashed in that
// death and was not cleared.
func (p *play) checkDied(runs map[string]string) {
	p.Helper()
	busy, logs := p.members("busy"), p.all("log")
	for member := range p.members("died") {
		session, run, of := strings.Cut(member, "\x00")
		// until the attempts are closed, which a sweep may still have to see
		if mark := session[0]; mark == '!' || mark == '?' {
			continue
		}
		if !of || runs[run] == "" || strings.Split(runs[run], us)[fieldCrashes] == "0" || busy[member] {
			p.fatalf("%q is suspected, and is no run that has crashed there: %q", member, runs[run])
		}
		crashed := regexp.MustCompile(`"worker":"` + regexp.QuoteMeta(session) + `",[^{}]*"outcome":"crashed",("cleared":true)?`)
		if found := crashed.FindStringSubmatch(logs[run]); found == nil || found[1] != "" {
			p.fatalf("%q is suspected, and its log says %s", member, logs[run])
		}
	}
}

// checkBeside checks the keys beside the records: times of checks, requests to workers.
func (p *play) checkBeside(runs map[string]string) {
	p.Helper()
	late, ask := p.members("late"), p.members("ask")
	asked := 0
	for id, record := range runs {
		f := strings.Split(record, us)
		watched := f[fieldFirst] == "" && f[fieldDeadline] != "" || f[fieldState] == "waiting" && f[fieldWaitBy] != ""
		if watched && !late[id] {
			p.fatalf("run %s, %s, has a time to look at, and nobody looks: %q", id, f[fieldState], record)
		}
		if f[fieldState] == "running" && f[fieldStop] != "" {
			asked++
			if !ask[f[fieldSession]+"\x00"+id] {
				p.fatalf("run %s is to stop, and its worker is not asked", id)
			}
		}
	}
	if asked != len(ask) {
		p.fatalf("%d of %d runs are asked to stop", len(ask), asked)
	}
	for id := range late {
		if runs[id] == "" {
			p.fatalf("run %s has ended and is looked at for its time", id)
		}
	}
}

// checkActing compares with the acting attempts: no two on one resource, each under its hold.
func (p *play) checkActing(own map[string]string) {
	p.Helper()
	by := make(map[string]locks.HoldID)
	for _, a := range p.acting {
		for _, item := range a.Items {
			name := item.Name
			if other := by[name]; other != "" {
				p.fatalf("%s and %s both act on %s", other, a.request.ID(), name)
			}
			by[name] = a.request.ID()
			if own[name] != "x"+string(a.request.ID()) {
				p.fatalf("%s acts on %s, which is %q", a.request.ID(), name, own[name])
			}
		}
	}
	for id, n := range p.success {
		if n > 1 {
			p.fatalf("run %s succeeded %d times", id, n)
		}
	}
}

// settle ends all faults: every acting attempt finishes and every due run is delivered, until every
// run has ended.
func (p *play) settle() {
	for _, hold := range p.library {
		if err := hold.Release(); err != nil && !errors.Is(err, locks.ErrLost) {
			p.fatalf("%v", err)
		}
	}
	due, err := p.QueuesPaused(p.Context(), nil)
	if err != nil {
		p.fatalf("%v", err)
	}
	clear(p.paused)
	p.push(due)
	p.check()
	ctx, cancel := context.WithTimeout(p.Context(), 30*time.Second)
	defer cancel()
	for len(p.all("run")) > 0 {
		if ctx.Err() != nil {
			p.fatalf("stuck: %v", p.all("run"))
		}
		p.sweepAll(0)
		for len(p.queue) > 0 {
			p.send(sentClaim{p.begin(), pick(p.rand, &p.queue), nil, 0})
			p.check()
			for len(p.acting) > 0 {
				p.end(pick(p.rand, &p.acting), ledger.OutcomeSuccess)
				p.check()
			}
		}
		for len(p.acting) > 0 {
			p.end(pick(p.rand, &p.acting), ledger.OutcomeSuccess)
		}
	}
	p.sweepAll(0) // which forgets deaths after all their attempts are closed
	p.check()
	p.wantNothingLeft()
}
