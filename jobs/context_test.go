package jobs_test

import (
	"context"
	"testing"

	"lockstep/jobs"
)

func TestAHandlersContextNamesItsRun(t *testing.T) {
	t.Parallel()
	reg := jobs.NewRegistry()
	var got, within, outside jobs.RunID
	jobs.Handle(reg, "asks", func(ctx context.Context, _ *jobs.Run[struct{}]) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		got = jobs.RunOf(ctx)
		within = jobs.RunOf(jobs.InRun(ctx, "other#1"))
		return nil
	})
	attempt := attemptOf("asks", "")
	attempt.Run = "asks#1"
	if err := reg.Execute(t.Context(), attempt); err != nil {
		t.Fatal(err)
	}
	outside = jobs.RunOf(t.Context())
	if got != "asks#1" || within != "other#1" || outside != "" {
		t.Errorf("in the handler %q, of another run %q, outside %q, want asks#1, other#1 and none", got, within, outside)
	}
}
