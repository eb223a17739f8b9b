package ledger_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/ledger"
)

// The messages of random histories: workers take batches, send and record them. They die before and
// after a request, are slow, so that another worker takes their batch, and their records arrive
// late and twice. In every state:
//
//   - Each end has one message for each target, which waits or was recorded as sent, in the order
//     of the ends. No message is lost, and none is stored twice.
//   - A message that was recorded as sent was received by its target.
//   - A target that receives a batch again receives the same messages.
//   - Until its lease is over, no other worker gets a batch.
//   - Each message that was dropped is in the audit once, or will be, whatever number of batches of
//     its target, which are about several jobs, brings it along.

// mailing is what the players know of the messages of a random history.
type mailing struct {
	rand    *rand.Rand
	sending []sending // batches that workers have
	late    []sending // batches of workers that have ended: a record may still arrive

	open     map[string]*openBatch // by target and job: the batch that is not recorded yet
	held     map[string]time.Time  // by target and job: when a worker took it, until its lease ends
	recorded map[string][]string   // by target and job: what was recorded as sent, in order
	stored   map[string][]string   // by target and job: all messages, in order
	received map[string]bool       // target and id
	named    map[string]string     // target and the first id of a batch -> all ids in it

	drops   *rand.Rand     // apart from rand: the other moves are the same without drops
	dropped map[string]int // by target: messages that were not stored
	audited map[string]int // by target: those of them that the audit has
}

// silent returns how many dropped messages of a target the audit does not have yet.
func (m *mailing) silent(target string) int { return m.dropped[target] - m.audited[target] }

// sending is a batch that a worker has taken.
type sending struct {
	batch    ledger.Batch
	received bool // by its target
}

func (s *sending) group() string { return s.batch.Target + "\x00" + s.batch.Job }

func (s *sending) ids() (ids []string) {
	for _, m := range s.batch.Messages {
		ids = append(ids, m.ID)
	}
	return ids
}

// openBatch is a batch that was taken.
type openBatch struct {
	members []string // as they are stored
	tries   int
}

func newMailing(seed uint64) *mailing {
	return &mailing{
		rand: rand.New(rand.NewPCG(seed, 2)), open: make(map[string]*openBatch), held: make(map[string]time.Time),
		recorded: make(map[string][]string), stored: make(map[string][]string), received: make(map[string]bool), named: make(map[string]string),
		drops: rand.New(rand.NewPCG(seed, 3)), dropped: make(map[string]int), audited: make(map[string]int),
	}
}

// groupOf returns the target and the job of a member of the key mail.
func groupOf(member string) string {
	target, rest, _ := strings.Cut(member, "\x00")
	job, _, _ := strings.Cut(rest, "\x00")
	return target + "\x00" + job
}

// mailFields returns the fields of a member of the key mail.
func mailFields(member string) []string {
	parts := strings.SplitN(member, "\x00", 4)
	return strings.Split(parts[3], us)
}

func idsIn(members []string) (ids []string) {
	for _, member := range members {
		ids = append(ids, mailFields(member)[0])
	}
	return ids
}

// waitingMail returns the messages that wait, by target and job.
func (p *play) waitingMail() map[string][]string {
	p.Helper()
	members, err := p.rdb.ZRange(p.Context(), p.key("mail"), 0, -1).Result()
	if err != nil {
		p.fatalf("%v", err)
	}
	groups := make(map[string][]string)
	for _, member := range members {
		groups[groupOf(member)] = append(groups[groupOf(member)], member)
	}
	return groups
}

// posts returns when the messages of each target and job may be sent next.
func (p *play) posts() map[string]int64 {
	p.Helper()
	all, err := p.rdb.ZRangeWithScores(p.Context(), p.key("post"), 0, -1).Result()
	if err != nil {
		p.fatalf("%v", err)
	}
	at := make(map[string]int64)
	for _, z := range all {
		at[z.Member.(string)] = int64(z.Score)
	}
	return at
}

