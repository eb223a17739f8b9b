package web

import (
	"context"
	"fmt"
	"net/http"
	"strconv"

	"lockstep/jobs"
	"lockstep/scheduler/admin"
	"lockstep/scheduler/ledger"
)

// output answers with the end of the output of an attempt, or of the last one that has printed
// something. A header has the number of that attempt.
func (s *Server) output(w http.ResponseWriter, r *http.Request) error {
	q, err := ask(r, "attempt")
	if err != nil {
		return err
	}
	attempt := 0
	if text := q.value("attempt"); text != "" {
		if attempt, err = strconv.Atoi(text); err != nil || attempt < 1 {
			return fmt.Errorf("%w: attempt %q: it must be the number of an attempt, from 1", admin.ErrInvalid, text)
		}
	}
	id := q.path("id")
	output, err := shared(r.Context(), s.read, fmt.Sprintf("output %d %s", attempt, id), func(ctx context.Context) (ledger.Output, error) {
		return s.o.Reader.Output(ctx, jobs.RunID(id), attempt)
	})
	if err != nil {
		return err
	}
	if output.Attempt > 0 {
		w.Header().Set("Lockstep-Attempt", strconv.Itoa(output.Attempt))
	}
	write(w, http.StatusOK, plainText, []byte(output.Text))
	return nil
}
