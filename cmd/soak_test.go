package cmd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"lockstep/locks/redistest"
	"lockstep/scheduler/admin"
)

// A soak is a fleet under random faults, for as long as you like: `make soak FOR=10m`. A plan that
// is drawn from a seed says which faults happen when. The checker then finds in ledger and effects
// whether the promise held. soakload_test.go has the work that a soak does beside its ticks,
// soaknotes_test.go a webhook with messages about it, soakwatch_test.go what it observes meanwhile.

// kind is what goes wrong.
type kind string

const (
	childKilled    kind = "working child killed"
	treeKilled     kind = "whole worker killed"
	parentKilled   kind = "parent killed"
	childStopped   kind = "working child stopped for longer than its lease"
	drained        kind = "worker drained and started again"
	cutOff         kind = "worker cut off from Redis, what it sent comes late"
	badNetwork     kind = "requests doubled and repeated, replies lost and cut"
	connectionsCut kind = "all connections cut"
	redisKilled    kind = "Redis killed and started again"
	redisAway      kind = "Redis away for a moment"
	redisAwayLong  kind = "Redis away for longer than the lease"
	reloaded       kind = "config changed"
	dataLost       kind = "Redis emptied, or started again empty"
	writesLost     kind = "Redis started again without its last writes, as after a failover"
	sharedOutage   kind = "outage of twice the lease, shared by the whole fleet"
	canaryDrained  kind = "canary with another config came, and was drained"
	canaryCrashed  kind = "canary with another config came, and was told to end when its child had crashed"
	canaryLost     kind = "canary with another config came, and its host was lost"
	specialistAway kind = "the only worker with a handler drained or killed"
	backlogDue     kind = "backlog due at one instant"
)

// kinds are what a plan draws from. The kinds by which takeovers are measured come more often.
var kinds = []kind{
	childKilled, childKilled, childKilled, treeKilled, treeKilled, parentKilled, childStopped, drained, cutOff, badNetwork, connectionsCut, redisKilled, redisAway, redisAwayLong,
	reloaded, dataLost, writesLost, sharedOutage, canaryDrained, canaryCrashed, canaryLost, specialistAway,
}

// losesData reports whether Redis lacks something after a fault that it had before.
func (k kind) losesData() bool { return k == dataLost || k == writesLost }

// hitsRedis reports whether a fault makes Redis unreachable for all workers. Each other fault hits
// one worker, except a change of the config.
func (k kind) hitsRedis() bool {
	return k == redisKilled || k == redisAway || k == redisAwayLong || k == connectionsCut || k == sharedOutage || k.losesData()
}

// isCanary reports whether a fault is the visit of a worker with another config.
func (k kind) isCanary() bool { return k == canaryDrained || k == canaryCrashed || k == canaryLost }

// alone reports whether no other fault happens around a fault. A loss of data breaks more than is
// promised while workers are down. After a shared outage, the fleet is at full concurrency only if
// all workers are up and no run is suspected of a crash.
func (k kind) alone() bool { return k.losesData() || k == sharedOutage }

// fault is one thing that goes wrong.
type fault struct {
	at    time.Duration // after the begin
	lasts time.Duration
	kind  kind
	slot  int // the worker it hits; of other faults, which of their variants happens
}

func (f fault) String() string {
	return fmt.Sprintf("%8.1fs %6.1fs  worker %d  %s", f.at.Seconds(), f.lasts.Seconds(), f.slot, f.kind)
}

