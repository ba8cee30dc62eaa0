#!lua flags=allow-oom
-- Purges, and forgets what is remembered of ended calls for longer than it need be.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica
-- Returns  {1 where more is to be purged at once, how many ends and marks are remembered, holders and waiters, how long
--       there was none|-1}
local function run()
  if not known then return {0, 0, 0, -1} end
  begin()
  local before = m.fin_from + m.mark_from
  forget(TIDIED)
  local more = unfinished() or m.fin_from + m.mark_from >= before + TIDIED
  local left = m.fin_to - m.fin_from + m.mark_to - m.mark_from
  return done({more and 1 or 0, left, m.holders + m.waiters, now - m.active})
end