// mailStep lets something happen to messages.
func (p *play) mailStep() {
	m := p.mailing
	switch n := m.rand.IntN(20); {
	case n < 5:
		p.takeMail([][]string{{"all"}, {"few", "some"}, {"all", "some"}, nil}[m.rand.IntN(4)])
	case n < 9 && len(m.sending) > 0:
		s := pick(m.rand, &m.sending)
		p.receive(&s)
		p.recordMail(s, true)
	case n < 11 && len(m.sending) > 0:
		s := pick(m.rand, &m.sending)
		if m.rand.IntN(3) == 0 { // only its reply is lost
			p.receive(&s)
		}
		p.recordMail(s, false)
	case n < 13 && len(m.sending) > 0: // the worker dies; its record may be on its way
		s := pick(m.rand, &m.sending)
		if m.rand.IntN(2) == 0 {
			p.receive(&s)
		}
		p.say("the sender of %s dies, received: %v", s.ids(), s.received)
		m.late = append(m.late, s)
	case n < 16:
		p.waitForMail()
	case n < 18 && len(m.late) > 0:
		s := pick(m.rand, &m.late)
		p.recordMail(s, s.received)
	case n < 19:
		job := p.ticking[m.rand.IntN(len(p.ticking))]
		created := p.tick(job, p.cursors[job.Name], 1+m.rand.IntN(3), ledger.VerdictMissed)
		p.say("ticks up to %v of %s are missed", created.Cursor, job.Name)
		p.cursors[job.Name] = created.Cursor
	}
	if m.drops.IntN(8) == 0 {
		p.dropMail()
	}
}

// dropMail counts messages of a target as dropped, as post does. So many messages that it drops
// some do not wait in a history.
func (p *play) dropMail() {
	p.Helper()
	m := p.mailing
	target, n := playedTargets[m.drops.IntN(len(playedTargets))].Target, 1+m.drops.IntN(3)
	p.say("%d messages to %s are dropped", n, target)
	m.dropped[target] += n
	for _, field := range []string{"dropped:", "silent:"} {
		if err := p.rdb.HIncrBy(p.Context(), p.key("mailed"), field+target, int64(n)).Err(); err != nil {
			p.fatalf("%v", err)
		}
	}
}

// takeMail lets a worker take what it can send to some targets.
func (p *play) takeMail(targets []string) {
	p.Helper()
	m, waiting, posts, from := p.mailing, p.waitingMail(), p.posts(), p.now()
	batches, next, err := p.TakeMail(p.Context(), targets, 0)
	if err != nil || next != 0 {
		p.fatalf("take messages: next %d, %v", next, err)
	}
	upto := p.now()
	taken := make(map[string]bool)
	for _, batch := range batches {
		s := sending{batch: batch}
		group := s.group()
		taken[group] = true
		p.say("a worker takes %q of %q", s.ids(), group)
		at, known := posts[group]
		switch since, held := m.held[group]; {
		case batch.Expired || !slices.Contains(targets, batch.Target):
			p.fatalf("a worker takes messages to %s, and has only %v", batch.Target, targets)
		case held && time.Since(since) < ledger.MailLease/2, !known, at > upto.UnixMilli():
			p.fatalf("%q is taken before its time", group)
		}
		want := openBatch{members: waiting[group][:min(ledger.BatchMost, len(waiting[group]))]}
		if open := m.open[group]; open != nil {
			want = *open
		}
		if !slices.Equal(s.ids(), idsIn(want.members)) || batch.Tries != want.tries {
			p.fatalf("%q is taken after %d tries, want %q after %d", s.ids(), batch.Tries, idsIn(want.members), want.tries)
		}
		if silent := m.silent(batch.Target); batch.Dropped != silent {
			p.fatalf("%q brings %d dropped messages along, want %d", group, batch.Dropped, silent)
		}
		m.open[group], m.held[group] = &want, time.Now()
		m.sending = append(m.sending, s)
	}
	for group, at := range posts {
		target, _, _ := strings.Cut(group, "\x00")
		if at < from.UnixMilli() && len(waiting[group]) > 0 && slices.Contains(targets, target) && !taken[group] {
			p.fatalf("%q may be sent, and is not taken", group)
		}
	}
}

// receive lets a target receive a batch.
func (p *play) receive(s *sending) {
	m := p.mailing
	ids := s.ids()
	name, all := s.batch.Target+" "+ids[0], strings.Join(ids, " ")
	if before, again := m.named[name]; again && before != all {
		p.fatalf("%s receives %s, and has received it as %s", s.batch.Target, all, before)
	}
	m.named[name], s.received = all, true
	for _, id := range ids {
		m.received[s.batch.Target+" "+id] = true
	}
}

