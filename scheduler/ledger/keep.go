package ledger

import (
	"context"
	"fmt"

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

func (l *Ledger) keep(ctx context.Context, how string, queues ...string) ([]Due, error) {
	r := space.Read(l.run(ctx, "keep", "", appendTexts([]any{how}, queues...)...))
	return restDue(r), r.Err
}
