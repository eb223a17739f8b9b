package ledger_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// This file is the model that explore_test.go explores: what the scripts decide about runs,
// attempts and definitions, without Redis. Each move is one script, or one event outside of Redis.
// A state is a plain value that can be compared.
//
// All runs are ticks of one job with overlap: queue, so there is one lock. Attempt k of a run
// has the token k.

const (
	modelRuns    = 2
	modelWorkers = 3
	modelLog     = 5 // attempts of a run, at most
)

// The states of a run.
const (
	runAbsent = iota // its tick is undecided
	runDue
	runWaiting
	runRunning
	runSucceeded
	runFailed
)

var runStates = []string{"", "due", "waiting", "running", "succeeded", "failed"}

// How an attempt ended.
const (
	endCrashed = 1 + iota
	endLost
	endReported // it lost its lease, and its worker has reported that
	endHandedBack
	endFailed
	endSucceeded
)

// The states of a worker.
const (
	workerAbsent = iota // it has not started, or has ended
	workerUp
	workerDrains
)

// The faults. A budget bounds how often each of them happens.
const (
	faultCut     = iota // a worker loses its lease, and survives
	faultDie            // a worker's process dies, and its parent reports that
	faultHost           // a host dies: nothing reports anything
	faultCopy           // a copy of a request arrives late
	faultLose           // a delivery is lost
	faultDouble         // a delivery is doubled
	faultUnknown        // the confirmation of a push is lost
	faultReturn         // a worker hands a run back
	faultFail           // a handler fails
	faultLapse          // an offer lapses
	faultCome           // a worker with the newer definition starts
	faultLeave          // such a worker leaves in order
	faults
)

type budget [allFaults]uint8

// The flaws of the rules that an exploration has to find.
const (
	flawAllCrash  = "a lost lease counts as a crash"
	flawAnyToken  = "a report closes whatever attempt runs"
	flawAnyReport = "a report confirms all lost leases of its run"
	flawHandBack  = "a late hand-back frees the hold of a newer attempt"
	flawTwice     = "a failure counts although its attempt was closed"
	flawAnyN      = "a claim takes a run whatever n it names"
	flawOwnPush   = "a sweep renumbers a push that its process still has"
	flawNoSweep   = "a sweep repeats no push"
	flawLeave     = "a definition gives way while another session carries it"
	flawEnded     = "a definition that left stays for a session that has ended"
	flawInactive  = "a definition decides ticks although another one is active"
	flawCursor    = "a decision does not compare its cursor"
	flawOrder     = "a tick begins before an earlier one that is due"
	flawDead      = "a claim does not look whether its session has ended"
)

const (
	maxCrashes  = 2
	noPusher    = -1 // no worker hears of the reply
	outcomeNone = 0
)

// A session is a number: 0 for none, or the present or the previous one of a worker.
func present(w int) uint8  { return uint8(1 + 2*w) }
func previous(w int) uint8 { return uint8(2 + 2*w) }

type modelRun struct {
	state uint8
	// of its delivery; left out of keys, since only "older than the present one" matters
	n       uint8
	token   uint8 // of its last attempt
	session uint8 // of the attempt that runs
	crashes uint8
	ended   uint8           // how many attempts are closed
	log     [modelLog]uint8 // how
	told    uint8           // bit k: the worker of attempt k has reported it; this is not stored

	queued    bool  // the delivery of n is in the queue
	confirmed bool  // Redis knows that
	stale     bool  // a delivery of an older n is in the queue
	pusher    uint8 // the worker that still has to push n, plus one

	ticket uint8 // of its wait; the smallest is the oldest, 0 for none
	offer  uint8 // 1 the lock is reserved for it, 2 that has lapsed
}

type modelWorker struct {
	state      uint8
	definition uint8 // 0 the older one, 1 the newer one
	decides    bool  // it takes its definition for the active one
	acts       uint8 // the run that it works at, plus one
	token      uint8 // the attempt of that run
	cut        uint8 // the run of an attempt that it cut off and has to report, plus one
	cutToken   uint8 // the attempt of that run

	sends uint8 // the messages that it sends
	sent  bool  // their target has received them

	// Of its present session, and of the one before.
	lives   [2]bool
	died    [2]bool // its process has died, as its parent has reported
	carries [2]bool // Redis knows that it carries the worker's definition
}

