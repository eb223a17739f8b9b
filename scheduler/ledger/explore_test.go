package ledger_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
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
	"lockstep/locks/redistest"
	"lockstep/scheduler/ledger"
)

// The exploration visits every state of small worlds, while the random histories visit a few
// states of large ones. It drives a model of the rules (model_test.go). Then it repeats some of
// its paths on the scripts, and compares what they store with the model after each move.
//
// A world has two or three workers, one or two ticks of one job, and a budget for each fault: a
// worker loses its lease and survives, a process dies, a host dies, a definition comes and leaves
// in order, a copy of a request arrives late, a delivery or a confirmation is lost, and so on.
// Within these bounds everything happens in every possible order. For example, a report of a lost
// lease arrives before the sweep, after it, after the next attempt has begun, twice, or never.
// States that differ only in the names of workers with the same definition, or in the numbers of
// deliveries, count as one.
//
// In every state of every world:
//
//   - Each tick is decided once, by the active definition.
//   - A worker that works at a run holds the lock, its session lives, and its attempt is the run's
//     last one. So no two workers work under one lock. No attempt runs under a live session
//     without a worker.
//   - Each attempt is closed once. A run that has ended does not change.
//   - A crash is counted only if the process died, so no lost lease fails a run by max_crashes. A
//     lost lease is confirmed only if the worker of that attempt has reported it.
//   - No run waits for a free lock, and only a due run has an offer. The first attempts at runs
//     begin in the order of their ticks, unless an offer lapses. No attempt begins under a session
//     that has ended.
//   - A sweep makes no push stale that its own process still has.
//   - After its last worker has left a definition in order, and another worker has registered,
//     that definition decides nothing. A definition does not give way while a worker carries it.
//   - No run is stuck: without further faults, some path leads to the end of every run.
//   - In the worlds with messages: a run that has failed has exactly one. It waits, or was recorded
//     as sent, and then its target has received it. A batch that a target receives again has the
//     same messages, and until the lease of a sender is over no other one gets its batch. Without
//     further faults, some path leads to the record of every message.
//
// Each flaw of these rules is planted in the model, where the exploration finds it, and in the
// scripts, which then reach the same state.
//
// Some moves are coarser than the steps of a running system. A worker fetches a delivery and
// claims its run in one move, unless it loses its session in between. It polls and registers in
// one move. The end of a session and the release of its hold are one move, and no worker hears of
// the run that this makes due. A worker that loses its session has the next one at once. Time does
// not pass: what ends at a time ends by a move. So the exploration shows that a definition that
// was left gives way by the next registration, and not how soon that is.
//
// The exploration lacks suspects, retries and their pauses, canceled and expired runs, overlaps
// other than queue, several slots, bundles of several locks, direct claims, runs set aside, paused
// queues, the bound on lost leases that no worker explains, revoked holds, changed triggers,
// workers of older builds, and a Redis that loses data. Random histories and directed tests have
// these.

func smallWorlds() []smallWorld {
	two, three := []uint8{0, 0}, []uint8{0, 0, 0}
	return []smallWorld{
		{
			name: "two lost leases", workers: two, ticks: 1,
			budget: budget{faultCut: 2},
		},
		{
			name: "a lost lease and a lost host", workers: two, ticks: 1,
			budget: budget{faultCut: 1, faultHost: 1},
		},
		{
			name: "late requests", workers: two, ticks: 1,
			budget: budget{faultCut: 1, faultCopy: 1, faultFail: 1, faultReturn: 1},
		},
		{
			name: "deliveries", workers: two, ticks: 1,
			budget: budget{faultDie: 1, faultLose: 1, faultDouble: 1, faultUnknown: 1},
		},
		{
			name: "two deaths", workers: two, ticks: 1,
			budget: budget{faultDie: 2, faultReturn: 1},
		},
		{
			name: "two ticks", workers: two, ticks: 2,
			budget: budget{faultDie: 1, faultLapse: 1},
		},
		{
			name: "three workers", workers: three, ticks: 1,
			budget: budget{faultCut: 1, faultDie: 1},
		},
		{
			name: "three workers and two ticks", workers: three, ticks: 2,
			budget: budget{faultCut: 1},
		},
		{
			name: "a definition that one of two workers leaves", workers: []uint8{0, 1, 1}, ticks: 1,
			budget: budget{faultCome: 2, faultLeave: 1, faultCut: 1},
		},
		{
			name: "a definition that its only worker leaves", workers: []uint8{0, 0, 1}, ticks: 2,
			budget: budget{faultCome: 1, faultLeave: 1},
		},
		{
			name: "a host with a definition dies", workers: []uint8{0, 1, 1}, ticks: 1,
			budget: budget{faultCome: 2, faultLeave: 1, faultHost: 1},
		},
	}
}