// recordMail records how a request has ended. The reply may be lost, so it is sent again.
func (p *play) recordMail(s sending, sent bool) {
	p.Helper()
	m, group := p.mailing, s.group()
	for range 1 + m.rand.IntN(2) {
		var over bool
		var err error
		if sent {
			err = p.MailSent(p.Context(), &s.batch)
		} else {
			over, err = p.MailFailed(p.Context(), &s.batch, ledger.MailPause, "status 500")
		}
		p.say("%q is recorded, sent: %v", s.ids(), sent)
		if err != nil || over {
			p.fatalf("record messages, sent %v: over %v, %v", sent, over, err)
		}
		open, ids := m.open[group], s.ids()
		if open == nil || mailFields(open.members[len(open.members)-1])[0] != ids[len(ids)-1] {
			continue // another batch is open: this one has ended
		}
		delete(m.held, group)
		m.audited[s.batch.Target] += min(m.silent(s.batch.Target), s.batch.Dropped)
		if sent {
			m.recorded[group] = append(m.recorded[group], open.members...)
			delete(m.open, group)
		} else {
			open.tries++
		}
		if at := p.posts()[group]; at > p.now().Add(ledger.MailPause).UnixMilli() {
			p.fatalf("the next batch of %q may be sent at %d, want a pause of %s", group, at, ledger.MailPause)
		}
	}
	if m.rand.IntN(3) == 0 {
		m.late = append(m.late, s)
	}
}

// waitForMail lets the lease of a sender end, or the pause after a batch. A worker that has that
// batch is slow from now on: another one may take it.
func (p *play) waitForMail() {
	groups := make([]string, 0, 8)
	for group := range p.posts() {
		groups = append(groups, group)
	}
	if len(groups) == 0 {
		return
	}
	slices.Sort(groups)
	group := groups[p.mailing.rand.IntN(len(groups))]
	p.say("the time of %q comes", group)
	delete(p.mailing.held, group)
	if err := p.rdb.ZAddXX(p.Context(), p.key("post"), redis.Z{Score: 1, Member: group}).Err(); err != nil {
		p.fatalf("%v", err)
	}
}

// checkRecords reads the records of all runs, and compares messages with their ends.
func (p *play) checkRecords() {
	p.Helper()
	records, err := recordsOf(p.Context(), p.rdb, p.namespace, playedJobs...)
	if err != nil {
		p.fatalf("%v", err)
	}
	if wrong := wrongRecords(p.records, records); wrong != "" {
		p.fatalf("%s", wrong)
	}
	succeeded := make(map[string]bool) // jobs of which nothing but successes has ended since
	for id, record := range records {
		if before := p.records[id]; before != nil && before.State == record.State || !record.State.Final() {
			continue
		}
		switch record.State {
		case ledger.StateFailed, ledger.StateLost, ledger.StateMissed:
			p.told = append(p.told, record)
			succeeded[record.Job] = false
		case ledger.StateSucceeded:
			if _, others := succeeded[record.Job]; !others {
				succeeded[record.Job] = true
			}
		}
	}
	p.records = records
	p.checkMail()
	facts := p.all("facts")
	for job, is := range succeeded {
		if flag := facts["n"+job]; is && flag != "" {
			p.fatalf("%s has succeeded, and what its next success recovers from is %q", job, flag)
		}
	}
}

// checkMail checks that each end which targets are told of has exactly one message for each of
// them, and that a job recovers once after some of them: when it next succeeds.
func (p *play) checkMail() {
	p.Helper()
	m, waiting := p.mailing, p.waitingMail()
	for group := range m.stored {
		p.checkStored(group, waiting[group])
	}
	for group := range waiting {
		p.checkStored(group, waiting[group])
	}
	p.checkBatches(waiting)
	want, got := make(map[string]int), make(map[string]int)
	on := make(map[string][]jobs.Event)
	for _, target := range playedTargets {
		on[target.Target] = target.On
		for _, record := range p.told {
			if slices.Contains(target.On, jobs.Event(record.State)) {
				want[fmt.Sprintf("%s %s %s", target.Target, record.State, record.ID)]++
			}
		}
	}
	ids := make(map[string]bool)
	waits := make(map[string][]string) // by job: the targets that wait for its next success
	for _, group := range slices.Sorted(maps.Keys(m.stored)) {
		target, job, _ := strings.Cut(group, "\x00")
		last := "" // event
		for _, member := range m.stored[group] {
			fields := mailFields(member)
			if ids[target+fields[0]] {
				p.fatalf("%s is told of %s twice", target, fields[0])
			}
			ids[target+fields[0]] = true
			if fields[1] != "recovered" {
				got[target+" "+fields[1]+" "+fields[3]]++
			} else if last == "" || last == "recovered" || !slices.Contains(on[target], jobs.EventRecovered) {
				p.fatalf("%s is told that %s has recovered, the last message was %q", target, job, last)
			}
			last = fields[1]
		}
		if last != "" && last != "recovered" && slices.Contains(on[target], jobs.EventRecovered) {
			waits[job] = append(waits[job], target)
		}
	}
	for what, n := range want {
		if got[what] != n {
			p.fatalf("%d messages %q, want %d", got[what], what, n)
		}
		delete(got, what)
	}
	if len(got) > 0 {
		p.fatalf("messages without an end: %v", got)
	}
	facts := p.all("facts")
	for _, job := range playedJobs {
		_, flag, _ := strings.Cut(facts["n"+job], "\x1e")
		noted := slices.DeleteFunc(strings.Split(flag, "\x1e"), func(target string) bool { return target == "" })
		slices.Sort(noted)
		if !slices.Equal(noted, waits[job]) {
			p.fatalf("%q wait for the next success of %s, want %q", noted, job, waits[job])
		}
	}
}

