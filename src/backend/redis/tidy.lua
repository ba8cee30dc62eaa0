#!lua flags=allow-oom
-- Purges, and deletes records of ended holds and cancel marks that are older than necessary.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica
-- Returns  {1 if more should be purged immediately, the number of stored ended holds and cancel marks, the number of
--       holders and waiters, the time since a claim was last granted or ended|-1}
local function run()
  if not known then return {0, 0, 0, -1} end
  begin()
  local before = m.fin_from + m.mark_from
  prune_history(PRUNED_BY_TIDY)
  local more = unfinished() or m.fin_from + m.mark_from >= before + PRUNED_BY_TIDY
  local left = m.fin_to - m.fin_from + m.mark_to - m.mark_from
  return done({more and 1 or 0, left, m.holders + m.waiters, now - m.active})
end
