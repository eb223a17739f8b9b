package main

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lockstep/scheduler/ledger"
)

func TestRunPageShowsOutputWhileItIsPrinted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := open(t, s)
	b.visit(runPath(s.run))
	printed := ""
	for _, line := range []string{"bill 1001 is opened\n", "bill 1001 is settled\n"} {
		from := int64(len(printed))
		printed += line
		s.print(t, printed, from)
		b.await(line, fmt.Sprintf(`document.getElementById("follow").innerText.includes(%q)`, printed[:len(printed)-1]))
	}
}

// print passes on what the run has printed since a place, as its worker would: as soon as a client
// follows it, and all of it to a client that is new.
func (s *site) print(t *testing.T, printed string, from int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	upto := int64(len(printed))
	for {
		p := ledger.Passing{Run: s.run, Token: s.hold.Token(), Attempt: 1, First: from == 0}
		p.Printed = []ledger.Printed{{From: from, Upto: upto, Text: printed[from:]}}
		switch err := s.Ledger.PassOn(ctx, []ledger.Passing{p})[0]; {
		case err == nil:
			return
		case errors.Is(err, ledger.ErrFromTail):
			from = 0
		case !errors.Is(err, ledger.ErrNotFollowed):
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the page does not follow %s", s.run)
		case <-time.After(20 * time.Millisecond):
		}
	}
}
