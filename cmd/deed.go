package cmd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"lockstep/jobs"
	"lockstep/locks"
	"lockstep/scheduler/admin"
)

// deed is an act that was checked against the current state and is not done yet. A command carries
// it out ([action.carryOut]); `lockstep top` shows it first, and carries it out after a key.
type deed struct {
	effect string // what it does, as a clause that names its object
	asks   bool   // a command asks for confirmation
	reason bool   // it needs a reason

	// do acts. It returns what it did, or, if news is false, why there was nothing to do.
	do func(ctx context.Context, o *admin.Operator, by admin.Actor) (said string, news bool, err error)

	warning string // valid once it is done; "" for most
}

// carryOut asks, if the deed asks, and does it.
func (a *action) carryOut(ctx context.Context, d *deed) error {
	if d.asks {
		if err := a.confirm(ctx, "%s", d.effect); err != nil {
			return err
		}
	}
	said, news, err := d.do(ctx, a.Operator, a.by())
	if err != nil {
		return err
	}
	if d.warning != "" {
		fmt.Fprintln(a.stderr, "lockstep:", d.warning)
	}
	return a.said(news, said, said)
}

// toggle is an act that pauses or resumes a job or a queue.
type toggle struct {
	do func(o *admin.Operator, ctx context.Context, name string, by admin.Actor) (news bool, err error)
	// explains an unknown name
	unknown func(conn *connection, ctx context.Context, name string, err error) error
	// appended to the name
	effect, done, already string
}

func pauseJob() toggle {
	return toggle{(*admin.Operator).PauseJob, (*connection).noJob,
		" skips its ticks from now on; its runs continue", " is paused", " is already paused"}
}

func resumeJob() toggle {
	return toggle{(*admin.Operator).ResumeJob, (*connection).noJob, " runs its ticks again", " is resumed", " is not paused"}
}

func pauseQueue() toggle {
	return toggle{(*admin.Operator).PauseQueue, (*connection).noQueue,
		" starts no runs from now on; running runs continue", " is paused", " is already paused"}
}

func resumeQueue() toggle {
	return toggle{(*admin.Operator).ResumeQueue, (*connection).noQueue, " starts its runs again", " is resumed", " is not paused"}
}

func (c *connection) turning(of toggle, name string) *deed {
	return &deed{effect: name + of.effect, do: func(ctx context.Context, o *admin.Operator, by admin.Actor) (string, bool, error) {
		news, err := of.do(o, ctx, name, by)
		switch {
		case err != nil:
			return "", false, of.unknown(c, ctx, name, err)
		case !news:
			return name + of.already, false, nil
		}
		return name + of.done, true, nil
	}}
}

func (c *connection) canceling(ctx context.Context, id jobs.RunID) (*deed, error) {
	record, err := c.ledger.FindRecord(ctx, id)
	if err != nil {
		return nil, noRun(string(id), err)
	}
	return &deed{
		effect: fmt.Sprintf("run %s, which is %s, ends and is not retried", id, record.State),
		asks:   !record.State.Final(), // a final run is refused anyway
		do: func(ctx context.Context, o *admin.Operator, by admin.Actor) (string, bool, error) {
			asked, err := o.CancelRun(ctx, id, by)
			switch {
			case err != nil:
				return "", false, noRun(string(id), err)
			case asked:
				return fmt.Sprintf("%s is asked to stop", id), true, nil
			}
			return fmt.Sprintf("%s is canceled", id), true, nil
		},
	}, nil
}

func (c *connection) retrying(ctx context.Context, id jobs.RunID) (*deed, error) {
	record, err := c.ledger.FindRecord(ctx, id)
	if err != nil {
		return nil, noRun(string(id), err)
	}
	return &deed{
		effect: fmt.Sprintf("run %s, which is %s, runs again under its ID", id, record.State),
		do: func(ctx context.Context, o *admin.Operator, by admin.Actor) (string, bool, error) {
			err := o.RetryRun(ctx, id, by)
			switch {
			case jobs.IsPermanent(err):
				return "", false, refuse("%w", err)
			case err != nil:
				return "", false, noRun(string(id), err)
			}
			return string(id) + " is due", true, nil
		},
	}, nil
}

func (c *connection) draining(ctx context.Context, id string) (*deed, error) {
	worker, err := c.worker(ctx, id)
	if err != nil {
		return nil, err
	}
	return &deed{
		effect: fmt.Sprintf("worker %s, which has %s in progress, exits", worker.ID, many(worker.Busy, "run")),
		asks:   true,
		do: func(ctx context.Context, o *admin.Operator, by admin.Actor) (string, bool, error) {
			news, err := o.DrainWorker(ctx, worker.ID, by)
			if err != nil || news {
				return string(worker.ID) + " is asked to drain", news, err
			}
			return string(worker.ID) + " was asked already", false, nil
		},
	}, nil
}

// releasing is a deed on the hold of a lock under a token, which must be the current one.
func (c *connection) releasing(ctx context.Context, name string, token locks.Token, force bool) (*deed, error) {
	lock, err := c.reader.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(lock.Holders, func(h admin.Holder) bool { return h.Token == token })
	switch {
	case at < 0 && len(lock.Holders) == 0:
		return nil, refuse("%s is not held (any more); nothing was done", name)
	case at < 0:
		return nil, refuse("%s is not held under token %s (any more), but under %s by %s; nothing was done",
			name, token, lock.Holders[0].Token, lock.Holders[0].Worker)
	}
	h := &lock.Holders[at]
	who := fmt.Sprintf("%s (%s)", h.Worker, sum(", ", h.Purpose(), "for "+admin.Age(time.Duration(h.Held))))
	what := bundleName(name, len(h.Locks()))
	d := &deed{
		effect: fmt.Sprintf("this ends the work of %s, and %s passes on when the holder has confirmed that (%s)", who, what, lock.AfterRelease(h)),
		asks:   true, reason: true,
	}
	said := fmt.Sprintf("%s is asked to release %s", h.Worker, what)
	if force {
		d.effect = fmt.Sprintf("%s passes on at once (%s), while %s may still work under it: two holders at the same time, "+
			"and only a target that checks the fencing token refuses the writes of the old one", what, lock.AfterRelease(h), who)
		d.warning = fmt.Sprintf("until %s learns of that, two holders may work at the same time", h.Worker)
		said = fmt.Sprintf("%s is taken from %s", what, h.Worker)
	}
	d.do = func(ctx context.Context, o *admin.Operator, by admin.Actor) (string, bool, error) {
		_, err := o.ReleaseLock(ctx, name, token, force, by)
		return said, err == nil, err
	}
	return d, nil
}
