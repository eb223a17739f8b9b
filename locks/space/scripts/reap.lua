-- reap handles due entries. A session that waits calls it when the next entry is due, so that no
-- wait outlives its cause.
-- ARGV: none
-- Replies: ms to the next due entry, or -1
local S = space()
S.reap()
S.tell()
return soonest()