// A modelCopy is a copy of a request that is still on its way.
type modelCopy struct {
	kind    byte // of the move that sends it, 0 for none
	run     uint8
	token   uint8 // of the attempt, 0 for a claim that was not granted
	session uint8 // of a claim, or of a report
	outcome uint8 // of a finish
	current bool  // a claim that has not arrived yet still names the present n
	by      uint8 // definition of a decision
}

type modelState struct {
	runs    [modelRuns]modelRun
	workers [modelWorkers]modelWorker
	copied  modelCopy
	cursor  uint8 // ticks decided

	lock  uint8 // 0 free, 1 held, 2 reserved
	owner uint8 // the run
	under uint8 // the attempt that holds it

	active, newest uint8   // definition
	known          [2]bool // definitions that are registered
	// a worker has polled with it, and has not left it since, within GoneAfter
	fresh [2]bool
	left  [2]bool // its last worker has left it in order

	mail   modelMail
	budget budget
}

// A modelMove is one thing that happens. kind:
//
//	c decide a tick       p push                 f fetch and claim   o fetch an old delivery
//	e finish              r report a lost lease  s sweep a push      k look a delivery up
//	x close an attempt of an ended session
//	l poll and register   n start                v leave in order    z end the session after that
//	C cut off             D die                  H lose the host     E a session ends
//	G a definition has not been carried for GoneAfter
//	A a copy arrives      L a delivery is lost   O an offer lapses
//
// Those of senders (modelmail_test.go):
//
//	t take a batch        m its target receives it
//	w record it as sent   W the same, and that stays on its way    q record that it failed
//	T a lease or a pause ends
type modelMove struct {
	kind   byte
	worker int
	run    int
	fault  bool // it need not happen
	// a copy stays on its way; p: the confirmation is lost; C, H: its claim is on its way
	copied bool

	// e: the outcome. C, D: that of a finish on its way, 0 for none. D: plus 16 if the parent
	// cannot end the session. f: 1 for a doubled delivery. E: 1 for the previous session.
	// G: the definition.
	how int
}

// A smallWorld bounds what may happen.
type smallWorld struct {
	name    string
	workers []uint8 // their definitions; those with the newer one start later
	ticks   int
	budget  budget
	mail    bool // runs that fail have messages
	flaw    string
}

func (w *smallWorld) start() modelState {
	s := modelState{budget: w.budget, mail: modelMail{on: w.mail}}
	for i, definition := range w.workers {
		s.workers[i].definition = definition
		if definition == 0 {
			s.begin(i)
			s.register(i)
		}
	}
	return s
}

func (s *modelState) begin(w int) {
	x := &s.workers[w]
	x.state, x.lives, x.died, x.carries = workerUp, [2]bool{true}, [2]bool{}, [2]bool{true}
}

// of returns the worker of a session, and 0 for its present one or 1 for its previous one.
func (s *modelState) of(session uint8) (*modelWorker, int) {
	return &s.workers[(session-1)/2], int(session-1) % 2
}

func (s *modelState) lives(session uint8) bool {
	w, i := s.of(session)
	return w.lives[i]
}

func (x *modelRun) outstanding() bool { return x.state >= runDue && x.state <= runRunning }

// renumber gives a run its next n. A delivery of the n before is stale from now on. So is a push
// that another process still has, since that process does not hear of the new n.
func (s *modelState) renumber(r, by int) {
	x := &s.runs[r]
	x.stale = x.stale || x.queued || x.pusher != 0 && int(x.pusher) != by+1
	x.n++
	x.queued, x.confirmed, x.pusher = false, false, 0
	if int(s.copied.run) == r {
		s.copied.current = false
	}
}

// due makes a run due under its next n, which a worker has to push.
func (s *modelState) due(r, by int) {
	s.renumber(r, by)
	s.runs[r].state, s.runs[r].pusher = runDue, uint8(by+1)
}

// drop ends a run's wait and its offer.
func (s *modelState) drop(r int) {
	x := &s.runs[r]
	for i := range s.runs {
		if x.ticket != 0 && s.runs[i].ticket > x.ticket {
			s.runs[i].ticket--
		}
	}
	if x.offer == 1 {
		s.lock = 0
	}
	x.ticket, x.offer = 0, 0
}

