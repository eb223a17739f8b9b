package repeats

import (
	"fmt"
	"testing"
	"time"
)

func TestTalliesAreBoundedAndForget(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	counts := NewCounter[int](time.Minute, 3)
	for i := range 5 {
		first, known := counts.First(fmt.Sprint(i), now)
		if !first || known != (i < 3) {
			t.Errorf("kind %d: first %t, known %t", i, first, known)
		}
	}
	counts.Count("1", 7, now)
	counts.Count("1", 8, now)
	if due := counts.Due(now.Add(59*time.Second), false); len(due) != 0 {
		t.Errorf("%v is due early", due)
	}
	now = now.Add(time.Minute)
	if due := counts.Due(now, false); len(due) != 1 || due[0].Times != 2 || due[0].Last != 8 {
		t.Errorf("got %v, want two of kind 1", due)
	}
	if first, _ := counts.First("1", now); first || len(counts.open) != 1 {
		t.Errorf("first %t, %d kinds, want kind 1 counted on and the others forgotten", first, len(counts.open))
	}
	if counts.Due(now.Add(time.Minute), false); len(counts.open) != 0 {
		t.Error("a kind that does not come again is not forgotten")
	}
}
