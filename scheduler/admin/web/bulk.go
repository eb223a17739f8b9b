package web

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

const bulkLimit = 2 * time.Minute // how long an act on many runs may take

// bulkOrder is the body of a request that acts on all runs that its parameters find.
type bulkOrder struct {
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run"`
	Expect *int   `json:"expect"` // how many runs must match; null: any number
}

func (o bulkOrder) tell(l *line) { l.why, l.dry = o.Reason, o.DryRun }

// bulk returns an act on all runs that the parameters of a request find.
func (s *Server) bulk(find func(context.Context, admin.RunFilter) (*admin.Match, error),
	act func(context.Context, *admin.Match, string, admin.Actor) (*admin.Bulk, error)) func(context.Context, *http.Request, bulkOrder, admin.Actor) (int, any, error) {
	return func(ctx context.Context, r *http.Request, body bulkOrder, by admin.Actor) (int, any, error) {
		q, err := ask(r, admin.RunFilters...)
		if err != nil {
			return 0, nil, err
		}
		filter, err := s.o.Reader.ReadFilter(ctx, q.value)
		if err != nil {
			return 0, nil, err
		}
		match, err := find(ctx, filter)
		if err != nil {
			return 0, nil, err
		}
		if n := len(match.Runs); body.Expect != nil && *body.Expect != n {
			return 0, nil, fmt.Errorf("%w: %d runs were expected, and %d match now; nothing was done", ledger.ErrRefused, *body.Expect, n)
		}
		if body.DryRun {
			outcome := match.Outcome()
			outcome.DryRun = true
			return http.StatusOK, outcome, nil
		}
		where, err := url.QueryUnescape(q.query.Encode())
		if err != nil {
			return 0, nil, errors.Join(errBroken, err)
		}
		outcome, err := act(ctx, match, where, by)
		return http.StatusOK, outcome, err
	}
}
