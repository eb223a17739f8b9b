-- ended reports which sessions have ended.
-- ARGV: sessions
-- Replies: those of them that have ended, or that the space does not know
local list = {}
for i = 1, #ARGV do
  if not ends(ARGV[i]) then list[#list + 1] = ARGV[i] end
end
return list