// plan draws faults: one every second or so, but only one at a time at one worker, at Redis or at
// the canary, and one backlog. The last worker is the specialist.
func plan(seed uint64, total, lease time.Duration, slots int) []fault {
	random := rand.New(rand.NewPCG(seed, 1))
	between := func(least, most time.Duration) time.Duration {
		return least + time.Duration(random.Int64N(int64(1+most-least)))
	}
	var (
		faults []fault
		deck   []kind
		// since when each worker is healthy, then Redis, and last the place of the canary
		healthy = make([]time.Duration, slots+2)
	)
	for at := 2 * time.Second; at < total-lease; at += between(300*time.Millisecond, 1500*time.Millisecond) {
		if len(deck) == 0 {
			deck = slices.Clone(kinds)
			// These take too long for a short time. TestWorkersReassertWhatRedisLost and
			// TestFaultOutageSharedByTheFleet have those that need quiet around them. The older
			// definition decides only 45 s after the host of a canary was lost.
			if total < time.Minute {
				deck = slices.DeleteFunc(deck, func(k kind) bool { return k.alone() || k == canaryLost })
			}
			random.Shuffle(len(deck), func(i, k int) { deck[i], deck[k] = deck[k], deck[i] })
		}
		// Nothing is promised for events of the second before Redis lost its data that died with
		// a worker or that no other worker knew, nor for what only a worker knows that comes back
		// after the others have continued. So all workers are healthy around that time.
		if deck[0].alone() {
			at = max(at, slices.Max(healthy)+time.Second)
		}
		for i, kind := range deck {
			f := fault{at: at, kind: kind, slot: random.IntN(slots)}
			place, rest := f.slot, time.Second
			switch kind {
			case treeKilled, parentKilled:
				f.lasts = between(0, lease)
			case childStopped:
				f.lasts = between(lease*5/4, lease*5/2)
			case drained:
				f.lasts = 2 * time.Second
			case cutOff:
				f.lasts = between(lease/4, lease*2)
			case badNetwork:
				f.lasts = between(time.Second, 3*time.Second)
			case redisKilled:
				f.lasts = between(0, lease/2)
			case redisAway:
				f.lasts = between(lease/20, lease/5)
			case redisAwayLong:
				f.lasts = between(lease, lease*2)
			case writesLost: // those of so long
				f.lasts = between(lease/20, lease*3/2)
			case sharedOutage:
				f.lasts = 2 * lease
			case canaryDrained, canaryCrashed, canaryLost:
				place, rest = slots+1, 3*time.Second
				f.lasts = between(3*time.Second, 8*time.Second)
			case specialistAway:
				f.slot, place = slots-1, slots-1
				if f.lasts = between(lease, 2*lease); total >= time.Minute {
					f.lasts += between(6*lease, 9*lease) // runs of it are then due for over 10 s
				}
			}
			if kind.alone() {
				if slices.Max(healthy)+time.Second > at {
					continue
				}
				for i := range healthy {
					healthy[i] = at + f.lasts + 4*lease // with the grace period
				}
			}
			if kind.hitsRedis() {
				place, rest = slots, 3*lease // other faults need time to come alone in between
			}
			if kind != reloaded && !kind.alone() {
				if healthy[place] > at {
					continue
				}
				healthy[place] = at + f.lasts + rest
			}
			faults = append(faults, f)
			deck = slices.Delete(deck, i, i+1)
			break
		}
	}
	random = rand.New(rand.NewPCG(seed, 4)) // of its own, so that the others do not depend on it
	faults = append(faults, fault{at: between(total/8, total/3), kind: backlogDue})
	random = rand.New(rand.NewPCG(seed, 5))
	faults = append(faults, hookFaults(total, random, between)...)
	slices.SortStableFunc(faults, func(a, b fault) int { return int(a.at - b.at) })
	return faults
}

func TestPlanIsDrawnFromItsSeed(t *testing.T) {
	t.Parallel()
	draw := func(seed uint64) []fault { return plan(seed, 10*time.Minute, 2*time.Second, fleetSize+1) }
	one := draw(1)
	if !slices.Equal(one, draw(1)) {
		t.Error("one seed gives two plans")
	}
	if slices.Equal(one, draw(2)) {
		t.Error("two seeds give one plan")
	}
	count := make(map[kind]int)
	for _, f := range one {
		count[f.kind]++
	}
	for _, kind := range kinds {
		if count[kind] < 6 {
			t.Errorf("%d times %q in ten minutes, want more", count[kind], kind)
		}
	}
	for _, kind := range hookKinds {
		if count[kind] < 3 {
			t.Errorf("%d times %q in ten minutes, want more", count[kind], kind)
		}
	}
	if count[backlogDue] != 1 {
		t.Errorf("%d times %q, want once", count[backlogDue], backlogDue)
	}
	var short []kind
	for _, f := range plan(soakSeed, soakDefault, 2*time.Second, fleetSize+1) {
		short = append(short, f.kind)
	}
	for _, kind := range append([]kind{backlogDue, specialistAway}, hookKinds...) {
		if !slices.Contains(short, kind) {
			t.Errorf("the tests have %v, want %q, too", short, kind)
		}
	}
	if !slices.ContainsFunc(short, kind.isCanary) {
		t.Errorf("the tests have %v, want a canary, too", short)
	}
}

// slot is the place of one worker in a soak.
type slot struct {
	proxy   *redistest.Proxy // its way to Redis
	program string
	env     []string
	worker  *process
	away    bool // its worker was ended, and is started when the fault is over
	told    int  // generations of the config that it has heard of
}

// kill is the end of a worker from which runs may be taken over.
type kill struct {
	kind   kind
	at     time.Time
	worker *process
}

// trouble is a time in which takeovers are nobody's fault.
type trouble struct{ from, to time.Time }

type soak struct {
	*fleet
	lease      time.Duration
	grace      time.Duration // after a loss of data, or where there may have been one
	slots      []*slot
	generation int       // of the config
	written    time.Time // that generation
	count      map[kind]int
	kills      []kill
	trouble    []trouble
	turns      []turn // of the job whose trigger changes
	losses     []loss
	moment     redistest.Moment // to which Redis is about to go back; nil: to none
	from       loss             // what will be lost then
	started    []*process       // all workers, in the order in which they were started
	gaveUp     int              // parents that ended because their children crashed too often

	conn     *connection
	canary   *process // nil: there is none
	visits   []turn   // the trigger that each canary brought, and the one valid again when it left
	brought  turn     // by the canary that is there
	canaries int
	left     time.Time // when the last one did

	outages   []outage
	returns   []time.Time  // of the specialist
	away      atomic.Int64 // since when the specialist is, in Unix nanoseconds; 0: it is up
	looked    time.Time    // at the append-only file
	history   *history     // nil until it was read
	backlog   backlog
	fed       bool // there is always more to do than the fleet has slots, see feed
	notes     notes
	watch     watch
	resources resources
}

