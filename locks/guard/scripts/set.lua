-- set sets a key.
-- KEYS: 1 the key
-- ARGV: 1 its value  2 when it expires, ms from now; 0: never
-- Replies: 1
if ARGV[2] == '0' then
  redis.call('SET', KEYS[1], ARGV[1])
else
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return 1
