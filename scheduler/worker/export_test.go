package worker

import "context"

// CloseSession ends the session of a worker whose Run has returned a [StuckError], as the end of
// its process does.
func (w *Worker) CloseSession(ctx context.Context) { w.close(ctx) }