// specialist is the name of the last worker of a soak, which alone has the handler of the job rare.
const specialist = "special"

// changing are the triggers that a job is given in turn.
var changing = []string{"every: 2s", `schedule: "*/3 * * * * *"`, "every: 5s", `schedule: "*/7 * * * * *"`}

// A canary brings one of these triggers for the job canaried, which otherwise has the first one.
var canaryTriggers = []string{"every: 2s", "every: 3s", `schedule: "*/5 * * * * *"`, "every: 1s"}

// soakJobs are of all kinds. In every other generation of the config one of them is missing.
func (s *soak) soakJobs() []spec {
	skips := []string{"skipped"}
	jobs := []spec{
		{name: "beat", trigger: "every: 1s", work: "sleep 0.1", more: "overlap: skip", ends: skips},
		{name: "slow", trigger: "every: 2s", work: "sleep 2.3", more: "overlap: skip", ends: skips},
		{name: "queue", trigger: `schedule: "*/2 * * * * *"`, work: "sleep 0.2", more: "overlap: queue"},
		{name: "allow", trigger: "every: 3s", work: "sleep 1", more: "overlap: allow"},
		{name: "replaced", trigger: "every: 4s", work: "sleep 4.2", more: "overlap: replace", ends: []string{"canceled"}},
		{name: "desk-one", trigger: "every: 3s", work: "sleep 0.3", more: "overlap: queue, lock: {exclusive: [desk]}"},
		{name: "desk-two", trigger: `schedule: "*/5 * * * * *"`, work: "sleep 0.3", more: "overlap: queue, lock: {exclusive: [desk]}"},
		{
			name: "desk-reader", trigger: "every: 3s", work: "sleep 0.3", more: "overlap: allow, lock: {shared: [desk]}",
			modes: map[string]int{"desk": readers},
		},
		{name: "pair", trigger: "every: 2s", work: "sleep 2.5", more: "overlap: queue, concurrency: 2", modes: map[string]int{"job:pair": 2}},
		{name: "gate-one", trigger: "every: 3s", work: "sleep 1", more: "overlap: allow, lock: {permits: {gate: 1}}", modes: map[string]int{"gate": 2}},
		{name: "gate-two", trigger: "every: 4s", work: "sleep 1", more: "overlap: allow, lock: {permits: {gate: 1}}", modes: map[string]int{"gate": 2}},
		{name: "once", trigger: "every: 3s", work: "sleep 1.5", more: "overlap: queue, on_crash: abandon, notify: [hook]", abandon: true, ends: []string{"lost"}},
		{name: "fragile", trigger: "every: 3s", work: "sleep 1.5", more: "overlap: queue, max_crashes: 2, notify: [hook]", crashes: 2, ends: []string{"failed"}},
		{
			name: "flaky", trigger: "every: 5s", work: "[ $LOCKSTEP_ATTEMPT -ge 3 ] || exit 1",
			more: "overlap: queue, retry: {max: 2, backoff: fixed, initial: 200ms}", retries: 2,
		},
		{
			name: "broken", trigger: "every: 6s", work: "exit 1", retries: 1, ends: []string{"failed", "skipped"},
			more: "overlap: queue, retry: {max: 1, backoff: fixed, initial: 200ms}, notify: [hook]",
		},
		{name: "alarm", trigger: "every: 1s", work: "exit 1", more: "overlap: queue, notify: [hook]", ends: []string{"failed", "skipped"}},
		{name: "settle", work: "sleep 0.2", more: `lock: {exclusive: ["bill:{bills[*]}"], shared: [rates]}, args: {bills: []}`, modes: map[string]int{"rates": readers}},
		{name: "changing", trigger: changing[0], work: "sleep 0.1", more: fmt.Sprintf("overlap: queue, description: generation %d", s.generation), turns: s.turns},
		{name: "canaried", trigger: canaryTriggers[0], work: "sleep 0.1", more: "overlap: queue", turns: s.visits},
		{name: "long", work: "sleep 20"},
		{name: "rare", handler: "rare", more: "lock: {exclusive: [till]}", only: specialist},
		{name: "bulk", handler: "bulk", queue: "bulk", apart: true},
	}
	if s.fed {
		jobs = append(jobs, spec{name: "fed", work: "sleep 4"})
	}
	if s.generation%2 == 0 {
		jobs = append(jobs, spec{name: "coming", trigger: "every: 2s", work: "sleep 0.1", more: "overlap: queue"})
	}
	return jobs
}

// skewed builds the tool with another clock, once.
var skewed = sync.OnceValues(func() (string, error) {
	path := filepath.Join(filepath.Dir(toolPath), "skewed")
	args := []string{"build", "-ldflags=-checklinkname=0", "-o", path, "./testdata/skewed"}
	if raceEnabled {
		args = slices.Insert(args, 1, "-race")
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the tool with another clock: %w\n%s", err, out)
	}
	return path, nil
})

// clocked returns the tool with a clock that is wrong by so much, and what its environment needs
// for that.
func clocked(t *testing.T, offset time.Duration) (program string, env []string) {
	t.Helper()
	if offset == 0 || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return toolPath, nil
	}
	program, err := skewed()
	if err != nil {
		t.Fatal(err)
	}
	return program, []string{fmt.Sprintf("LOCKSTEP_TEST_CLOCK=%d", offset/time.Second)}
}