func (s *modelState) park(r int) {
	s.renumber(r, noPusher)
	x := &s.runs[r]
	if x.offer == 1 {
		s.lock = 0
	}
	x.state, x.offer = runWaiting, 0
	if x.ticket == 0 {
		for _, other := range s.runs {
			x.ticket = max(x.ticket, other.ticket)
		}
		x.ticket++
	}
}

// grant offers the lock, if it is free, to the oldest wait.
func (s *modelState) grant(by int) {
	first := -1
	for r, x := range s.runs {
		if x.state == runWaiting && (first < 0 || x.ticket < s.runs[first].ticket) {
			first = r
		}
	}
	if s.lock == 0 && first >= 0 {
		s.lock, s.owner, s.under = 2, uint8(first), 0
		s.runs[first].offer = 1
		s.due(first, by)
	}
}

func (s *modelState) holds(r int, token uint8) bool {
	return s.lock == 1 && int(s.owner) == r && s.under == token
}

func (s *modelState) free(r int, token uint8) {
	if s.holds(r, token) {
		s.lock, s.owner, s.under = 0, 0, 0
	}
}

// close writes how the last attempt of a run ended.
func (s *modelState) close(r int, how uint8) (err error) {
	x := &s.runs[r]
	if x.ended >= x.token {
		err = fmt.Errorf("attempt %d of run %d is counted twice", x.token, r)
	}
	if int(x.ended) < modelLog {
		x.log[x.ended] = how
		x.ended++
	}
	return err
}

func (s *modelState) final(r int, state uint8) {
	s.renumber(r, noPusher)
	s.drop(r)
	s.runs[r].state = state
}

// claim is the script. by is the worker that gets the reply. current reports whether the claim
// names the run's present n.
func (w *smallWorld) claim(s *modelState, by int, session uint8, r int, current bool) (granted bool, err error) {
	x := &s.runs[r]
	if !s.lives(session) && w.flaw != flawDead || x.state != runDue || !current && w.flaw != flawAnyN {
		return false, nil
	}
	behind := false
	for earlier := range r {
		e := s.runs[earlier]
		if x.ticket == 0 && e.state == runDue && e.ticket == 0 && w.flaw != flawOrder {
			s.park(earlier)
			behind = true
		}
	}
	older := s.lock == 2 && int(s.owner) != r && x.ticket != 0 && x.ticket < s.runs[s.owner].ticket
	switch {
	case behind, s.lock == 1, s.lock == 2 && int(s.owner) != r && !older:
		s.park(r)
		s.grant(by)
		return false, nil
	case older: // it goes before the offer of a younger wait
		s.runs[s.owner].offer, s.lock = 2, 0
	}
	s.drop(r)
	s.renumber(r, noPusher)
	x.token++
	x.state, x.session = runRunning, session
	s.lock, s.owner, s.under = 1, uint8(r), x.token
	for earlier, e := range s.runs[:r] {
		if e.outstanding() && e.token == 0 && x.token == 1 && e.offer != 2 {
			err = fmt.Errorf("run %d begins before run %d", r, earlier)
		}
	}
	if !s.lives(session) {
		err = fmt.Errorf("an attempt at run %d begins under a session that has ended", r)
	}
	return true, err
}

func (w *smallWorld) finish(s *modelState, by, r int, token, outcome uint8) (err error) {
	x := &s.runs[r]
	last := x.outstanding() && x.token == token
	stood := last && x.state == runRunning && s.holds(r, token)
	s.free(r, token)
	if w.flaw == flawHandBack && outcome == endHandedBack && x.state == runRunning {
		s.free(r, x.token)
	}
	switch {
	case !last:
		if w.flaw == flawMailTwice && outcome == endFailed && x.state == runFailed && x.token == token {
			s.mail.stored[r]++
		}
	case outcome == endSucceeded:
		if x.state == runRunning {
			err = s.close(r, endSucceeded)
		}
		s.final(r, runSucceeded)
	case !stood && w.flaw != flawTwice: // the sweep counts this attempt, or has counted it
	case outcome == endHandedBack:
		err = s.close(r, endHandedBack)
		s.due(r, by)
	case outcome == endFailed:
		err = s.close(r, endFailed)
		s.final(r, runFailed)
		w.tell(s, r)
	}
	s.grant(by)
	return err
}

