package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lockstep/locks/space"
)

// QueuePaused makes the runs of a queue that wait for their locks step back: from now on they get
// no offers, so that no lock stays reserved for a run that no worker would start, and others may
// pass them. They keep their tickets. It may be sent again.
func (l *Ledger) QueuePaused(ctx context.Context, queue string) error {
	if _, err := l.keep(ctx, "pause", queue); err != nil {
		return fmt.Errorf("keep back runs of the paused queue %s: %w", queue, err)
	}
	return nil
}

// QueueResumed undoes [Ledger.QueuePaused]: the runs of a queue are in their old places again. It
// returns those that were offered their locks in this step; if the reply is lost, the sweep finds
// them. It may be sent again.
func (l *Ledger) QueueResumed(ctx context.Context, queue string) ([]Due, error) {
	due, err := l.keep(ctx, "resume", queue)
	if err != nil {
		return nil, fmt.Errorf("resume the runs of queue %s: %w", queue, err)
	}
	return due, nil
}

// QueuesPaused sets which queues are paused, all of them, whichever client paused them: each
// difference from the known flags has the effect of [Ledger.QueuePaused] or [Ledger.QueueResumed].
// It may be sent again.
func (l *Ledger) QueuesPaused(ctx context.Context, queues []string) ([]Due, error) {
	due, err := l.keep(ctx, "all", queues...)
	if err != nil {
		return nil, fmt.Errorf("keep back runs of paused queues: %w", err)
	}
	return due, nil
}

// Paused returns the queues in which waiting runs get no offers.
func (l *Ledger) Paused(ctx context.Context) ([]string, error) {
	queues, err := l.space.Kept(ctx)
	if err != nil {
		return nil, fmt.Errorf("read which queues are paused: %w", err)
	}
	return queues, nil
}

// PausedSince returns when the present pause of each of some queues began, as far as that is known.
// A pause that another tool began counts from when a worker detected it.
func (l *Ledger) PausedSince(ctx context.Context, queues []string) (map[string]time.Time, error) {
	since := make(map[string]time.Time, len(queues))
	if len(queues) == 0 {
		return since, nil
	}
	fields := make([]string, len(queues))
	for i, queue := range queues {
		fields[i] = "pauses:" + queue
	}
	values, err := l.rdb.HMGet(ctx, l.prefix+"ledger", fields...).Result()
	if err != nil {
		return nil, fmt.Errorf("read since when queues are paused: %w", l.space.Explain(err))
	}
	for i, queue := range queues {
		pauses, _ := values[i].(string)
		from, open := strings.CutSuffix(pauses[strings.LastIndexByte(pauses, ' ')+1:], "-")
		if ms, err := strconv.ParseInt(from, 10, 64); open && err == nil {
			since[queue] = millis(ms)
		}
	}
	return since, nil
}

func (l *Ledger) keep(ctx context.Context, how string, queues ...string) ([]Due, error) {
	r := space.Read(l.run(ctx, "keep", "", appendTexts([]any{how}, queues...)...))
	return restDue(r), r.Err
}
