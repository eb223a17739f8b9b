package ledger_test

import (
	"context"
	"fmt"
	"math/bits"
	"strings"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// This file is the part of the model that is about messages: those to one target, which learns of
// failed runs. A set of messages is a number with a bit for each run.
//
// A sender is a part of a worker. It takes a batch, its target receives that, and it records that:
// three moves, between which the worker may die, or be so slow that its lease ends. A sender does
// not depend on the session of its worker.

// modelMail is what there is of messages.
type modelMail struct {
	on       bool             // the job has a target
	stored   [modelRuns]uint8 // how often there was a message about each run
	place    [modelRuns]uint8 // of that among all; 0 for none
	waits    uint8            // these
	batch    uint8            // those that were taken together, until they are recorded as sent
	tries    uint8
	post     uint8 // 1 they may be sent, 2 later, 0 no worker will look at them
	leased   bool  // a sender has the batch, and its lease is not over
	recorded uint8 // as sent
	received uint8 // by the target
	// by the first run of a batch: those that the target has received under that name
	named [modelRuns]uint8
}

const (
	postNone = iota
	postNow
	postLater
)

// The faults of senders. They follow those of the model.
const (
	faultRefuse = faults + iota // the target refuses a request, or its reply is lost
	faultSlow                   // the lease of a sender ends while it sends
	faultLate                   // a record of a sender arrives late, or once more
	allFaults
)

// The flaws of the rules about messages.
const (
	flawNoMail    = "an end stores no message"
	flawMailTwice = "a finish that is sent again stores its message again"
	flawForget    = "a batch is forgotten when its sender dies"
	flawLateMail  = "a late record of a sender ends the batch of another one"
	flawGrows     = "a batch that is taken again has later messages, too"
	flawNoLease   = "a batch is taken while a sender has it"
)

// tell stores the message about a run that has failed.
func (w *smallWorld) tell(s *modelState, r int) {
	m := &s.mail
	if !m.on || w.flaw == flawNoMail {
		return
	}
	m.stored[r]++
	for _, place := range m.place {
		m.place[r] = max(m.place[r], place+1)
	}
	m.waits |= 1 << r
	if m.post == postNone {
		m.post = postNow
	}
}

// ends returns the first and the last message of a set, which is not empty.
func (m *modelMail) ends(set uint8) (first, last int) {
	first, last = -1, -1
	for r := range modelRuns {
		if set&(1<<r) == 0 {
			continue
		}
		if first < 0 || m.place[r] < m.place[first] {
			first = r
		}
		if last < 0 || m.place[r] > m.place[last] {
			last = r
		}
	}
	return first, last
}

// take is the script. The worker gets what may be sent now.
func (w *smallWorld) take(s *modelState, i int) (err error) {
	m := &s.mail
	switch {
	case m.post != postNow:
		return nil
	case m.waits == 0:
		m.post = postNone
		return nil
	case m.batch == 0 || w.flaw == flawGrows:
		m.batch = m.waits
	}
	if m.leased {
		err = fmt.Errorf("worker %d takes a batch while another worker has it", i)
	}
	m.leased, m.post = true, postLater
	switch w.flaw {
	case flawForget:
		m.post = postNone
	case flawNoLease:
		m.post = postNow
	}
	s.workers[i].sends, s.workers[i].sent = m.batch, false
	return err
}

// receive is no script: the target receives the batch of a worker.
func (s *modelState) receive(i int) error {
	m, x := &s.mail, &s.workers[i]
	x.sent = true
	m.received |= x.sends
	first, _ := m.ends(x.sends)
	if before := m.named[first]; before != 0 && before != x.sends {
		return fmt.Errorf("the target receives %02b, and has received %02b under one name", x.sends, before)
	}
	m.named[first] = x.sends
	return nil
}

// record is the script that records how a request with a batch has ended.
func (w *smallWorld) record(s *modelState, set uint8, sent bool) error {
	m := &s.mail
	if m.batch == 0 {
		return nil
	}
	_, mine := m.ends(set)
	if _, last := m.ends(m.batch); mine != last && w.flaw != flawLateMail {
		return nil // another worker has recorded this one
	}
	m.leased, m.post = false, postLater
	if !sent {
		m.tries++
		return nil
	}
	m.waits &^= m.batch
	m.recorded |= m.batch
	m.batch, m.tries = 0, 0
	return nil
}

// mailMoves adds what a sender may do.
func (s *modelState) mailMoves(i int, add func(mv modelMove, costs ...int)) {
	x, room := s.workers[i], s.copied.kind == 0
	switch {
	case x.sends == 0 && s.mail.post == postNow:
		add(modelMove{kind: 't', worker: i})
	case x.sends != 0 && !x.sent:
		add(modelMove{kind: 'm', worker: i})
	case x.sends != 0:
		add(modelMove{kind: 'w', worker: i})
		if room {
			add(modelMove{kind: 'w', worker: i, copied: true}, faultLate)
			add(modelMove{kind: 'W', worker: i}, faultLate)
		}
	}
	if x.sends != 0 {
		add(modelMove{kind: 'q', worker: i}, faultRefuse)
		if room {
			add(modelMove{kind: 'q', worker: i, copied: true}, faultRefuse, faultLate)
		}
	}
}

// timeOfMail adds that a lease ends, or a pause between two batches. A lease ends by itself when
// its sender has died.
func (s *modelState) timeOfMail(add func(mv modelMove, costs ...int)) {
	if s.mail.post != postLater {
		return
	}
	for _, x := range s.workers {
		if s.mail.leased && x.sends != 0 {
			add(modelMove{kind: 'T'}, faultSlow)
			return
		}
	}
	add(modelMove{kind: 'T'})
}

// payMail takes what a move costs from the budgets, if it is one of a sender.
func (s *modelState) payMail(mv modelMove) (paid bool) {
	switch mv.kind {
	case 'q':
		s.budget[faultRefuse]--
	case 'T':
		s.budget[faultSlow]--
	case 'W':
		s.budget[faultLate]--
	case 'w':
	default:
		return false
	}
	if mv.copied {
		s.budget[faultLate]--
	}
	return true
}

// doMail makes a move of a sender. under is its request.
func (w *smallWorld) doMail(s *modelState, mv modelMove, under *modelCopy) (err error) {
	x := &s.workers[mv.worker]
	switch mv.kind {
	case 't':
		return w.take(s, mv.worker)
	case 'm':
		return s.receive(mv.worker)
	case 'T':
		s.mail.post, s.mail.leased = postNow, false
		return nil
	}
	under.token = x.sends
	x.sends, x.sent = 0, false
	if mv.kind == 'W' { // it has not arrived yet
		s.copied = *under
		return nil
	}
	return w.record(s, under.token, mv.kind == 'w')
}

// checkMail returns what is wrong with the messages of a state.
func (s *modelState) checkMail() error {
	m := &s.mail
	if !m.on {
		return nil
	}
	for r, x := range s.runs {
		want := uint8(0)
		if x.state == runFailed {
			want = 1
		}
		switch {
		case m.stored[r] != want:
			return fmt.Errorf("run %d is %q, and has %d messages", r, runStates[x.state], m.stored[r])
		case want > 0 && (m.waits|m.recorded)&(1<<r) == 0:
			return fmt.Errorf("the message about run %d is lost", r)
		case m.recorded&^m.received&(1<<r) != 0:
			return fmt.Errorf("the message about run %d is recorded as sent, and the target has not received it", r)
		}
	}
	return nil
}

// encode is the same for equal messages.
func (m *modelMail) encode(b []byte) []byte {
	if *m == (modelMail{on: m.on}) {
		return b
	}
	leased := byte(0)
	if m.leased {
		leased = 1
	}
	b = append(b, m.waits, m.batch, m.tries, m.post, leased, m.recorded, m.received)
	return append(append(append(b, m.stored[:]...), m.place[:]...), m.named[:]...)
}

// toldTarget is the target of a replay.
const toldTarget = "ops"

// mailDo makes a move of a sender on the scripts. It returns the request of the sender, if the move
// has one.
func (d *replay) mailDo(ctx context.Context, mv modelMove) (request func(context.Context) error, err error) {
	batch := d.batches[mv.worker]
	sent := func(ctx context.Context) error { return d.MailSent(ctx, batch) }
	switch mv.kind {
	case 't':
		batches, _, err := d.TakeMail(ctx, []string{toldTarget}, 0)
		if err == nil && len(batches) > 0 {
			d.batches[mv.worker] = &batches[0]
		}
		return nil, err
	case 'T':
		return nil, d.rdb.ZAddXX(ctx, d.key("post"), redis.Z{Score: 1, Member: toldTarget + "\x00j"}).Err()
	case 'w':
		return sent, nil
	case 'W':
		d.arrive = sent
	case 'q':
		return func(ctx context.Context) error {
			_, err := d.MailFailed(ctx, batch, ledger.MailPause, "status 500")
			return err
		}, nil
	}
	return nil, nil
}

// mailWants is what the scripts store about messages in a state of the model.
func (d *replay) mailWants(s *modelState) string {
	m := &s.mail
	var waits []string
	for place := range uint8(modelRuns) {
		for r := range modelRuns {
			if m.place[r] == place+1 && m.waits&(1<<r) != 0 {
				waits = append(waits, d.message(s, r))
			}
		}
	}
	for r, n := range m.stored {
		if n > 1 {
			waits = append(waits, d.message(s, r))
		}
	}
	upto, tries := uint8(0), uint8(0)
	if m.batch != 0 {
		_, last := m.ends(m.batch)
		upto, tries = m.place[last], m.tries
	}
	return fmt.Sprintf("messages %q, batch up to %d, tries %d, next %d, sent %d", waits, upto, tries, m.post, bits.OnesCount8(m.recorded))
}

// message is the id of the message about a run.
func (d *replay) message(s *modelState, r int) string {
	return fmt.Sprintf("%s.%d", d.id(r), d.attempts[[2]int{r, int(s.runs[r].token)}].token)
}

// mailStored is what the scripts have stored about messages.
func (d *replay) mailStored(mail, post []redis.Z, mailed map[string]string) string {
	var waits []string
	for _, z := range mail {
		waits = append(waits, mailFields(z.Member.(string))[0])
	}
	next := postNone
	for _, z := range post {
		if next = postNow; int64(z.Score) > d.began.UnixMilli() {
			next = postLater
		}
	}
	upto, tries, _ := strings.Cut(mailed["batch:"+toldTarget+"\x00j"], us)
	plain := func(text string) string {
		if text = strings.TrimLeft(text, "0"); text == "" {
			return "0"
		}
		return text
	}
	return fmt.Sprintf("messages %q, batch up to %s, tries %s, next %d, sent %s", waits, plain(upto), plain(tries), next, plain(mailed["sent:"+toldTarget]))
}

// mailWorlds are those in which runs have messages.
func mailWorlds() []smallWorld {
	two := []uint8{0, 0}
	return []smallWorld{
		{
			name: "a message", workers: two, ticks: 1, mail: true,
			budget: budget{faultFail: 1, faultDie: 1, faultRefuse: 1, faultSlow: 1, faultLate: 1},
		},
		{
			name: "a message about a run that workers died of", workers: two, ticks: 1, mail: true,
			budget: budget{faultDie: 3},
		},
		{
			name: "messages of two runs", workers: two, ticks: 2, mail: true,
			budget: budget{faultFail: 2, faultSlow: 1, faultLate: 1},
		},
	}
}

// mailFlaws are those of the rules about messages.
func mailFlaws() (flaws []plantedFlaw) {
	two := []uint8{0, 0}
	flaws = []plantedFlaw{
		{
			flawNoMail, "has 0 messages", smallWorld{workers: two, ticks: 1, budget: budget{faultFail: 1}},
			"if definition then\n    local event", "if false then\n    local event",
		},
		{
			flawMailTwice, "has 2 messages", smallWorld{workers: two, ticks: 1, budget: budget{faultFail: 1, faultCopy: 1}},
			"if past and past[R_TOKEN] == token then",
			"if past and past[R_TOKEN] == token then\n    if outcome == 'failed' then post('" + toldTarget +
				"', 'j', {M_TEXT{ID = id .. '.' .. token; EVENT = 'failed'; AT = ms; RUN = id}}) end\n   ",
		},
		{
			flawForget, "stuck", smallWorld{workers: two, ticks: 1, budget: budget{faultFail: 1, faultDie: 1}},
			"call('ZADD', POST, format('%.0f', now + ARGV[2]), group)", "call('ZREM', POST, group)",
		},
		{
			flawNoLease, "while another worker has it", smallWorld{workers: two, ticks: 1, budget: budget{faultFail: 1}},
			"call('ZADD', POST, format('%.0f', now + ARGV[2]), group)", "",
		},
		{
			flawLateMail, "and the target has not received it", smallWorld{workers: two, ticks: 2, budget: budget{faultFail: 2, faultLate: 1}},
			"if upto ~= ARGV[3] then", "if not upto then",
		},
		{
			flawGrows, "under one name", smallWorld{workers: two, ticks: 2, budget: budget{faultFail: 2, faultSlow: 1}},
			"if noted == '' and (known", "if (known",
		},
	}
	for i := range flaws {
		flaws[i].world.mail = true
	}
	return flaws
}

var failuresTold = []jobs.Notify{{Target: toldTarget, On: []jobs.Event{jobs.EventFailed}}}
