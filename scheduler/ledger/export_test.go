package ledger

import "lockstep/locks"

// A FastPath is a script that has one: its two parts, and its digest whole.
type FastPath struct{ Name, Fast, Slow, Hash string }

// FastPaths are all of them.
var FastPaths = []FastPath{
	{"claim", claimFast, locks.Link(shared, claimSource), claimScript().Hash()},
	{"finish", finishFast, locks.Link(shared, finishSource), finishScript().Hash()},
	{"enqueue", enqueueFast, locks.Link(shared, enqueueSource), enqueueScript().Hash()},
}