// key is the same for states that differ only in the names of workers, or in the numbers of
// deliveries.
func (s *modelState) key(orders [][modelWorkers]int) (best string) {
	for _, order := range orders {
		p := s.permuted(order)
		if text := p.encode(); best == "" || text < best {
			best = text
		}
	}
	return best
}

func (s *modelState) encode() string {
	b := make([]byte, 0, 128)
	flags := func(all ...bool) {
		var bits byte
		for _, is := range all {
			bits <<= 1
			if is {
				bits |= 1
			}
		}
		b = append(b, bits)
	}
	for _, x := range s.runs {
		b = append(b, x.state, x.token, x.session, x.crashes, x.ended, x.told, x.pusher, x.ticket, x.offer)
		b = append(b, x.log[:]...)
		flags(x.queued, x.confirmed, x.stale)
	}
	for _, x := range s.workers {
		b = append(b, x.state, x.definition, x.acts, x.token, x.cut, x.cutToken)
		flags(x.decides, x.lives[0], x.lives[1], x.died[0], x.died[1], x.carries[0], x.carries[1], x.sent)
	}
	c := s.copied
	b = append(b, c.kind, c.run, c.token, c.session, c.outcome, c.by, s.cursor, s.lock, s.owner, s.under, s.active, s.newest)
	flags(s.known[0], s.known[1], s.fresh[0], s.fresh[1], s.left[0], s.left[1], c.current)
	b = append(b, s.budget[:]...)
	for _, x := range s.workers {
		if s.mail.on {
			b = append(b, x.sends)
		}
	}
	return string(s.mail.encode(b))
}

// describe writes a path, one move a line.
func (w *smallWorld) describe(path []modelMove) string {
	var b strings.Builder
	for _, mv := range path {
		text := map[byte]string{
			'c': "worker %d decides tick %d", 'p': "worker %d pushes run %d", 'f': "worker %d fetches the delivery of run %d",
			'o': "worker %d fetches an old delivery of run %d", 'e': "worker %d ends run %d",
			'r': "worker %d reports that run %d has lost its lease", 's': "worker %d sweeps, and repeats the push of run %d",
			'k': "worker %d looks for the delivery of run %d", 'x': "worker %d closes an attempt at run %d",
			'l': "worker %d polls and registers", 'n': "worker %d starts", 'v': "worker %d drains", 'z': "worker %d has drained",
			'C': "worker %d is cut off", 'D': "worker %d dies", 'H': "the host of worker %d dies",
			'E': "a session of worker %d ends", 'G': "definition %[3]d has not been carried for long",
			't': "worker %d takes messages", 'm': "the target of worker %d receives them", 'w': "worker %d records them as sent",
			'W': "worker %d records them as sent, which stays on its way", 'q': "worker %d records that they were refused",
			'T': "messages may be sent", 'A': "the copy arrives", 'L': "the delivery of run %[2]d is lost", 'O': "the offer of run %[2]d lapses",
		}[mv.kind]
		text = strings.Split(fmt.Sprintf(text, mv.worker, mv.run, mv.how), "%!(EXTRA")[0]
		fmt.Fprintf(&b, "\n  %s", text)
		if strings.ContainsRune("eCD", rune(mv.kind)) && mv.how != 0 {
			fmt.Fprintf(&b, " (%d)", mv.how)
		}
		switch {
		case mv.copied && mv.kind == 'p':
			b.WriteString(", and the confirmation is lost")
		case mv.copied && strings.IndexByte("CH", mv.kind) >= 0:
			fmt.Fprintf(&b, " while its claim of run %d is on its way", mv.run)
		case mv.copied:
			b.WriteString(", and a copy stays on its way")
		}
	}
	return b.String()
}

// A ledgerExploration is what there is in a world.
type ledgerExploration struct {
	states, moves int
	worst         error         // what is wrong with the first state that breaks a rule
	path          []modelMove   // to that state
	paths         [][]modelMove // to some states
}