func newSoak(t *testing.T, seed uint64) *soak {
	t.Helper()
	// On a busy machine it takes longer than so short a lease until all have said what they know.
	s := &soak{lease: 2 * time.Second, grace: 6 * time.Second, count: make(map[kind]int), fed: os.Getenv("LOCKSTEP_SOAK_FED") != ""}
	// An append-only file that Redis has rewritten has no past to go back to.
	s.fleet = newFleet(t, []string{"appendonly yes", "auto-aof-rewrite-percentage 0"}, s.soakJobs(), shortLease, "LOCKSTEP_LOCKS__GRACE="+s.grace.String(), "LOCKSTEP_WORKER__DRAIN_TIMEOUT=1500ms")
	s.notes = newNotes(t)
	s.settings = s.notes.config()
	s.configure(s.soakJobs())
	s.conn = s.connection()
	t.Cleanup(s.keep)
	random := rand.New(rand.NewPCG(seed, 2))
	for i := range fleetSize + 1 {
		// Whatever the seed, there are clocks that are ahead and clocks that are behind. Workers
		// whose clocks are right have the handler of the backlog, the others have no handler at
		// all.
		offset := []time.Duration{0, 10 * time.Minute, -10 * time.Minute}[(i+random.IntN(2)*3)%3]
		name, one := fmt.Sprintf("w%d", i), &slot{proxy: s.server.Proxy(t)}
		var env []string
		switch {
		case i == fleetSize:
			name, one.program, env = specialist, os.Args[0], []string{withHandlers + "=" + specialist}
		case offset == 0:
			one.program, env = os.Args[0], []string{withHandlers + "=fleet"}
		default:
			one.program, env = clocked(t, offset)
		}
		one.env = append(slices.Clone(s.env), append(env, "REDIS_URL="+one.proxy.URL(), "LOCKSTEP_WORKER__NAME="+name)...)
		s.slots = append(s.slots, one)
		s.launch(one)
	}
	return s
}

func (s *soak) launch(one *slot) {
	one.worker = launchProgram(s.t, one.program, one.env, "start")
	one.told, one.away = s.generation, false
	s.started = append(s.started, one.worker)
	if one == s.special() {
		s.returns = append(s.returns, time.Now())
		s.away.Store(0)
	}
}

// special is the place of the specialist.
func (s *soak) special() *slot { return s.slots[len(s.slots)-1] }

// shorten has Redis rewrite its append-only file when it has become long: a restart that reads
// hundreds of megabytes would be an outage of its own. Redis may not do so by itself, since a file
// that was rewritten has no past to go back to.
func (s *soak) shorten() {
	const every, most = 10 * time.Second, 64 << 20
	if time.Since(s.looked) < every || s.moment != nil {
		return
	}
	s.looked = time.Now()
	size, rewriting, err := s.appendOnly()
	if err == nil && size > most && !rewriting {
		ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
		defer cancel()
		_ = s.conn.rdb.BgRewriteAOF(ctx).Err() // an error: Redis is unreachable
	}
}

// appendOnly returns the size of Redis' append-only file, and whether it is being rewritten.
func (s *soak) appendOnly() (size int64, rewriting bool, err error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Second)
	defer cancel()
	text, err := s.conn.rdb.Info(ctx, "persistence").Result()
	for line := range strings.Lines(text) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "aof_current_size":
			size, err = strconv.ParseInt(value, 10, 64)
		case "aof_rewrite_in_progress", "aof_rewrite_scheduled":
			rewriting = rewriting || value != "0"
		}
	}
	return size, rewriting, err
}

// tend restarts workers after their parents have exited, and reloads those that have not heard of
// a change of the config.
func (s *soak) tend() {
	s.t.Helper()
	s.resources.measure(s.slots)
	s.shorten()
	// A job that no worker carried for 45 s while other workers were up begins anew.
	// TestARemovedJobBeginsAnewWhenItReturns has that; here each tick of the job that comes and
	// goes is accounted for. The end of a canary may delay this by 30 s while Redis is stopped.
	if s.generation%2 == 1 && time.Since(s.written) > 10*time.Second && s.settledTriggers() {
		s.reload()
	}
	for i, one := range s.slots {
		if one.away {
			continue
		}
		if one.worker.hasEnded() {
			code := one.worker.code(time.Second)
			if said := one.worker.stderr.String(); code != exitRedis && !(code == exitFailed && strings.Contains(said, "crashed 5 times within 1m")) {
				s.t.Errorf("worker %d has ended with %d: %s", i, code, tail(said))
			}
			s.gaveUp++
			s.launch(one)
		}
		// Before its first child was ready it may not have a way yet to hear of it.
		if one.told < s.generation && strings.Contains(one.worker.stderr.String(), "worker is ready") {
			one.worker.signal(syscall.SIGHUP)
			one.told = s.generation
		}
	}
}

// reload writes the next generation of the config; tend tells of it.
func (s *soak) reload() {
	s.generation++
	s.written = time.Now()
	s.turns = append(s.turns, turn{trigger: changing[s.generation%len(changing)], after: time.Now()})
	s.configure(s.soakJobs())
}