// crash is the script that closes an attempt, for a sweep or for the worker that cut it off.
func (w *smallWorld) crash(s *modelState, by, r int, token uint8, reports bool) (err error) {
	x := &s.runs[r]
	if reports {
		x.told |= 1 << token
	}
	if x.state != runRunning || x.token != token && w.flaw != flawAnyToken {
		for k := range x.ended {
			if reports && x.outstanding() && x.log[k] == endLost && (k+1 == token || w.flaw == flawAnyReport) {
				x.log[k] = endReported
			}
		}
		return nil
	}
	if !reports && s.lives(x.session) {
		return nil
	}
	s.free(r, x.token)
	worker, i := s.of(x.session)
	over := false
	switch died := worker.died[i]; {
	case died || w.flaw == flawAllCrash:
		err = s.close(r, endCrashed)
		x.crashes++
		over = x.crashes >= maxCrashes
		if !died {
			err = fmt.Errorf("run %d lost its lease, and a crash is counted", r)
		}
	case reports:
		err = s.close(r, endReported)
	default:
		err = s.close(r, endLost)
	}
	if over {
		s.final(r, runFailed)
		w.tell(s, r)
	} else {
		s.due(r, by)
	}
	s.grant(by)
	return err
}

// create decides a tick. It returns whether the worker's definition may decide.
func (w *smallWorld) create(s *modelState, by, r int, definition uint8) (active bool, err error) {
	if int(s.cursor) != r && w.flaw != flawCursor {
		return true, nil
	}
	if s.active != definition && w.flaw != flawInactive {
		return false, nil
	}
	switch x := s.runs[r]; {
	case x.state > runDue || x.token > 0:
		err = fmt.Errorf("tick %d is decided again, and its run had begun", r)
	case s.active != definition:
		err = fmt.Errorf("tick %d is decided by a definition that is not active", r)
	}
	s.cursor = uint8(r + 1)
	s.runs[r] = modelRun{state: runDue, n: 1, pusher: uint8(by + 1)}
	return true, err
}

// register is a poll and the registration that follows it.
func (s *modelState) register(w int) {
	x := &s.workers[w]
	d := x.definition
	other := 1 - d
	s.fresh[d], s.left[d], x.carries[0] = true, false, true
	for i := range s.workers { // fields of sessions that have ended are removed
		for k, lives := range s.workers[i].lives {
			s.workers[i].carries[k] = s.workers[i].carries[k] && lives
		}
	}
	if !s.known[d] {
		s.known[d], s.newest = true, d
	}
	if s.known[other] && !s.fresh[other] {
		s.known[other], s.newest = false, d
	}
	if x.decides = s.newest == d; x.decides {
		s.active = d
	}
}

// gaveWay returns an error if the other definition is active although its last worker has left it.
func (s *modelState) gaveWay(w int) error {
	if other := 1 - s.workers[w].definition; s.left[other] && s.active == other {
		return fmt.Errorf("definition %d has left, and decides ticks nevertheless", other)
	}
	return nil
}

// leave ends that a session carries its definition. keep: its parent starts the worker again.
func (w *smallWorld) leave(s *modelState, session uint8, keep bool) {
	x, at := s.of(session)
	if !x.carries[at] {
		return
	}
	alone, leaves := true, true
	for i := range s.workers {
		for k, carries := range s.workers[i].carries {
			one := present(i) + uint8(k)
			if one == session || !carries || s.workers[i].definition != x.definition {
				continue
			}
			alone = alone && !s.lives(one)
			leaves = leaves && !s.lives(one) && w.flaw != flawEnded || w.flaw == flawLeave
		}
	}
	x.carries[at] = false
	if !keep && leaves {
		s.fresh[x.definition] = false
	}
	if !keep && alone {
		s.left[x.definition] = true
	}
}

// end ends a session, and its hold passes on. No worker hears of the run that this makes due.
func (s *modelState) end(session uint8) {
	w, i := s.of(session)
	w.lives[i] = false
	if r := int(s.owner); s.lock == 1 && s.runs[r].state == runRunning && s.runs[r].session == session {
		s.free(r, s.runs[r].token)
	}
	s.grant(noPusher)
}

