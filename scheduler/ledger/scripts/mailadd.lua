-- mailadd stores a message that is about no job: a worker reports something.
-- ARGV: 1 what names the message  2 event  3 worker  4 text  5... targets
-- Replies: ok
for i = 5, #ARGV do
  post(ARGV[i], '', {M_TEXT{ID = ARGV[1]; EVENT = ARGV[2]; AT = ms; WORKER = ARGV[3]; REASON = ARGV[4]}})
end
return {'ok'}
