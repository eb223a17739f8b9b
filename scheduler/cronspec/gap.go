package cronspec

import "time"

// ShortestGap returns the shortest time between two ticks of the schedule among its next thousand
// ticks after 2024-01-01, or among those of twelve years if there are fewer. A clock change at
// another time may cause a shorter gap.
func (s *Schedule) ShortestGap() time.Duration {
	if s.every > 0 {
		return time.Duration(s.every) * time.Second
	}
	from := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	shortest := time.Duration(0)
	last := s.Next(from)
	for range 1000 {
		next := s.Next(last)
		if next.IsZero() {
			break
		}
		if gap := next.Sub(last); shortest == 0 || gap < shortest {
			shortest = gap
		}
		if last = next; last.Sub(from) > 12*365*24*time.Hour {
			break
		}
	}
	return shortest
}