// fall ends a worker's work. If the worker comes back, its session becomes the previous one.
func (s *modelState) fall(w int, back bool) {
	x := &s.workers[w]
	x.acts, x.token, x.decides = 0, 0, false
	if !back {
		x.state = workerAbsent
		return
	}
	x.lives, x.died, x.carries = [2]bool{true, x.lives[0]}, [2]bool{false, x.died[0]}, [2]bool{false, x.carries[0]}
	for r := range s.runs {
		if s.runs[r].session == present(w) {
			s.runs[r].session = previous(w)
		}
	}
	if s.copied.session == present(w) {
		s.copied.session = previous(w)
	}
}

// mentions reports whether a session lives, or an attempt or a copy still names it.
func (s *modelState) mentions(session uint8) bool {
	runs := func(x modelRun) bool { return x.state == runRunning && x.session == session }
	return s.lives(session) || s.copied.session == session || slices.ContainsFunc(s.runs[:], runs)
}

func (s *modelState) unpushed(w int) bool {
	return slices.ContainsFunc(s.runs[:], func(x modelRun) bool { return int(x.pusher) == w+1 })
}

// moves returns all that may happen in a state.
func (w *smallWorld) moves(s *modelState) (moves []modelMove) {
	add := func(mv modelMove, costs ...int) {
		for _, fault := range costs {
			if s.budget[fault] == 0 {
				return
			}
			mv.fault = true
		}
		moves = append(moves, mv)
	}
	for i := range w.workers {
		x := s.workers[i]
		if x.state == workerAbsent {
			if x.definition == 1 && !s.mentions(present(i)) && !s.mentions(previous(i)) {
				add(modelMove{kind: 'n', worker: i}, faultCome)
			}
		} else {
			w.movesOf(s, i, add)
		}
		if x.lives[1] {
			add(modelMove{kind: 'E', worker: i, how: 1})
		}
		if x.lives[0] && x.state == workerAbsent {
			add(modelMove{kind: 'E', worker: i})
		}
	}
	for r, x := range s.runs {
		if x.queued {
			add(modelMove{kind: 'L', run: r}, faultLose)
		}
		if x.offer == 1 {
			add(modelMove{kind: 'O', run: r}, faultLapse)
		}
	}
	for d := range s.fresh {
		polls := func(x modelWorker) bool { return x.state == workerUp && int(x.definition) == d }
		if s.fresh[d] && !slices.ContainsFunc(s.workers[:len(w.workers)], polls) {
			add(modelMove{kind: 'G', how: d})
		}
	}
	if s.copied.kind != 0 {
		add(modelMove{kind: 'A'})
	}
	s.timeOfMail(add)
	return moves
}

// movesOf adds what a worker may do, and what may happen to it.
func (w *smallWorld) movesOf(s *modelState, i int, add func(mv modelMove, costs ...int)) {
	x := s.workers[i]
	up := x.state == workerUp
	room := s.copied.kind == 0
	request := func(mv modelMove, costs ...int) {
		mv.worker = i
		add(mv, costs...)
		if mv.copied = true; room {
			add(mv, append(costs, faultCopy)...)
		}
	}
	if up {
		add(modelMove{kind: 'l', worker: i})
		if x.decides && int(s.cursor) < w.ticks {
			request(modelMove{kind: 'c', run: int(s.cursor)})
		}
		if x.cut != 0 {
			request(modelMove{kind: 'r', run: int(x.cut) - 1})
		}
		if x.definition == 1 {
			add(modelMove{kind: 'v', worker: i}, faultLeave)
		}
	} else if x.acts == 0 && !s.unpushed(i) {
		add(modelMove{kind: 'z', worker: i})
	}
	for r, run := range s.runs {
		at := modelMove{worker: i, run: r}
		if int(run.pusher) == i+1 {
			at.kind = 'p'
			add(at)
			at.copied = true
			add(at, faultUnknown)
			at.copied = false
		}
		if !up {
			continue
		}
		if run.state == runDue && !run.confirmed && (int(run.pusher) != i+1 || w.flaw == flawOwnPush) {
			at.kind = 's'
			add(at)
		}
		if run.state == runDue && run.confirmed && !run.queued {
			at.kind = 'k'
			add(at)
		}
		if run.state == runRunning && !s.lives(run.session) {
			at.kind = 'x'
			add(at)
		}
		if x.acts == 0 && run.queued {
			request(modelMove{kind: 'f', run: r})
			at.kind, at.how = 'f', 1
			add(at, faultDouble)
			at.how = 0
		}
		if x.acts == 0 && run.stale {
			at.kind = 'o'
			add(at)
		}
	}
	if x.acts != 0 {
		r := int(x.acts) - 1
		request(modelMove{kind: 'e', run: r, how: endSucceeded})
		request(modelMove{kind: 'e', run: r, how: endHandedBack}, faultReturn)
		request(modelMove{kind: 'e', run: r, how: endFailed}, faultFail)
	}
	if s.mail.on && up {
		s.mailMoves(i, add)
	}
	if s.mentions(previous(i)) {
		return
	}
	add(modelMove{kind: 'H', worker: i}, faultHost)
	loses := func(under int, costs ...int) {
		add(modelMove{kind: 'C', worker: i, how: under}, append(costs, faultCut)...)
		add(modelMove{kind: 'D', worker: i, how: under}, append(costs, faultDie)...)
		add(modelMove{kind: 'D', worker: i, how: under + 16}, append(costs, faultDie)...)
	}
	loses(outcomeNone)
	for r, run := range s.runs {
		if up && x.acts == 0 && run.queued && room { // its claim is on its way
			add(modelMove{kind: 'H', worker: i, run: r, copied: true}, faultHost, faultCopy)
			add(modelMove{kind: 'C', worker: i, run: r, copied: true}, faultCut, faultCopy)
		}
	}
	if x.acts != 0 && room { // its finish is on its way
		loses(endSucceeded, faultCopy)
		loses(endFailed, faultCopy, faultFail)
	}
}