// explore visits all states of a world breadth first, so the path to the first one that breaks a
// rule is a shortest one. Then it goes back from the states in which everything has ended, over
// moves that are no faults. A state that it does not reach is stuck.
func (w *smallWorld) explore(some int) *ledgerExploration {
	e := &ledgerExploration{}
	type node struct {
		state modelState
		from  int
		move  modelMove
		back  []int32 // the states from which a move that is no fault leads here
	}
	start := w.start()
	nodes, orders := []node{{state: start, from: -1}}, w.orders()
	seen := map[string]int{start.key(orders): 0}
	path := func(at int) (moves []modelMove) {
		for ; nodes[at].from >= 0; at = nodes[at].from {
			moves = append(moves, nodes[at].move)
		}
		slices.Reverse(moves)
		return moves
	}
	var work []int
	for at := 0; at < len(nodes); at++ {
		state := nodes[at].state
		if w.goal(&state) {
			work = append(work, at)
		}
		for _, mv := range w.moves(&state) {
			next := state
			e.moves++
			if err := cmp.Or(w.do(&next, mv), next.check()); err != nil {
				e.states, e.worst, e.path = len(nodes), err, append(path(at), mv)
				return e
			}
			if next == state {
				continue
			}
			key := next.key(orders)
			to, known := seen[key]
			if !known {
				to = len(nodes)
				seen[key] = to
				nodes = append(nodes, node{state: next, from: at, move: mv})
			}
			if !mv.fault && to != at {
				nodes[to].back = append(nodes[to].back, int32(at))
			}
		}
	}
	ends := make([]bool, len(nodes))
	for _, at := range work {
		ends[at] = true
	}
	for len(work) > 0 {
		at := work[len(work)-1]
		work = work[:len(work)-1]
		for _, from := range nodes[at].back {
			if !ends[from] {
				ends[from] = true
				work = append(work, int(from))
			}
		}
	}
	e.states = len(nodes)
	if stuck := slices.Index(ends, false); stuck >= 0 {
		e.worst, e.path = errStuck, append(path(stuck), w.idle(nodes[stuck].state)...)
		return e
	}
	for i := range some {
		e.paths = append(e.paths, path((len(nodes)-1)*(i+1)/some))
	}
	return e
}

// idle returns the moves that do not change a state.
func (w *smallWorld) idle(s modelState) (idle []modelMove) {
	for _, mv := range w.moves(&s) {
		next := s
		if err := w.do(&next, mv); err == nil && next == s && !mv.fault {
			idle = append(idle, mv)
		}
	}
	return idle
}

var errStuck = errors.New("stuck: without further faults, some run never ends, or some message is never sent")

// A replay makes the moves of a path on the scripts. Their clock is frozen, so that nothing ends
// by itself. Sessions are entries of the timer wheel without a client.
type replay struct {
	*ledger.Ledger
	world     *smallWorld
	rdb       *redis.Client
	namespace string
	jobs      []*jobs.Job // by definition
	hashes    []string
	began     time.Time
	sessions  [modelWorkers][2]string
	named     int
	attempts  map[[2]int]workedAt         // by run and token of the model
	batches   [modelWorkers]*ledger.Batch // that each worker took last
	arrive    func(ctx context.Context) error
}

// workedAt is an attempt as the scripts know it.
type workedAt struct {
	token locks.Token
	hold  locks.HoldID
}

// noScript makes go-redis send the text of a script, which a sourceHook can change.
type noScript struct{}

func (noScript) Error() string { return "NOSCRIPT it is sent whole" }
func (noScript) RedisError()   {}

// sourceHook changes the text of each script.
type sourceHook struct{ change func(string) string }

func (h sourceHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h sourceHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.whole(cmd) {
			return next(ctx, cmd)
		}
		return cmd.Err()
	}
}

func (h sourceHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var whole []redis.Cmder
		for _, cmd := range cmds {
			if h.whole(cmd) {
				whole = append(whole, cmd)
			}
		}
		if len(whole) == 0 {
			return nil
		}
		return next(ctx, whole)
	}
}

// whole changes the text in an EVAL. It refuses an EVALSHA and returns false.
func (h sourceHook) whole(cmd redis.Cmder) bool {
	switch args := cmd.Args(); cmd.Name() {
	case "evalsha":
		cmd.SetErr(noScript{})
		return false
	case "eval":
		args[1] = h.change(args[1].(string))
	}
	return true
}

