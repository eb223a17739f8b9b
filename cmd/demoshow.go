//go:build unix

package cmd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// demoHandlers returns the Go handlers of the demo's workers.
func demoHandlers() *jobs.Registry {
	reg := jobs.NewRegistry()
	jobs.Handle(reg, "demo.settle", func(ctx context.Context, run *jobs.Run[settleArgs]) error {
		for _, bill := range run.Args.BillIDs {
			if !pause(ctx, time.Second+time.Duration(rand.IntN(1000))*time.Millisecond) {
				return context.Cause(ctx)
			}
			fmt.Fprintf(run.Output(), "bill %d is settled, under token %s\n", bill, run.Token())
		}
		return nil
	})
	jobs.Handle(reg, "demo.report", func(ctx context.Context, run *jobs.Run[reportArgs]) error {
		if !pause(ctx, 500*time.Millisecond) {
			return context.Cause(ctx)
		}
		fmt.Fprintf(run.Output(), "report as %s for %s\n", run.Args.Format, run.Tick().Format(time.RFC3339))
		return nil
	})
	return reg
}

type settleArgs struct {
	BillIDs []int `json:"bill_ids"`
}

type reportArgs struct {
	Format string `json:"format"`
}

// produce asks for runs, as an application would, until ctx ends: a long haul whenever none is
// outstanding, and every few seconds some bills to settle, which overlap with the bills of other
// runs.
func (d *demo) produce(ctx context.Context) {
	for {
		hauls, err := d.conn.reader.Runs(ctx, admin.RunFilter{Job: "long-haul", Limit: 1})
		if err == nil && (len(hauls) == 0 || hauls[0].State.Final()) {
			d.ask(ctx, "long-haul", ledger.TriggerEnqueue, "")
		}
		if !pause(ctx, 2*time.Second+time.Duration(rand.IntN(3000))*time.Millisecond) {
			return
		}
		var bills []string
		for _, i := range rand.Perm(6)[:2+rand.IntN(2)] {
			bills = append(bills, strconv.Itoa(1001+i))
		}
		slices.Sort(bills)
		d.ask(ctx, "settle-bills", ledger.TriggerEnqueue, fmt.Sprintf(`{"bill_ids":[%s]}`, strings.Join(bills, ",")))
	}
}

func (d *demo) ask(ctx context.Context, job string, trigger ledger.Trigger, args string) {
	record, err := d.conn.ledger.Job(ctx, job)
	if err == nil {
		request := ledger.Request{Job: record.Job, ID: jobs.NewRunName(time.Now()), Trigger: trigger}
		if args != "" {
			request.Args = []byte(args)
		}
		_, err = d.acts.Enqueue(ctx, request, admin.Actor{Who: "demo"})
	}
	if err != nil && ctx.Err() == nil {
		d.out.say(red, "%s could not be enqueued: %v", job, err)
	}
}

// told is what has been printed about a run.
type told struct {
	attempts int
	waits    bool
	final    bool
}

// tell prints what happens, until ctx ends: a line for each run that ends, and one for each event
// worth seeing before that: the run waits, is retried, or is a long one.
func (d *demo) tell(ctx context.Context) {
	const atATime = 200 // at a time; a demo has fewer outstanding runs
	seen := make(map[jobs.RunID]told)
	var there []admin.Worker
	for pause(ctx, 200*time.Millisecond) {
		runs, err := d.conn.reader.Runs(ctx, admin.RunFilter{Limit: atATime})
		if err != nil {
			continue // not reported: only the end of the demo can be the cause
		}
		if workers, err := d.conn.reader.Workers(ctx); err == nil {
			d.tellWorkers(there, workers)
			there = workers
		}
		waits, _ := d.conn.reader.Waits(ctx)
		now := make(map[jobs.RunID]told, len(runs))
		for _, run := range slices.Backward(runs) {
			now[run.ID] = d.tellRun(&run, seen[run.ID], there, waits)
		}
		seen = now
	}
}

// tellWorkers reports the workers that have died and those that have replaced them.
func (d *demo) tellWorkers(before, now []admin.Worker) {
	for _, w := range before {
		if pidOf(now, w.ID) == 0 && w.State == "ready" {
			d.out.say(red, "%s (pid %d) has died: its runs move to another worker", w.ID, w.PID)
		}
	}
	for _, w := range now {
		if pidOf(before, w.ID) == 0 && len(before) > 0 {
			d.out.say(cyan, "%s (pid %d) has joined", w.ID, w.PID)
		}
	}
}

// tellRun prints what is new about a run and returns what has been printed about it.
func (d *demo) tellRun(run *admin.Run, said told, workers []admin.Worker, waits []admin.Wait) told {
	attempts := len(run.Attempts)
	if run.State == ledger.StateWaiting && !said.waits {
		if i := slices.IndexFunc(waits, func(w admin.Wait) bool { return w.RunID == admin.Text(run.ID) }); i >= 0 && len(waits[i].BlockedBy) > 0 {
			said.waits = true
			others := ""
			if n := len(waits[i].BlockedBy); n > 1 {
				others = fmt.Sprintf(" and %d more", n-1)
			}
			d.out.say(yellow, "%s waits for %s, blocked by %s%s", run.ID, strings.Join(waits[i].Wants, " "), waits[i].BlockedBy[0], others)
		}
	}
	// The outcome of an attempt is printed when the next one starts, or with the end of the run.
	if attempts > max(said.attempts, 1) {
		before, last := run.Attempts[attempts-2], run.Attempts[attempts-1]
		switch before.Outcome {
		case ledger.AttemptCrashed, ledger.AttemptLostLease:
			d.out.say(cyan, "%s has moved from %s to %s: attempt %d, token %s after %s", run.ID, before.Worker, last.Worker, last.Number, last.Token, before.Token)
		default:
			d.out.say("", "%s attempt %d %s on %s (%s); it is retried", run.ID, before.Number, before.Outcome, before.Worker, firstLine(string(before.Error)))
		}
	}
	if run.State == ledger.StateRunning && run.Job == "long-haul" && attempts > said.attempts {
		worker := run.Attempts[attempts-1].Worker
		if pid := pidOf(workers, worker); pid != 0 {
			d.out.say(cyan, "%s runs for a minute on %s (pid %d): kill -9 %[3]d and see it move", run.ID, worker, pid)
		}
	}
	said.attempts = attempts
	if run.State.Final() && !said.final {
		said.final = true
		color := ""
		if run.State.Facts().Tone == ledger.ToneBad {
			color = red
		}
		d.out.say(color, "%s", d.ending(run))
	}
	return said
}

func pidOf(workers []admin.Worker, id locks.SessionID) int {
	for _, w := range workers {
		if w.ID == id {
			return w.PID
		}
	}
	return 0
}

// ending describes how a run ended, and on which worker.
func (d *demo) ending(run *admin.Run) string {
	text := fmt.Sprintf("%s %s", run.ID, run.State)
	if n := len(run.Attempts); n > 0 {
		last := run.Attempts[n-1]
		text += fmt.Sprintf(" on %s in %s", last.Worker, admin.Span(last.FinishedAt.Sub(last.StartedAt.Time)))
		if n > 1 {
			text += fmt.Sprintf(", attempt %d", last.Number)
		}
	}
	return sum(": ", sum(" ", text, compactJSON(run.Args)), firstLine(run.Why()))
}