// settledTriggers reports whether triggers may change. A trigger that changes while Redis has lost
// the old one decides from the cursor's position, so the ticks in between belong to neither.
func (s *soak) settledTriggers() bool {
	n := len(s.losses)
	return s.moment == nil && (n == 0 || time.Since(s.losses[n-1].at) > s.grace+3*time.Second)
}

// sendCanary starts a worker whose config has another trigger for one job and another description
// for a second one.
func (s *soak) sendCanary() {
	s.canaries++
	brought := turn{trigger: canaryTriggers[1+s.canaries%(len(canaryTriggers)-1)], after: time.Now()}
	jobs := s.soakJobs()
	for i, job := range jobs {
		switch job.name {
		case "canaried":
			jobs[i].trigger, jobs[i].turns = brought.trigger, nil
		case "beat":
			jobs[i].more += fmt.Sprintf(", description: canary %d", s.canaries)
		}
	}
	config := writeFile(s.t, "canary.yaml", s.text(jobs))
	s.canary = launchProgram(s.t, toolPath, append(slices.Clone(s.env), "LOCKSTEP_CONFIG="+config, "LOCKSTEP_WORKER__NAME=canary"), "start")
	s.started = append(s.started, s.canary)
	s.brought = brought
}

// endCanary has the canary leave. From then on the older definitions may be the active ones again.
func (s *soak) endCanary(how kind) {
	s.t.Helper()
	leaving := time.Now()
	switch how {
	case canaryLost:
		s.canary.killAll()
	case canaryCrashed:
		if child := s.canary.worker(); child != 0 {
			_ = syscall.Kill(child, syscall.SIGKILL) // an error: it has ended just now
		}
		fallthrough
	default:
		_ = s.canary.Process.Signal(syscall.SIGTERM)
	}
	code := s.canary.code(time.Minute)
	if how != canaryLost && code != 0 && code != exitRedis && !(how == canaryCrashed && code == exitFailed) {
		s.t.Errorf("the canary exits with %d: %s", code, tail(s.canary.stderr.String()))
	}
	s.canary, s.left = nil, time.Now()
	// Only now: a config that the others are given meanwhile has the trigger of the last turn.
	s.visits = append(s.visits, s.brought, turn{trigger: canaryTriggers[0], after: leaving, returns: true})
	job := s.jobs["canaried"]
	job.turns = s.visits
	s.jobs["canaried"] = job
}

// checkCanaries reports how late the ticks of the job were decided whose trigger canaries change.
// When the host of a canary is lost, the older definition decides again after 45 s. A line that was
// written after a loss about ticks from before it does not tell when they were decided.
func (s *soak) checkCanaries(h *history) {
	s.t.Helper()
	var late []time.Duration
	for _, tick := range h.ticks["canaried"] {
		again := func(l loss) bool { return tick.Tick.Before(l.at) && tick.Decided.After(l.at) }
		if !slices.ContainsFunc(h.losses, again) {
			late = append(late, tick.Decided.Sub(tick.Tick))
		}
	}
	_, _, text := quantiles(late)
	s.t.Logf("%d canaries came; the ticks of the job that they change were decided after: %s", s.canaries, text)
}

// begin makes a fault happen. It returns false if there was nothing that it could happen to.
func (s *soak) begin(f fault) bool {
	s.t.Helper()
	one := s.slots[f.slot]
	child := one.worker.worker()
	switch f.kind {
	case childKilled, childStopped:
		if child == 0 {
			return false // its parent is about to start the next one
		}
		if f.kind == childStopped {
			_ = syscall.Kill(child, syscall.SIGSTOP) // errors here and below: it has ended just now
			break
		}
		s.kills = append(s.kills, kill{f.kind, time.Now(), one.worker})
		_ = syscall.Kill(child, syscall.SIGKILL)
	case treeKilled:
		s.kills = append(s.kills, kill{f.kind, time.Now(), one.worker})
		one.worker.killAll()
		one.away = true
	case parentKilled:
		_ = one.worker.Process.Kill()
		one.away = true
	case drained:
		if !strings.Contains(one.worker.stderr.String(), "worker is ready") {
			return false
		}
		_ = one.worker.Process.Signal(syscall.SIGTERM)
		one.away = true
	case cutOff:
		one.proxy.Set(redistest.Faults{HoldRequests: true, HoldReplies: true})
	case badNetwork:
		one.proxy.Set(redistest.Faults{
			Commands: []string{"evalsha", "eval"}, Resend: 0.1, Repeat: 0.1, RepeatDelay: 300 * time.Millisecond, LoseReplies: 0.03, CutReplies: 0.03,
		})
	case connectionsCut:
		for _, one := range s.slots {
			one.proxy.Cut()
		}
	case redisKilled:
		s.server.Kill()
	case redisAway, redisAwayLong:
		if err := s.server.Pause(); err != nil {
			s.t.Error(err)
		}
	case sharedOutage:
		s.beginOutage(f)
	case canaryDrained, canaryCrashed, canaryLost:
		if s.canary != nil || !s.settledTriggers() {
			return false
		}
		s.sendCanary()
	case specialistAway:
		if f.lasts/time.Millisecond%2 == 0 {
			one.worker.killAll()
		} else if strings.Contains(one.worker.stderr.String(), "worker is ready") {
			_ = one.worker.Process.Signal(syscall.SIGTERM)
		} else {
			return false
		}
		one.away = true
	case backlogDue:
		s.backlog.start(s)
	case hookFailed, hookHung, hookClosed:
		s.notes.begin(f.kind)
	case reloaded:
		if !s.settledTriggers() {
			return false
		}
		s.reload()
	case dataLost:
		if !s.well() {
			return false
		}
		s.lose(loss{}, func() error {
			if f.slot%2 == 0 {
				return s.connection().rdb.FlushAll(s.t.Context()).Err()
			}
			return s.server.RestartEmpty(s.t.Context())
		})
	case writesLost:
		if !s.well() {
			return false
		}
		if _, rewriting, err := s.appendOnly(); err != nil || rewriting {
			return false
		}
		s.from = loss{from: len(s.readEffects()), since: time.Now()}
		var err error
		if s.moment, err = s.server.Moment(); err != nil {
			s.t.Fatal(err)
		}
	}
	if one == s.special() && one.away {
		s.away.Store(time.Now().UnixNano())
	}
	return true
}