// newReplay begins a world in an empty namespace. plant changes the scripts.
func (w *smallWorld) newReplay(t *testing.T, server *redis.Client, plant func(string) string) (*replay, error) {
	t.Helper()
	options := *server.Options()
	rdb := redis.NewClient(&options)
	t.Cleanup(func() {
		if err := rdb.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	d := &replay{
		world: w, rdb: rdb, namespace: redistest.Namespace(t), attempts: make(map[[2]int]workedAt), jobs: versions("older", "newer"),
	}
	clock := "clock:" + d.namespace
	rdb.AddHook(sourceHook{func(source string) string {
		return plant(strings.ReplaceAll(source, "call('TIME')", "call('LRANGE', '"+clock+"', 0, 1)"))
	}})
	d.began = time.Now().Truncate(time.Second)
	if err := rdb.RPush(ctx, clock, d.began.Unix(), "000000").Err(); err != nil {
		return nil, err
	}
	space, err := locks.NewSpace(rdb, d.namespace)
	if err != nil {
		return nil, err
	}
	d.Ledger = ledger.New(rdb, space)
	for _, job := range d.jobs {
		job.Overlap, job.MaxCrashes = jobs.OverlapQueue, maxCrashes
		if w.mail {
			job.Notify = failuresTold
		}
		hash, err := ledger.Hash(job)
		if err != nil {
			return nil, err
		}
		d.hashes = append(d.hashes, hash)
	}
	for i, definition := range w.workers {
		if definition == 0 {
			err = errors.Join(err, d.begin(ctx, i), d.look(ctx, i))
		}
	}
	return d, errors.Join(err, rdb.HSet(ctx, d.key("cursor"), "j", d.at(0).UnixMilli()).Err())
}

func (d *replay) key(name string) string { return "{" + d.namespace + "}:" + name }

// at is the tick after so many others.
func (d *replay) at(tick int) time.Time { return d.began.Add(time.Duration(tick-10) * time.Second) }

func (d *replay) id(run int) jobs.RunID { return jobs.TickRunID("j", d.at(run+1)) }

func (d *replay) session(s uint8) locks.SessionID {
	return locks.SessionID(d.sessions[(s-1)/2][(s-1)%2])
}

// begin opens the next session of a worker.
func (d *replay) begin(ctx context.Context, i int) error {
	d.named++
	d.sessions[i] = [2]string{fmt.Sprintf("w%d.%d", i, d.named), d.sessions[i][0]}
	ends := redis.Z{Score: float64(d.began.Add(24 * time.Hour).UnixMilli()), Member: "s" + d.sessions[i][0]}
	return d.rdb.ZAdd(ctx, d.key("exp"), ends).Err()
}

// ends makes an entry of the timer wheel due, and sweeps. No worker hears of the reply.
func (d *replay) ends(ctx context.Context, member string, at float64) error {
	err := d.rdb.ZAddXX(ctx, d.key("exp"), redis.Z{Score: at, Member: member}).Err()
	if err != nil {
		return err
	}
	_, err = d.Sweep(ctx, ledger.SweepLimits{Most: 100, Unconfirmed: time.Hour})
	return err
}

func (d *replay) digest(definition int) string { return []string{"older", "newer"}[definition] }

func (d *replay) look(ctx context.Context, i int) error {
	definition := int(d.world.workers[i])
	_, err := d.Poll(ctx, d.session(present(i)), d.digest(definition), 0)
	if err == nil {
		_, err = d.Register(ctx, d.digest(definition), []*jobs.Job{d.jobs[definition]})
	}
	return err
}

// claim sends a claim under a hold of its own, and notes the attempt that it begins.
func (d *replay) claim(ctx context.Context, session locks.SessionID, hold locks.HoldID, run int, n uint8) error {
	claimed, err := d.ClaimAs(ctx, session, hold, ledger.Due{Run: d.id(run), N: int64(n), Queue: "default"})
	if err == nil && claimed.Outcome == ledger.ClaimGranted {
		last := claimed.Record.Last()
		d.attempts[[2]int{run, last.Number}] = workedAt{last.Token, hold}
	}
	return err
}

func (d *replay) finish(run int, token uint8, outcome int) func(context.Context) error {
	a := d.attempts[[2]int{run, int(token)}]
	names := map[int]ledger.Outcome{endSucceeded: ledger.OutcomeSuccess, endHandedBack: ledger.OutcomeHandBack, endFailed: ledger.OutcomeFailure}
	finish := ledger.Finish{Run: d.id(run), Job: d.jobs[0], Token: a.token, Hold: a.hold, Outcome: names[outcome]}
	return func(ctx context.Context) error {
		_, err := d.Finish(ctx, finish)
		return err
	}
}

func (d *replay) dead(run int, token uint8) ledger.Dead {
	return ledger.Dead{Run: d.id(run), Token: d.attempts[[2]int{run, int(token)}].token, Job: "j"}
}

// do makes a move that the model makes in a state.
func (d *replay) do(ctx context.Context, s *modelState, mv modelMove) error {
	i, r := mv.worker, mv.run
	x, run := s.workers[i], s.runs[r]
	now := d.session(present(i))
	due := ledger.Due{Run: d.id(r), N: int64(run.n), Queue: "default"}
	var request func(context.Context) error // a copy of it may stay on its way
	switch mv.kind {
	case 'c':
		decision := ledger.Decision{
			Job: d.jobs[x.definition], Seen: d.at(r), Cursor: d.at(r + 1), By: now,
			Ticks: []ledger.Tick{{At: d.at(r + 1), Verdict: ledger.VerdictRun}},
		}
		request = func(ctx context.Context) error { return d.Create(ctx, []ledger.Decision{decision})[0].Err }
	case 'p':
		if mv.copied {
			return nil
		}
		return d.Confirm(ctx, []ledger.Due{due})
	case 'f', 'o':
		d.named++
		hold, n := locks.HoldID(fmt.Sprintf("%s.%d", now, d.named)), run.n
		if mv.kind == 'o' {
			n--
		}
		request = func(ctx context.Context) error { return d.claim(ctx, now, hold, r, n) }
	case 'e':
		request = d.finish(r, x.token, mv.how)
	case 'r':
		lost := d.dead(r, x.cutToken)
		request = func(ctx context.Context) error {
			_, err := d.LostLease(ctx, now, lost, d.jobs[0])
			if errors.Is(err, ledger.ErrNotYet) { // its session has ended, too
				return nil
			}
			return err
		}
	case 's':
		pending := func(other ledger.Due) bool { return other.Run != due.Run || int(run.pusher) == i+1 }
		_, err := d.Sweep(ctx, ledger.SweepLimits{Most: 100, Pending: pending})
		return err
	case 'k':
		_, err := d.Repush(ctx, due)
		return err
	case 'x':
		_, err := d.Crash(ctx, d.dead(r, run.token), d.jobs[0])
		return err
	case 'l':
		return d.look(ctx, i)
	case 'n':
		return cmp.Or(d.begin(ctx, i), d.look(ctx, i))
	case 'v':
		return d.Leave(ctx, now, "", 0)
	case 'z':
		return d.ends(ctx, "s"+string(now), 0)
	case 'C', 'D', 'H':
		return d.lose(ctx, s, mv)
	case 'E':
		return d.ends(ctx, "s"+string(d.session(present(i)+uint8(mv.how))), 1)
	case 'G':
		long := d.began.Add(-ledger.GoneAfter - time.Second).UnixMilli()
		return d.rdb.HSet(ctx, d.key("ledger"), "config:"+d.digest(mv.how), long).Err()
	case 'A':
		return d.arrive(ctx)
	case 'L':
		return nil
	case 'O':
		return d.ends(ctx, "o+"+string(d.id(r)), 1)
	case 't', 'm', 'w', 'W', 'q', 'T':
		var err error
		if request, err = d.mailDo(ctx, mv); err != nil || request == nil {
			return err
		}
	}
	if mv.copied {
		d.arrive = request
	}
	return request(ctx)
}

// lose has a worker lose its session.
func (d *replay) lose(ctx context.Context, s *modelState, mv modelMove) error {
	x, now := s.workers[mv.worker], d.session(present(mv.worker))
	if how := mv.how % 16; how != outcomeNone {
		d.arrive = d.finish(int(x.acts)-1, x.token, how)
	}
	if mv.copied {
		d.named++
		hold, n := locks.HoldID(fmt.Sprintf("%s.%d", now, d.named)), s.runs[mv.run].n
		d.arrive = func(ctx context.Context) error { return d.claim(ctx, now, hold, mv.run, n) }
	}
	if mv.kind == 'D' {
		if err := d.Died(ctx, now); err != nil {
			return err
		}
		if mv.how < 16 {
			if err := d.Space().EndSession(ctx, now); err != nil {
				return err
			}
			if _, err := d.Sweep(ctx, ledger.SweepLimits{Most: 100, Unconfirmed: time.Hour}); err != nil {
				return err
			}
		}
		if err := d.Leave(ctx, now, "", time.Hour); err != nil {
			return err
		}
	}
	if x.state == workerUp && (mv.kind != 'H' || x.definition == 0) {
		return d.begin(ctx, mv.worker)
	}
	return nil
}

// wants is what the scripts store in a state of the model, in lines.
func (d *replay) wants(s *modelState) (lines []string) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	say("cursor %d, active %s, carried lately %v", s.cursor, d.hashes[s.active], s.fresh)
	switch s.lock {
	case 0:
		say("lock free")
	case 1:
		say("lock x%s", d.attempts[[2]int{int(s.owner), int(s.under)}].hold)
	case 2:
		say("lock o+%s", d.id(int(s.owner)))
	}
	for i := range d.world.workers {
		for k, carries := range s.workers[i].carries {
			if session := d.sessions[i][k]; session != "" {
				say("%s carries a config: %v", session, carries)
			}
		}
	}
	for r, x := range s.runs {
		if x.state == runAbsent {
			continue
		}
		var log []string
		for _, how := range x.log[:x.ended] {
			log = append(log, []string{"", "crashed", "lost lease", "lost lease, confirmed", "handed back", "failed", "succeeded"}[how])
		}
		session, wait := locks.SessionID(""), ""
		if x.state == runRunning {
			session = d.session(x.session)
		}
		if x.ticket != 0 {
			wait = []string{"w", "o", "l"}[x.offer]
		}
		due := x.state == runDue
		say("run %d is %s, n %d, token %d, session %q, crashes %d, attempts %q, wait %q, to push %v, pushed %v", r, runStates[x.state],
			x.n, d.attempts[[2]int{r, int(x.token)}].token, session, x.crashes, log, wait, due && !x.confirmed, due && x.confirmed)
	}
	if s.mail.on {
		lines = append(lines, d.mailWants(s))
	}
	return lines
}

var closedAttempt = regexp.MustCompile(`"outcome":"([^"]*)",("confirmed":true)?`)

// stored is what the scripts have stored, in the same lines.
func (d *replay) stored(ctx context.Context) (lines []string, err error) {
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	hash := func(name string) map[string]string {
		all, failed := d.rdb.HGetAll(ctx, d.key(name)).Result()
		err = errors.Join(err, failed)
		return all
	}
	zset := func(name string) map[string]bool {
		members, failed := d.rdb.ZRange(ctx, d.key(name), 0, -1).Result()
		err = errors.Join(err, failed)
		set := make(map[string]bool)
		for _, member := range members {
			set[member] = true
		}
		return set
	}
	cursor, failed := strconv.ParseInt(hash("cursor")["j"], 10, 64)
	facts, ledgers := hash("facts"), hash("ledger")
	fresh := [2]bool{}
	for i := range fresh {
		// It is 0 where no worker has ever polled.
		polled, _ := strconv.ParseInt(ledgers["config:"+d.digest(i)], 10, 64)
		fresh[i] = polled >= d.began.Add(-ledger.GoneAfter).UnixMilli()
	}
	say("cursor %d, active %s, carried lately %v", (cursor-d.at(0).UnixMilli())/1000, strings.Split(facts["vj"], us)[0], fresh)
	if owner := hash("own")["job:j"]; owner != "" {
		say("lock %s", owner)
	} else {
		say("lock free")
	}
	for i := range d.world.workers {
		for _, session := range d.sessions[i] {
			if session != "" {
				say("%s carries a config: %v", session, ledgers["carry:"+session] == d.digest(int(d.world.workers[i])))
			}
		}
	}
	runs, logs, ended, waits, push, sent := hash("run"), hash("log"), hash("hist:j"), hash("wait"), zset("push"), zset("sent")
	for r := range modelRuns {
		id := string(d.id(r))
		record, log := runs[id], logs[id]
		if final, ok := ended[id]; ok {
			parts := strings.Split(final, "\x1d")
			if record, log = parts[0], parts[1]; strings.HasPrefix(log, "@") {
				log = `"outcome":"succeeded",` // of its only attempt
			}
		}
		if record == "" {
			continue
		}
		f := strings.Split(record, us)
		var ends []string
		for _, found := range closedAttempt.FindAllStringSubmatch(log, -1) {
			text := found[1]
			if found[2] != "" {
				text += ", confirmed"
			}
			ends = append(ends, text)
		}
		session, wait := "", ""
		if f[fieldState] == "running" {
			session = f[fieldSession]
		}
		if parts := strings.Split(waits["+"+id], us); len(parts) > 3 {
			wait = parts[3]
		}
		say("run %d is %s, n %s, token %s, session %q, crashes %s, attempts %q, wait %q, to push %v, pushed %v", r, f[fieldState],
			f[1], f[8], session, f[fieldCrashes], ends, wait, push[id], sent[id])
	}
	if d.world.mail {
		mail, one := d.rdb.ZRangeWithScores(ctx, d.key("mail"), 0, -1).Result()
		post, two := d.rdb.ZRangeWithScores(ctx, d.key("post"), 0, -1).Result()
		lines, failed = append(lines, d.mailStored(mail, post, hash("mailed"))), errors.Join(failed, one, two)
	}
	return lines, errors.Join(err, failed)
}

// retrace makes the moves of a path on the scripts and on the model, and compares what is stored
// after each of them. It returns the first difference, or else the rule that the last move breaks.
func (w *smallWorld) retrace(t *testing.T, server *redis.Client, plant func(string) string, path []modelMove) error {
	t.Helper()
	ctx := t.Context()
	d, err := w.newReplay(t, server, plant)
	if err != nil {
		return err
	}
	s := w.start()
	for k, mv := range path {
		if err := d.do(ctx, &s, mv); err != nil {
			return fmt.Errorf("move %d: %w", k+1, err)
		}
		broken := w.do(&s, mv)
		got, err := d.stored(ctx)
		if err != nil {
			return fmt.Errorf("move %d: %w", k+1, err)
		}
		if want := d.wants(&s); !slices.Equal(got, want) {
			return fmt.Errorf("move %d: %w: got\n  %s\nwant\n  %s", k+1, errDiffers, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
		}
		if broken = cmp.Or(broken, s.check()); broken != nil {
			return broken
		}
	}
	return nil
}

var errDiffers = errors.New("the scripts and the model differ")

func asIs(source string) string { return source }

// TestEveryStateOfSmallLedgersKeepsTheRules explores the worlds, and repeats some of the paths on
// the scripts. With LOCKSTEP_SOAK, each world has one more lost lease, and more paths are
// repeated.
func TestEveryStateOfSmallLedgersKeepsTheRules(t *testing.T) {
	t.Parallel()
	paths, more := 8, uint8(0)
	if n, err := strconv.Atoi(os.Getenv("LOCKSTEP_SOAK")); err == nil && n > 1 {
		paths, more = paths*min(n, 10), 1
	}
	for _, w := range append(smallWorlds(), mailWorlds()...) {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			w.budget[faultCut] += more
			e := w.explore(paths)
			t.Logf("%d states, %d moves", e.states, e.moves)
			if e.worst != nil {
				t.Fatalf("%v, after:%s", e.worst, w.describe(e.path))
			}
			redistest.Each(t, func(t *testing.T, rdb *redis.Client) {
				for i, path := range e.paths {
					if strings.HasSuffix(t.Name(), "miniredis") && i%4 > 0 {
						continue
					}
					if err := w.retrace(t, rdb, asIs, path); err != nil {
						t.Fatalf("%v, after:%s", err, w.describe(path))
					}
				}
			})
		})
	}
}