// pay takes what a move costs from the budgets.
func (s *modelState) pay(mv modelMove) {
	if !mv.fault || s.payMail(mv) {
		return
	}
	loses := mv.kind == 'C' || mv.kind == 'D'
	under := mv.how % 16
	switch mv.kind {
	case 'C':
		s.budget[faultCut]--
	case 'D':
		s.budget[faultDie]--
	case 'H':
		s.budget[faultHost]--
	case 'L':
		s.budget[faultLose]--
	case 'O':
		s.budget[faultLapse]--
	case 'n':
		s.budget[faultCome]--
	case 'v':
		s.budget[faultLeave]--
	case 'f':
		if mv.how == 1 {
			s.budget[faultDouble]--
		}
	case 'e':
		if under == endHandedBack {
			s.budget[faultReturn]--
		}
	}
	if (mv.kind == 'e' || loses) && under == endFailed {
		s.budget[faultFail]--
	}
	switch {
	case mv.kind == 'p' && mv.copied:
		s.budget[faultUnknown]--
	case mv.copied, loses && under != outcomeNone:
		s.budget[faultCopy]--
	}
}

// do makes a move, and returns the rule that it breaks.
func (w *smallWorld) do(s *modelState, mv modelMove) (err error) {
	before := *s
	s.pay(mv)
	i, r := mv.worker, mv.run
	x, run := &s.workers[i], &s.runs[r]
	under := modelCopy{kind: mv.kind, run: uint8(r)}
	switch mv.kind {
	case 'c':
		under.by = x.definition
		x.decides, err = w.create(s, i, r, x.definition)
	case 'p':
		run.queued, run.confirmed, run.pusher = true, !mv.copied, 0
	case 'f':
		run.queued = mv.how == 1 // a doubled one is stale as soon as the claim takes the next n
		var granted bool
		if granted, err = w.claim(s, i, present(i), r, true); granted {
			x.acts, x.token = uint8(r+1), run.token
			under.token = run.token
		}
		under.session = present(i)
	case 'o':
		run.stale = false
		var granted bool
		if granted, err = w.claim(s, i, present(i), r, false); granted {
			x.acts, x.token = uint8(r+1), run.token
		}
	case 'e':
		under.token, under.outcome = x.token, uint8(mv.how)
		x.acts, x.token = 0, 0
		err = w.finish(s, i, r, under.token, uint8(mv.how))
	case 'r':
		under.token, under.session = x.cutToken, present(i)
		err = w.crash(s, i, r, x.cutToken, true)
		x.cut, x.cutToken = 0, 0
	case 's':
		err = w.sweep(s, i, r)
	case 'k':
		s.due(r, i)
	case 'x':
		err = w.crash(s, i, r, run.token, false)
	case 'l':
		s.register(i)
		err = s.gaveWay(i)
	case 'n':
		s.begin(i)
		s.register(i)
		err = s.gaveWay(i)
	case 'v':
		x.state, x.decides, x.cut, x.cutToken = workerDrains, false, 0, 0
		w.leave(s, present(i), false)
	case 'z':
		x.state = workerAbsent
		s.end(present(i))
	case 'C', 'D', 'H':
		w.lose(s, mv)
	case 'E':
		s.end(present(i) + uint8(mv.how))
	case 'G':
		s.fresh[mv.how] = false
	case 'A':
		err = w.arrive(s)
	case 'L':
		run.queued = false
	case 'O':
		run.offer, s.lock = 2, 0
		s.grant(noPusher)
	case 't', 'm', 'w', 'W', 'q', 'T':
		err = w.doMail(s, mv, &under)
	}
	if mv.copied && strings.IndexByte("pCH", mv.kind) < 0 {
		s.copied = under
	}
	if err == nil {
		err = s.goesOn(&before)
	}
	return err
}

