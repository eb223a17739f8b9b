package jobs

import "context"

// runKey is the key of a run in a context.
type runKey struct{}

// InRun returns a context for work that belongs to a run: see [RunOf]. A [Registry] calls its
// handlers with such a context. A program needs it only where it works for a run outside a handler.
func InRun(ctx context.Context, run RunID) context.Context {
	return context.WithValue(ctx, runKey{}, run)
}

// RunOf returns the run for which a context was made, or "". That is the run of the handler that
// received the context, or an ancestor of it. A request for another run that is made with this
// context (ledger.Ledger.Enqueue) names the run as its parent by default.
func RunOf(ctx context.Context) RunID {
	run, _ := ctx.Value(runKey{}).(RunID)
	return run
}
