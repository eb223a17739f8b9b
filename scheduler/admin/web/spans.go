package web

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"lockstep/scheduler/admin"
)

const spanLimit = 2 * time.Minute // how long an act on many ticks may take

// spanOrder is the body of a request that acts on the ticks of a job, both ends included.
type spanOrder struct {
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	NewKeys bool      `json:"new_keys"` // of a replay: repeat also the effects under the old keys
	Reason  string    `json:"reason"`
	DryRun  bool      `json:"dry_run"`
}

func (o spanOrder) tell(l *line) { l.why, l.dry = o.Reason, o.DryRun }

// outcome begins the reply to an order.
func (o spanOrder) outcome(r *http.Request) (*admin.TickSpan, error) {
	if o.From.IsZero() || o.To.IsZero() {
		return nil, fmt.Errorf("%w: names no from and to, the times of the first and of the last tick", errBody)
	}
	return &admin.TickSpan{Job: r.PathValue("job"), From: admin.Instant{Time: o.From}, To: admin.Instant{Time: o.To}, DryRun: o.DryRun}, nil
}

// replay runs the ticks of a span (again).
func (s *Server) replay(ctx context.Context, r *http.Request, body spanOrder, by admin.Actor) (int, any, error) {
	span, err := body.outcome(r)
	if err != nil {
		return 0, nil, err
	}
	if span.Ticks, err = s.o.Operator.ToReplay(ctx, span.Job, body.From, body.To); err == nil && !body.DryRun {
		span.Runs, err = s.o.Operator.Replay(ctx, span.Job, body.From, body.To, admin.ReplayKeys(body.NewKeys), by)
	}
	return http.StatusOK, span, err
}

// skip declares that the ticks of a span do not run.
func (s *Server) skip(ctx context.Context, r *http.Request, body spanOrder, by admin.Actor) (int, any, error) {
	span, err := body.outcome(r)
	if err == nil && body.NewKeys {
		err = fmt.Errorf("%w: new_keys is for a replay", errBody)
	}
	if err != nil {
		return 0, nil, err
	}
	if span.Ticks, err = s.o.Operator.ToSkip(ctx, span.Job, body.From, body.To); err == nil && !body.DryRun {
		span.Runs, err = s.o.Operator.Skip(ctx, span.Job, body.From, body.To, by)
	}
	return http.StatusOK, span, err
}