// plantedFlaw is a flaw of the rules, and the same flaw of the scripts.
type plantedFlaw struct {
	flaw, finds string
	world       smallWorld
	old, new    string
}

// TestExplorationOfLedgersFindsFlaws breaks one rule of the model at a time, and wants the
// exploration to find a state that shows it. On the path to that state, the scripts differ from
// that model. With the same flaw planted, they do not.
func TestExplorationOfLedgersFindsFlaws(t *testing.T) {
	t.Parallel()
	two, canaries := []uint8{0, 0}, []uint8{0, 1, 1}
	for _, fault := range append(mailFlaws(), []plantedFlaw{
		{
			flawAllCrash, "and a crash is counted", smallWorld{workers: two, ticks: 1, budget: budget{faultCut: 1}},
			"elseif call('ZSCORE', DIED, '!' .. session) then", "elseif id then",
		},
		{
			flawAnyToken, "which was closed", smallWorld{workers: two, ticks: 1, budget: budget{faultCut: 1}},
			"run[R_STATE] ~= 'running' or run[R_TOKEN] ~= ARGV[2] then", "run[R_STATE] ~= 'running' then",
		},
		{
			flawAnyReport, "no worker has reported it", smallWorld{workers: two, ticks: 1, budget: budget{faultCut: 1, faultHost: 1}},
			"noted(id, '', ARGV[2], 'lost lease', 'confirmed')", "noted(id, '', '', 'lost lease', 'confirmed')",
		},
		{
			flawHandBack, "without the lock", smallWorld{workers: two, ticks: 1, budget: budget{faultReturn: 1, faultCopy: 1}},
			"local S\nif run and run[R_WAITS]",
			"if run and outcome == 'handback' then hid = run[R_HOLDER] end\nlocal S\nif run and run[R_WAITS]",
		},
		{
			flawTwice, "is counted twice", smallWorld{workers: two, ticks: 1, budget: budget{faultCut: 1, faultCopy: 1, faultFail: 1}},
			"if not stood then", "if false then",
		},
		{
			flawAnyN, "no worker works at it", smallWorld{workers: two, ticks: 1, budget: budget{faultReturn: 1, faultCopy: 1}},
			"if run[R_STATE] ~= 'due' or run[R_N] ~= ARGV[4] then", "if run[R_STATE] ~= 'due' then",
		},
		{
			flawOwnPush, "its own process has swept", smallWorld{workers: two, ticks: 1},
			"if run then pushes(unconfirmed,", "if run then due(unsure[i], run) pushes(unconfirmed,",
		},
		{
			flawNoSweep, "stuck", smallWorld{workers: two, ticks: 1, budget: budget{faultDie: 1}},
			"if run then pushes(unconfirmed,", "if false then pushes(unconfirmed,",
		},
		{
			flawLeave, "and a worker carries it", smallWorld{workers: canaries, ticks: 1, budget: budget{faultCome: 2, faultLeave: 1}},
			"local left = digest ~= '' and not others", "local left = digest ~= ''",
		},
		{
			flawEnded, "and decides ticks nevertheless",
			smallWorld{workers: canaries, ticks: 1, budget: budget{faultCome: 2, faultLeave: 1, faultHost: 1}},
			"other ~= session and ends(other) then others = true", "other ~= session then others = true",
		},
		{
			flawInactive, "by a definition that is not active", smallWorld{workers: canaries, ticks: 1, budget: budget{faultCome: 1}},
			"if known(job) ~= ARGV[18] then return {'inactive'} end", "",
		},
		{
			flawCursor, "is decided again", smallWorld{workers: two, ticks: 1, budget: budget{faultCopy: 1}},
			"if cursor ~= ARGV[2] then return {'moved', cursor or ''} end", "",
		},
		{
			flawOrder, "run 1 begins before run 0", smallWorld{workers: two, ticks: 2},
			"if run[R_SERIAL] == '1' and run[R_TICK] ~= '' and run[R_WAITS] ~= '1' then", "if false then",
		},
		{
			flawDead, "under a session that has ended",
			smallWorld{workers: two, ticks: 1, budget: budget{faultCut: 1, faultCopy: 1}},
			"if not ends(session) then return {'dead'} end", "",
		},
	}...) {
		t.Run(fault.flaw, func(t *testing.T) {
			t.Parallel()
			w := fault.world
			w.flaw = fault.flaw
			e := w.explore(0)
			if e.worst == nil || !strings.Contains(e.worst.Error(), fault.finds) {
				t.Fatalf("got %v in %d states, want %q", e.worst, e.states, fault.finds)
			}
			t.Logf("%v, found in %d states, after:%s", e.worst, e.states, w.describe(e.path))
			rdb := redistest.Client(t)
			if err := w.retrace(t, rdb, asIs, e.path); !errors.Is(err, errDiffers) {
				t.Errorf("the scripts as they are, beside the model with the flaw: %v, want a difference", err)
			}
			planted, before, after := false, ledger.Expand(fault.old), ledger.Expand(fault.new)
			plant := func(source string) string {
				planted = planted || strings.Contains(source, before)
				return strings.ReplaceAll(source, before, after)
			}
			want := e.worst
			if errors.Is(want, errStuck) {
				want = nil // no rule is broken by a single move
			}
			if err := w.retrace(t, rdb, plant, e.path); fmt.Sprint(err) != fmt.Sprint(want) {
				t.Errorf("the scripts with that flaw: got %v, want %v", err, want)
			}
			if !planted {
				t.Errorf("the flaw is not in the scripts: %q does not occur", fault.old)
			}
		})
	}
}
