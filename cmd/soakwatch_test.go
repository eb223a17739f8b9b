package cmd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// The observations while a soak continues: why due runs do not start, how many deliveries there
// are, and what workers need.

const (
	watchEvery = 3 * time.Second
	watchRuns  = 20 // runs of each queue with reasons that are read, those due for longest

	longDue = 10 * time.Second // from then on a due run must have a readable reason
	// An unobstructed run starts soon, unless its delivery was lost: behind a backlog
	// that is noticed within a minute.
	startsWithin = 90 * time.Second

	spareDeliveries = 10_000 // that there may be beside one for each outstanding run
)

// watch reads what a person would read on the page, every few seconds.
type watch struct {
	samples, failed int // failed: Redis did not answer
	reasons         map[admin.WaitReason]int
	oldest          time.Duration // that a run was seen due
	problems        []string

	starting map[jobs.RunID]time.Time // since when a due run was seen without an obstacle
	stuck    []sighting               // such runs that stayed so for too long
	longest  time.Duration            // that a run stayed so

	deliveries, outstanding int64 // the most of each
}

// sighting is an unobstructed due run, from one sample to another.
type sighting struct {
	run      jobs.RunID
	from, to time.Time
}

// run samples until ctx ends.
func (w *watch) run(ctx context.Context, s *soak) {
	w.reasons, w.starting = make(map[admin.WaitReason]int), make(map[jobs.RunID]time.Time)
	conn := s.connection()
	for pause(ctx, watchEvery) {
		call, cancel := context.WithTimeout(ctx, watchEvery)
		w.samples++
		if err := errors.Join(w.count(call, conn), w.sample(call, conn, s)); err != nil {
			w.failed++
		}
		cancel()
	}
}

// found keeps what is wrong.
func (w *watch) found(format string, args ...any) {
	if len(w.problems) < 20 {
		w.problems = append(w.problems, time.Now().UTC().Format(time.StampMilli)+": "+fmt.Sprintf(format, args...))
	}
}

