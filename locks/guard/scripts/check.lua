-- check records a token, and does nothing else.
-- Replies: 1
return 1
