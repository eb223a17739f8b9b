package queue

import "time"

// SetClock replaces the clock of a client.
func (c *Client) SetClock(now func() time.Time) { c.now = now }

const NobodyAfter = nobodyAfter
