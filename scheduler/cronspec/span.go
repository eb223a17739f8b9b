package cronspec

import "time"

// Span is the ticks between two instants, as [Schedule.Between] returns them.
type Span struct {
	First, Last time.Time // zero without ticks
	Ticks       int       // how many they are
	More        bool      // they are more than Ticks; Last is the last of all
}

// Between returns the ticks after one instant and not after another. The number of ticks of cron
// text is exact up to most: computing that many takes some milliseconds for each 10,000. Beyond
// that, Ticks is most. The number for an interval is always exact.
func (s *Schedule) Between(after, upto time.Time, most int) Span {
	first := s.Next(after)
	if first.IsZero() || first.After(upto) {
		return Span{}
	}
	if s.every != 0 {
		last := upto.Unix() - modulo(upto.Unix(), s.every)
		return Span{First: first, Last: time.Unix(last, 0).UTC(), Ticks: int((last-first.Unix())/s.every) + 1}
	}
	span := Span{First: first, Last: first, Ticks: 1}
	for {
		tick := s.Next(span.Last)
		if tick.IsZero() || tick.After(upto) {
			return span
		}
		if span.Ticks >= most {
			span.Last, span.More = s.last(span.Last, upto), true
			return span
		}
		span.Last = tick
		span.Ticks++
	}
}

// last returns the last tick that is not after an instant, given an earlier instant with a tick in
// between. Next is monotonic, so it bisects for the last second with a next tick not after upto.
func (s *Schedule) last(earlier, upto time.Time) time.Time {
	from, to := earlier.Unix(), upto.Unix()
	for to-from > 1 {
		middle := from + (to-from)/2
		if tick := s.Next(time.Unix(middle, 0)); tick.IsZero() || tick.After(upto) {
			to = middle
		} else {
			from = middle
		}
	}
	return s.Next(time.Unix(from, 0))
}