// sweep repeats a push that was not confirmed, unless the sweeping process still has it.
func (w *smallWorld) sweep(s *modelState, i, r int) (err error) {
	if w.flaw == flawNoSweep {
		return nil
	}
	if w.flaw == flawOwnPush { // it renumbers all of them
		own := int(s.runs[r].pusher) == i+1
		for other := range s.runs {
			x := &s.runs[other]
			if x.state == runDue && !x.confirmed {
				if int(x.pusher) == i+1 {
					err = fmt.Errorf("the push of run %d is stale, and its own process has swept", other)
				}
				s.renumber(other, noPusher)
			}
		}
		if own {
			return err
		}
	}
	s.due(r, i)
	return err
}

// lose takes a worker's session away. A worker that drains does not come back, nor does a host
// with the newer definition.
func (w *smallWorld) lose(s *modelState, mv modelMove) {
	i := mv.worker
	x := &s.workers[i]
	back := x.state == workerUp && (mv.kind != 'H' || x.definition == 0)
	if how := mv.how % 16; how != outcomeNone {
		s.copied = modelCopy{kind: 'e', run: x.acts - 1, token: x.token, outcome: uint8(how)}
	}
	if mv.copied {
		s.runs[mv.run].queued = false
		s.copied = modelCopy{kind: 'f', run: uint8(mv.run), session: present(i), current: true}
	}
	if mv.kind == 'C' {
		if x.acts != 0 && back {
			x.cut, x.cutToken = x.acts, x.token
		}
	} else {
		x.cut, x.cutToken = 0, 0
		x.sends, x.sent = 0, false
	}
	if mv.kind != 'C' || !back { // what the process had to push is lost
		for r := range s.runs {
			if int(s.runs[r].pusher) == i+1 {
				s.runs[r].pusher = 0
			}
		}
	}
	x.died[0] = mv.kind == 'D'
	if mv.kind == 'D' && mv.how < 16 {
		s.end(present(i))
	}
	if mv.kind == 'D' {
		w.leave(s, present(i), true)
	}
	s.fall(i, back)
}

// arrive is the arrival of a copy. No worker waits for its reply.
func (w *smallWorld) arrive(s *modelState) (err error) {
	c := s.copied
	s.copied = modelCopy{}
	r := int(c.run)
	switch c.kind {
	case 'c':
		_, err = w.create(s, noPusher, r, c.by)
	case 'f':
		if x := s.runs[r]; x.state != runRunning || x.token != c.token {
			_, err = w.claim(s, noPusher, c.session, r, c.current)
		}
	case 'e':
		err = w.finish(s, noPusher, r, c.token, c.outcome)
	case 'r':
		if s.lives(c.session) {
			err = w.crash(s, noPusher, r, c.token, true)
		}
	case 'w', 'W', 'q':
		err = w.record(s, c.token, c.kind != 'q')
	}
	return err
}

// goesOn returns an error if a run that had ended has changed.
func (s *modelState) goesOn(before *modelState) error {
	for r, was := range before.runs {
		if x := s.runs[r]; was.state > runRunning && (x.state != was.state || x.token != was.token) {
			return fmt.Errorf("run %d had ended, and is %s", r, runStates[x.state])
		}
	}
	return nil
}

