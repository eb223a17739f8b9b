package scheduler

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"time"

	"lockstep/jobs"
)

// serverTime estimates the server's clock: the time in its last reply, plus the time since then by
// this machine's clock. It is never ahead of the server by more than the clocks' rates differ since
// that reply, so a tick is seldom tried early.
type serverTime struct {
	told time.Time // time in the server's reply
	at   time.Time // arrival of that reply; with a monotonic reading
}

func (t *serverTime) set(told time.Time) { t.told, t.at = told, time.Now() }
func (t *serverTime) now() time.Time     { return t.told.Add(time.Since(t.at)) }

// alarm is the next tick of one job.
type alarm struct {
	job    *jobs.Job
	next   func(time.Time) time.Time // the first tick after an instant; zero: never again
	cursor time.Time                 // as far as known here
	off    bool                      // another definition decides the job's ticks
	at     time.Time                 // next(cursor); zero: never, or it is off
	tie    uint32                    // random, see alarmHeap
	index  int                       // in the heap
}

// alarms is a heap of alarms by their time, and an index by job. The zero value is ready.
type alarms struct {
	order  alarmHeap
	byName map[string]*alarm
}

// add inserts an alarm without a cursor: it never goes off before move gives it one.
func (a *alarms) add(one *alarm) {
	if a.byName == nil {
		a.byName = make(map[string]*alarm)
	}
	a.byName[one.job.Name] = one
	one.tie = rand.Uint32()
	heap.Push(&a.order, one)
}

// move sets the cursor of a job, forward or back: the ledger is the authority. It ignores unknown
// jobs, which belong to other workers.
func (a *alarms) move(job string, cursor time.Time) {
	one := a.byName[job]
	if one == nil || one.cursor.Equal(cursor) {
		return
	}
	one.cursor = cursor
	a.set(one)
}

// turn switches the alarm of a job on or off.
func (a *alarms) turn(job string, off bool) {
	one := a.byName[job]
	if one == nil || one.off == off {
		return
	}
	one.off = off
	a.set(one)
}

func (a *alarms) set(one *alarm) {
	one.at = time.Time{}
	if !one.off && !one.cursor.IsZero() {
		one.at = one.next(one.cursor)
	}
	heap.Fix(&a.order, one.index)
}

// due returns, in no particular order, at most this number of the alarms that are not after an
// instant. They stay in the heap until they are moved.
func (a *alarms) due(now time.Time, most int) []*alarm {
	var due []*alarm
	// down the heap, along the due alarms
	for level := []int{0}; len(level) > 0 && len(due) < most; {
		i := level[0]
		level = level[1:]
		if i >= len(a.order) || a.order[i].at.IsZero() || a.order[i].at.After(now) {
			continue
		}
		due = append(due, a.order[i])
		level = append(level, 2*i+1, 2*i+2)
	}
	return due
}

// until returns the time from now to the first alarm; an hour when there is none.
func (a *alarms) until(now time.Time) time.Duration {
	if len(a.order) == 0 || a.order[0].at.IsZero() {
		return time.Hour
	}
	return max(0, a.order[0].at.Sub(now))
}

// compareTicks orders ticks by time. The zero time, which never comes, is the last.
func compareTicks(a, b time.Time) int {
	if a.IsZero() || b.IsZero() {
		return b.Compare(a)
	}
	return a.Compare(b)
}

// alarmHeap is a heap: alarms that never go off come last. Those of one instant are in an order
// that differs from worker to worker: when so many ticks come at once that all workers create the
// overdue ones, each creates others.
type alarmHeap []*alarm

func (h alarmHeap) Len() int { return len(h) }
func (h alarmHeap) Less(i, j int) bool {
	return cmp.Or(compareTicks(h[i].at, h[j].at), cmp.Compare(h[i].tie, h[j].tie)) < 0
}
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}
func (h *alarmHeap) Push(x any) {
	one := x.(*alarm)
	one.index = len(*h)
	*h = append(*h, one)
}
func (h *alarmHeap) Pop() any {
	panic("scheduler: alarms are moved, never taken out") // heap.Interface requires the method
}