// well reports whether all workers are up and carry all jobs. If no worker carries a job, none may
// know how far its ticks were decided after Redis has lost that.
func (s *soak) well() bool {
	s.t.Helper()
	if s.generation%2 != 0 || s.generation > 0 && time.Since(s.written) < 5*time.Second {
		return false
	}
	// The runs of the backlog that no worker has begun would be lost, and no worker may know how
	// far a canary decided.
	if s.backlog.busy.Load() || s.canary != nil || time.Since(s.left) < 5*time.Second {
		return false
	}
	known := s.up()
	for _, one := range s.slots {
		if !slices.ContainsFunc(known, func(w workerJSON) bool { return w.PID == one.worker.worker() }) {
			return false // it has just been started
		}
	}
	return true
}

// lose has Redis lose data, and keeps what was known right before.
func (s *soak) lose(lost loss, how func() error) {
	s.t.Helper()
	h := s.read(time.Time{}, time.Time{})
	lost.runs, lost.ticks, lost.waiting = h.runs, h.ticks, s.waiting()
	if err := how(); err != nil {
		s.t.Fatal(err)
	}
	lost.line, lost.at = len(s.readEffects()), time.Now()
	s.losses = append(s.losses, lost)
}

// end undoes a fault.
func (s *soak) end(f fault) {
	s.t.Helper()
	one := s.slots[f.slot]
	switch f.kind {
	case childStopped:
		if child := one.worker.worker(); child != 0 {
			_ = syscall.Kill(child, syscall.SIGCONT)
		}
	case sharedOutage:
		s.endOutage(f)
	case canaryDrained, canaryCrashed, canaryLost:
		s.endCanary(f.kind)
	case treeKilled, parentKilled:
		s.launch(one)
	case specialistAway:
		one.worker.code(time.Minute)
		s.launch(one)
	case drained:
		code := one.worker.code(time.Minute)
		// A child that could not begin, for want of Redis, has nothing to end either.
		if said := one.worker.stderr.String(); code != 0 && code != exitRedis {
			s.t.Errorf("worker %d exits with %d when it is drained: %s", f.slot, code, tail(said))
		}
		s.launch(one)
	case cutOff, badNetwork:
		one.proxy.Set(redistest.Faults{})
	case hookFailed, hookHung, hookClosed:
		s.notes.over()
	case redisKilled:
		if err := s.server.Restart(s.t.Context()); err != nil {
			s.t.Fatal(err)
		}
	case redisAway, redisAwayLong:
		if err := s.server.Resume(); err != nil {
			s.t.Error(err)
		}
	case writesLost:
		s.lose(s.from, func() error { return s.server.RestartFrom(s.t.Context(), s.moment) })
		s.moment = nil
	}
}

// inject has all faults happen, and undoes them. The plan's clock stops while a step is carried
// out, so that steps keep their distances. Faults that would then begin after the end are left out.
func (s *soak) inject(faults []fault, total time.Duration) {
	s.t.Helper()
	type step struct {
		at time.Duration
		do func()
	}
	var steps []step
	over, pending := time.Now().Add(total), 0 // pending: faults that have begun
	for _, f := range faults {
		var from time.Time // zero: it did not happen
		steps = append(steps, step{at: f.at, do: func() {
			if now := time.Now(); now.Before(over) && s.begin(f) {
				s.count[f.kind]++
				from = now
				pending++
			}
		}}, step{at: f.at + f.lasts, do: func() {
			if from.IsZero() {
				return
			}
			s.end(f)
			pending--
			if f.kind.hitsRedis() {
				s.trouble = append(s.trouble, trouble{from, time.Now().Add(s.grace)})
			}
		}})
	}
	slices.SortStableFunc(steps, func(a, b step) int { return int(a.at - b.at) })
	steps = append(steps, step{at: max(total, steps[len(steps)-1].at), do: func() {}})
	clock := time.Now()
	for _, step := range steps {
		for left := step.at - time.Since(clock); left > 0; left = step.at - time.Since(clock) {
			if pending == 0 && time.Now().After(over) {
				return
			}
			s.tend()
			pause(s.t.Context(), min(left, 100*time.Millisecond))
		}
		began := time.Now()
		step.do()
		clock = clock.Add(time.Since(began))
	}
}