// check returns what is wrong with a state by itself.
func (s *modelState) check() error {
	acting := -1
	for i, x := range s.workers {
		if x.definition == 1 && x.decides && x.lives[0] && x.carries[0] && s.active == 0 {
			return errors.New("the newer definition has given way, and a worker carries it")
		}
		if x.acts == 0 {
			continue
		}
		r := int(x.acts) - 1
		run := s.runs[r]
		switch {
		case acting >= 0:
			return fmt.Errorf("workers %d and %d work under one lock", acting, i)
		case run.state != runRunning || run.token != x.token || run.session != present(i):
			return fmt.Errorf("worker %d works at attempt %d of run %d, which was closed", i, x.token, r)
		case !x.lives[0] || !s.holds(r, x.token):
			return fmt.Errorf("worker %d works at run %d without the lock", i, r)
		}
		acting = i
	}
	for r, x := range s.runs {
		open := uint8(0)
		if x.state == runRunning {
			open = 1
			if w, at := s.of(x.session); at == 0 && w.state != workerAbsent && int(w.acts) != r+1 {
				return fmt.Errorf("an attempt at run %d has begun, and no worker works at it", r)
			}
		}
		crashed, failed := 0, false
		for k := range x.ended {
			switch x.log[k] {
			case endCrashed:
				crashed++
			case endFailed:
				failed = true
			case endReported:
				if x.told&(1<<(k+1)) == 0 {
					return fmt.Errorf("attempt %d of run %d is confirmed to have lost its lease, and no worker has reported it", k+1, r)
				}
			}
		}
		switch {
		case (x.state == runAbsent) != (r >= int(s.cursor)):
			return fmt.Errorf("the cursor is %d, and tick %d is %q", s.cursor, r, runStates[x.state])
		case x.ended != x.token-open:
			return fmt.Errorf("%d attempts of run %d are closed, and %d have begun", x.ended, r, x.token)
		case x.state == runFailed && !failed && crashed < maxCrashes:
			return fmt.Errorf("run %d has failed, after %d crashes", r, crashed)
		case x.state == runWaiting && (s.lock == 0 || x.ticket == 0):
			return fmt.Errorf("run %d waits, and nothing is in its way", r)
		case x.offer == 1 && (x.state != runDue || s.lock != 2 || int(s.owner) != r):
			return fmt.Errorf("run %d has an offer, and is %s", r, runStates[x.state])
		case !x.outstanding() && (x.ticket != 0 || x.offer != 0):
			return fmt.Errorf("run %d is %s, and waits", r, runStates[x.state])
		}
	}
	return s.checkMail()
}

// goal reports whether all ticks are decided, all runs have ended, the lock is free and all
// messages were sent.
func (w *smallWorld) goal(s *modelState) bool {
	for r := range w.ticks {
		if s.runs[r].state < runSucceeded {
			return false
		}
	}
	return s.lock == 0 && s.mail.waits == 0
}

// orders are the permutations of the workers that keep their definitions: p[i] is the new place of
// worker i.
func (w *smallWorld) orders() (all [][modelWorkers]int) {
	var extend func(p []int)
	extend = func(p []int) {
		if len(p) == modelWorkers {
			all = append(all, [modelWorkers]int(p))
			return
		}
		for place := range modelWorkers {
			alike := place == len(p)
			if place < len(w.workers) && len(p) < len(w.workers) {
				alike = w.workers[place] == w.workers[len(p)]
			}
			if alike && !slices.Contains(p, place) {
				extend(append(p[:len(p):len(p)], place))
			}
		}
	}
	extend(nil)
	return all
}

// permuted returns a state with its workers in another order, and without the numbers of
// deliveries.
func (s modelState) permuted(p [modelWorkers]int) modelState {
	renamed := func(session uint8) uint8 {
		if session == 0 {
			return 0
		}
		return uint8(1+2*p[(session-1)/2]) + (session-1)%2
	}
	out := s
	for i, x := range s.workers {
		out.workers[p[i]] = x
	}
	for r := range out.runs {
		x := &out.runs[r]
		x.n = 0
		if x.pusher != 0 {
			x.pusher = uint8(p[x.pusher-1] + 1)
		}
		if x.session = renamed(x.session); x.state != runRunning {
			x.session = 0
		}
	}
	out.copied.session = renamed(s.copied.session)
	return out
}
