#!lua flags=allow-oom
-- Says that this replica still waits for the lock.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica
-- Returns  {when the hash was born, or 0 where there is none (any more), frees_in|-1, this replica's waiters whose
--       turn has come, some of them}
if not known then return {0, -1, {}} end
beat()
begin()
local turns = {}
for turn = m.head, math.min(m.edge, m.head + 63) do
  local id = get('s' .. digits(turn))
  if id and record('q' .. id).replica == replica then turns[#turns + 1] = id end
end
return done({m.born, m.frees > 0 and math.max(0, m.frees - m.clock) or -1, turns})
