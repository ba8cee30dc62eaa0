#!lua flags=allow-oom
-- Says that this replica still waits for the lock, and purges.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica
-- Returns  {when the hash was born, or 0 where there is none (any more), frees_in|-1, this replica's waiters whose
--       turn has come, some of them, how many waiters were taken out by others than their calls, 1 where more is
--       to be purged at once}
if not known then return {0, -1, {}, 0, 0} end
beat()
begin()
local turns, id = {}, m.front
for _ = 1, TOLD do
  local q = id ~= '' and needed('q' .. id)
  if not q or q.turn > m.edge then break end
  if q.replica == replica then turns[#turns + 1] = id end
  local _, after = neighbours('n', id)
  id = after
end
return done({m.born, frees_in(), turns, m.lost, unfinished() and 1 or 0})