// checkStored checks that no message of a target and job was lost, and that new ones come last.
func (p *play) checkStored(group string, waiting []string) {
	p.Helper()
	m := p.mailing
	all := slices.Concat(m.recorded[group], waiting)
	if before := m.stored[group]; len(all) < len(before) || !slices.Equal(all[:len(before)], before) {
		p.fatalf("the messages of %q were %q, and are %q", group, idsIn(before), idsIn(all))
	}
	m.stored[group] = all
	target, _, _ := strings.Cut(group, "\x00")
	for _, id := range idsIn(m.recorded[group]) {
		if !m.received[target+" "+id] {
			p.fatalf("%s is recorded as sent, and %s has not received it", id, target)
		}
	}
}

// checkBatches compares what is stored of batches with what the players know.
func (p *play) checkBatches(waiting map[string][]string) {
	p.Helper()
	m, mailed, posts := p.mailing, p.all("mailed"), p.posts()
	sent := make(map[string]int)
	for group, members := range m.recorded {
		target, _, _ := strings.Cut(group, "\x00")
		sent[target] += len(members)
	}
	batches := 0
	for field, value := range mailed {
		kind, of, _ := strings.Cut(field, ":")
		switch open := m.open[of]; {
		case kind == "batch" && open == nil:
			p.fatalf("%q is open, and no worker has taken it", of)
		case kind == "batch":
			batches++
			upto := strings.SplitN(open.members[len(open.members)-1], "\x00", 4)[2]
			if want := upto + us + strconv.Itoa(open.tries); value != want {
				p.fatalf("the batch of %q is %q, want %q", of, value, want)
			}
		case kind == "sent" && value != strconv.Itoa(sent[of]):
			p.fatalf("%s messages to %s were sent, want %d", value, of, sent[of])
		case kind == "unsent":
			p.fatalf("%s is %s", field, value)
		}
	}
	audited := p.auditedDrops()
	for _, target := range playedTargets {
		for field, want := range map[string]int{"dropped:" + target.Target: m.dropped[target.Target], "silent:" + target.Target: m.silent(target.Target)} {
			if value := cmp.Or(mailed[field], "0"); value != strconv.Itoa(want) {
				p.fatalf("%s is %s, want %d", field, value, want)
			}
		}
		if got, want := audited[target.Target], m.audited[target.Target]; got != want {
			p.fatalf("the audit has %d dropped messages of %s, want %d", got, target.Target, want)
		}
	}
	if batches != len(m.open) {
		p.fatalf("%d batches are open, and %d were taken", batches, len(m.open))
	}
	for group := range waiting {
		if posts[group] == 0 {
			p.fatalf("no worker will take %q", group)
		}
	}
}

// settleMail sends all messages.
func (p *play) settleMail() {
	p.Helper()
	m := p.mailing
	for n := 0; len(p.posts()) > 0; n++ {
		if n > 50 {
			p.fatalf("messages are still not sent: %v", p.posts())
		}
		for group := range p.posts() {
			delete(m.held, group)
			if err := p.rdb.ZAddXX(p.Context(), p.key("post"), redis.Z{Score: 1, Member: group}).Err(); err != nil {
				p.fatalf("%v", err)
			}
		}
		p.takeMail([]string{"all", "few", "some"})
		for len(m.sending) > 0 {
			s := pick(m.rand, &m.sending)
			p.receive(&s)
			p.recordMail(s, true)
		}
		p.checkMail()
	}
	if left := p.waitingMail(); len(left) > 0 || len(m.open) > 0 {
		p.fatalf("messages that no worker takes: %v", left)
	}
}