// eventually waits until something holds, or else describes the scene.
func (s *soak) eventually(within time.Duration, what string, holds func() bool) {
	s.t.Helper()
	for from := time.Now(); !holds(); pause(s.t.Context(), 50*time.Millisecond) {
		if time.Since(from) > within {
			s.t.Fatalf("not within %s: %s\n%s", within, what, s.scene(s.t.Context()))
		}
	}
}

// heal waits, when nothing goes wrong any more, until the ledger has caught up with now.
func (s *soak) heal() {
	s.t.Helper()
	if s.generation%2 == 1 {
		s.reload() // the job that comes and goes is there at the end
	}
	s.quiet()
	conn := s.connection()
	s.eventually(2*time.Minute, "the definition that a canary brought has given way", func() bool {
		s.tend()
		record, err := conn.ledger.Job(s.t.Context(), "canaried")
		return err == nil && "every: "+record.Job.Every.String() == canaryTriggers[0]
	})
	s.backlog.await(s)
	s.eventually(time.Minute, "the runs that need the specialist have ended", func() bool {
		s.tend()
		left, err := conn.ledger.Outstanding(s.t.Context(), "rare", 1)
		return err == nil && len(left) == 0
	})
	healed := time.Now()
	s.eventually(2*time.Minute, "every tick is decided, by the last triggers", func() bool {
		s.tend()
		list, err := conn.reader.Jobs(s.t.Context(), admin.Filter{}, "")
		return err == nil && !slices.ContainsFunc(list, func(job admin.Job) bool {
			_, ours := s.jobs[job.Name]
			return ours && s.jobs[job.Name].trigger != "" && job.Cursor.Before(healed.Add(7*time.Second))
		})
	})
	s.workers = nil
	for _, one := range s.slots {
		s.workers = append(s.workers, one.worker)
	}
}

// takeover is how long after a kill the attempt was closed that it broke off, and the next one
// began.
type takeover struct{ closed, next time.Duration }

// takeovers measures what the kills have led to, but for those that something else has delayed,
// too.
func (s *soak) takeovers(runs []runJSON) (measured map[kind][]takeover, delayed []time.Duration) {
	session := regexp.MustCompile(`"worker":"([^"]+)"`)
	measured = make(map[kind][]takeover)
	for _, kill := range s.kills {
		sessions := make(map[string]bool)
		for _, found := range session.FindAllStringSubmatch(kill.worker.stderr.String(), -1) {
			sessions[found[1]] = true
		}
		for _, run := range runs {
			for i, a := range run.Attempts {
				if !sessions[a.Worker] || !broke(a.outcome()) || a.Started.After(kill.at) || a.Finished.Before(kill.at) {
					continue
				}
				if slices.ContainsFunc(s.trouble, func(one trouble) bool { return one.from.Before(a.Finished) && one.to.After(kill.at) }) {
					delayed = append(delayed, a.Finished.Sub(kill.at))
					continue
				}
				one := takeover{closed: a.Finished.Sub(kill.at)}
				if i+1 < len(run.Attempts) {
					one.next = run.Attempts[i+1].Started.Sub(kill.at)
				}
				measured[kill.kind] = append(measured[kill.kind], one)
				if one.next > 5*time.Second {
					s.t.Logf("%s, %s: attempt %d of %s was closed at %s, the next one began at %s", kill.kind, kill.at.UTC().Format(time.StampMilli),
						a.Attempt, run.ID, a.Finished.Format(time.StampMilli), run.Attempts[i+1].Started.Format(time.StampMilli))
				}
			}
		}
	}
	return measured, delayed
}

// quantiles says how some durations are spread.
func quantiles(list []time.Duration) (p50, p99 time.Duration, text string) {
	list = slices.DeleteFunc(slices.Clone(list), func(d time.Duration) bool { return d == 0 })
	if len(list) == 0 {
		return 0, 0, "none"
	}
	slices.Sort(list)
	p50, p99 = list[len(list)/2], list[len(list)*99/100]
	round := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	return p50, p99, fmt.Sprintf("p50 %s, p99 %s, most %s", round(p50), round(p99), round(list[len(list)-1]))
}

// checkTakeovers reports how long takeovers took, and proves what holds on a machine with much else
// to do, too.
func (s *soak) checkTakeovers(runs []runJSON) {
	s.t.Helper()
	measured, delayed := s.takeovers(runs)
	for _, kind := range []kind{childKilled, treeKilled} {
		var closed, next []time.Duration
		for _, one := range measured[kind] {
			closed, next = append(closed, one.closed), append(next, one.next)
		}
		p50, p99, text := quantiles(closed)
		_, _, nextText := quantiles(next)
		s.t.Logf("%s: %d attempts broken off, closed after: %s; the next one began after: %s", kind, len(closed), text, nextText)
		least := s.lease
		if kind == treeKilled {
			least += time.Second
		}
		// The first row's bound is a second, but a machine that is busy shows only that it is not
		// the lease which decides.
		if len(closed) >= 10 && p50 > least || p99 > least+20*time.Second {
			s.t.Errorf("%s: takeover after %s; want %s at most, and far less than 20 s more in the worst case", kind, text, least)
		}
	}
	_, _, text := quantiles(delayed)
	s.t.Logf("while something else was wrong, too: %d attempts broken off, closed after: %s", len(delayed), text)
}