// count compares the deliveries in asynq's lists with the outstanding runs.
func (w *watch) count(ctx context.Context, conn *connection) error {
	var open *redis.IntCmd
	var counts []*redis.IntCmd
	_, err := conn.rdb.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		open = pipe.ZCard(ctx, "{lockstep}:open")
		for _, queue := range []string{"default", "bulk"} {
			for _, list := range []string{"pending", "active"} {
				counts = append(counts, pipe.LLen(ctx, "asynq:{"+queue+"}:"+list))
			}
			for _, set := range []string{"scheduled", "retry"} {
				counts = append(counts, pipe.ZCard(ctx, "asynq:{"+queue+"}:"+set))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var deliveries int64
	for _, count := range counts {
		deliveries += count.Val()
	}
	if most := open.Val() + spareDeliveries; deliveries > most {
		w.found("asynq has %d deliveries of %d outstanding runs, want %d at most", deliveries, open.Val(), most)
	}
	w.deliveries, w.outstanding = max(w.deliveries, deliveries), max(w.outstanding, open.Val())
	return nil
}

// sample reads why runs that have been due for long do not run.
func (w *watch) sample(ctx context.Context, conn *connection, s *soak) error {
	since := s.away.Load()
	away := since > 0 && time.Since(time.Unix(0, since)) > longDue // its session has ended
	queues, err := conn.ledger.DueQueues(ctx, 64, watchRuns)
	if err != nil {
		return err
	}
	now, err := conn.rdb.Time(ctx).Result()
	if err != nil {
		return err
	}
	seen := make(map[jobs.RunID]bool)
	for _, queue := range queues {
		for _, record := range queue.Oldest {
			due := now.Sub(record.DueSince)
			w.oldest = max(w.oldest, due)
			if due <= longDue {
				continue
			}
			run, _, err := conn.reader.Run(ctx, record.ID)
			if errors.Is(err, ledger.ErrUnknown) {
				continue
			}
			if err != nil {
				return err
			}
			if run.State != ledger.StateDue {
				continue
			}
			why := run.WaitingFor
			if why == nil || why.Reason == "" || strings.TrimSpace(why.Text) == "" {
				w.found("%s has been due for %s, and has no readable reason: %+v", run.ID, due, why)
				continue
			}
			w.reasons[why.Reason]++
			if run.Job == "rare" && away && s.away.Load() == since && why.Reason != admin.WaitsHandler && why.Reason != admin.WaitsWorker {
				w.found("%s has been due for %s without the worker that has its handler, and its reason is %s: %s", run.ID, due, why.Reason, why.Text)
			}
			if why.Reason == admin.WaitsStart {
				seen[run.ID] = true
				if _, known := w.starting[run.ID]; !known {
					w.starting[run.ID] = now
				}
			}
		}
	}
	for id, from := range w.starting {
		if !seen[id] {
			delete(w.starting, id)
			continue
		}
		w.longest = max(w.longest, now.Sub(from))
		if now.Sub(from) > startsWithin {
			w.stuck = append(w.stuck, sighting{id, from, now})
		}
	}
	return nil
}

// check reports what was found.
func (w *watch) check(s *soak) {
	s.t.Helper()
	for _, problem := range w.problems {
		s.t.Error(problem)
	}
	for _, one := range w.stuck {
		if !slices.ContainsFunc(s.trouble, func(t trouble) bool { return t.from.Before(one.to) && t.to.After(one.from) }) {
			s.t.Errorf("%s was due from %s to %s, and nothing was in its way", one.run, one.from, one.to)
		}
	}
	var reasons []string
	for _, reason := range slices.Sorted(maps.Keys(w.reasons)) {
		reasons = append(reasons, fmt.Sprintf("%s %d", reason, w.reasons[reason]))
	}
	s.t.Logf("%d samples, %d without an answer; reasons of runs due for more than %s: %s; a run was due for %s at most, and for %s with nothing in its way",
		w.samples, w.failed, longDue, strings.Join(reasons, ", "), w.oldest.Round(time.Second), w.longest.Round(time.Second))
	s.t.Logf("at most %d deliveries in asynq and %d outstanding runs", w.deliveries, w.outstanding)
	if w.samples > 4 && w.failed > w.samples*2/3 {
		s.t.Errorf("%d of %d samples got no answer", w.failed, w.samples)
	}
}

// scene describes what Redis stores about workers, queues and definitions.
func (s *soak) scene(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn := s.connection()
	var b strings.Builder
	sessions, now, err := conn.ledger.Space().Sessions(ctx)
	fmt.Fprintf(&b, "%s: %d sessions (%v)\n", now.UTC().Format(time.StampMilli), len(sessions), err)
	for _, session := range sessions {
		fmt.Fprintf(&b, "  %s, for %s: %s\n", session.ID, session.LeaseLeft, session.Card)
	}
	queues, err := conn.ledger.DueQueues(ctx, 64, watchRuns)
	if err != nil {
		fmt.Fprintln(&b, err)
	}
	for _, queue := range queues {
		var ids []string
		for _, record := range queue.Oldest {
			ids = append(ids, string(record.ID))
		}
		fmt.Fprintf(&b, "queue %s: %d due: %s\n", queue.Name, queue.Due, strings.Join(ids, " "))
		for _, list := range []string{"pending", "active"} {
			fmt.Fprintf(&b, "  %s: %d\n", list, conn.rdb.LLen(ctx, "asynq:{"+queue.Name+"}:"+list).Val())
		}
	}
	for _, hash := range []string{"ledger", "cursor"} {
		fields := conn.rdb.HGetAll(ctx, "{lockstep}:"+hash).Val()
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			fmt.Fprintf(&b, "%s %s: %q\n", hash, field, fields[field])
		}
	}
	return b.String()
}

// resources is what workers need.
type resources struct {
	last time.Time
	most int64 // KiB that a working child had resident
	who  string
}

// workerMemory bounds what a worker needs, in KiB. The runs of a livelock took 580 MB.
const workerMemory = 300 << 10

// measure reads the memory of the working children, at most every two seconds.
func (r *resources) measure(slots []*slot) {
	if time.Since(r.last) < 2*time.Second {
		return
	}
	r.last = time.Now()
	for _, one := range slots {
		if child := one.worker.worker(); child != 0 {
			if size := resident(child); size > r.most {
				r.most, r.who = size, value(one.env, "LOCKSTEP_WORKER__NAME")
			}
		}
	}
}

// resident returns how much memory of a process is resident, in KiB; 0 when it has ended.
func resident(pid int) int64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			size, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return size
		}
	}
	return 0
}

func (r *resources) check(t *testing.T) {
	t.Helper()
	t.Logf("a worker had %d MiB resident at most (%s)", r.most>>10, r.who)
	if r.most > workerMemory && !raceEnabled { // the race detector multiplies what a process needs
		t.Errorf("%s had %d MiB resident, want %d at most", r.who, r.most>>10, workerMemory>>10)
	}
}
