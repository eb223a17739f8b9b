package queue

import "time"

// SetClock makes a client measure by another clock.
func (c *Client) SetClock(now func() time.Time) { c.now = now }

const NobodyAfter = nobodyAfter