// keep leaves a failed soak's traces in a folder: logs, effects, what Redis stores at the end, and
// the ledger if it was read.
func (s *soak) keep() {
	if !s.t.Failed() && os.Getenv("LOCKSTEP_SOAK_KEEP") == "" {
		return
	}
	folder, err := os.MkdirTemp("", "lockstep-soak-")
	if err != nil {
		s.t.Error(err)
		return
	}
	if s.history != nil {
		ledger, err := json.MarshalIndent(map[string]any{"runs": s.history.runs, "ticks": s.history.ticks}, "", " ")
		if err != nil {
			s.t.Error(err)
		}
		write(s.t, filepath.Join(folder, "ledger.json"), string(ledger))
	}
	write(s.t, filepath.Join(folder, "scene"), s.scene(context.WithoutCancel(s.t.Context())))
	text, _ := os.ReadFile(s.effects) // it may have none
	for i, p := range s.started {
		write(s.t, filepath.Join(folder, fmt.Sprintf("worker-%03d", i)), p.stderr.String())
	}
	write(s.t, filepath.Join(folder, "effects"), string(text))
	write(s.t, filepath.Join(folder, "events"), strings.Join(s.notes.hook.ids(), "\n"))
	s.t.Logf("ledger, effects and what the workers said are kept in %s", folder)
}

// The faults of the tests: for how long, and a seed whose plan has most kinds, canaries and the
// specialist's absence among them.
const (
	soakDefault = 16 * time.Second
	soakSeed    = 57
)

// soakTime is how long the faults continue, and the seed that they are drawn from: for the tests
// always the same one.
func soakTime(t *testing.T) (total time.Duration, seed uint64) {
	t.Helper()
	var err error
	total, seed = soakDefault, soakSeed
	if asked := os.Getenv("LOCKSTEP_SOAK_FOR"); asked != "" {
		seed = rand.Uint64N(1_000_000)
		if total, err = time.ParseDuration(asked); err != nil || total < 10*time.Second {
			t.Fatalf("FOR=%s is not a duration of 10s or more", asked)
		}
	}
	if asked := os.Getenv("LOCKSTEP_SOAK_SEED"); asked != "" {
		if seed, err = strconv.ParseUint(asked, 10, 64); err != nil {
			t.Fatalf("SEED=%s is no number", asked)
		}
	}
	return total, seed
}

func TestPromiseHoldsUnderRandomFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("a fleet of workers takes its time")
	}
	t.Parallel()
	total, seed := soakTime(t)
	faults := plan(seed, total, 2*time.Second, fleetSize+1)
	var text strings.Builder
	for _, f := range faults {
		fmt.Fprintln(&text, f)
	}
	t.Logf("faults for %s, seed %d, at and for:\n%s", total, seed, text.String())
	_, _ = skewed() // a worker needs it, and it takes long to build
	from := time.Now()
	s := newSoak(t, seed)
	if s.backlog.size = backlogSize(total); s.fed {
		s.backlog.size /= 100 // it shares the slots with what is fed
	}
	asking, stop := context.WithCancel(t.Context())
	defer stop()
	watching, stopWatch := context.WithCancel(t.Context())
	defer stopWatch()
	var asked, fed []request
	var requests, watcher sync.WaitGroup
	requests.Go(func() { asked = s.ask(asking, seed) })
	requests.Go(func() { fed = s.feed(asking) })
	watcher.Go(func() { s.watch.run(watching, s) })
	s.inject(faults, total)
	stop()
	requests.Wait()
	s.heal()
	s.awaitNotes()
	stopWatch()
	watcher.Wait()
	to := time.Now()
	s.drain()
	s.finish()

	h := s.read(from, to)
	s.history = h
	h.slack, h.losses = 30*time.Second, s.losses
	for _, request := range slices.Concat(asked, fed, s.occupied()) {
		if !lostRequest(s.losses, request.at) {
			h.asked = append(h.asked, request.run)
		}
	}
	s.check(h)
	// Where Redis was emptied, only what was read before knows how attempts ended.
	all := new(checker).remembered(h).runs
	states, outcomes := make(map[string]int), make(map[string]int)
	attempts := 0
	for _, run := range all {
		states[run.State]++
		for _, a := range run.Attempts {
			attempts++
			outcomes[a.outcome()]++
		}
	}
	t.Logf("%d runs: %v; %d attempts: %v", len(all), states, attempts, outcomes)
	for _, kind := range slices.Sorted(maps.Keys(s.count)) {
		t.Logf("%4d times: %s", s.count[kind], kind)
	}
	t.Logf("%d parents exited", s.gaveUp)
	s.checkTakeovers(all)
	s.checkCanaries(h)
	s.checkReturns(all)
	s.checkOutages()
	s.backlog.check(s)
	s.checkNotes(h)
	s.watch.check(s)
	s.resources.check(t)
}
