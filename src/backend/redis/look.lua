#!lua flags=allow-oom
-- The queue as it is now.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 how many holders at most, 5 how many waiters, 6 for how long somebody
--       watches, or 0
-- Returns  {holder count, waiter count, holders, waiters, changes, idle for, frees_in|-1}; a holder is {claim, mode,
--       permits, limit, token, remaining, holds, since, shown}, a waiter {claim, mode, permits, limit, since, shown}
local most_holders, most_waiters, watching = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
if not known and watching == 0 then return {0, 0, {}, {}, 0, -1, -1} end
begin()
if watching > 0 then m.watched = math.max(m.watched, m.clock + watching) end
local holders, waiters = {}, {}
for slot = 1, m.holders do
  local id = get('o' .. digits(slot))
  holders[slot] = {id, record('h' .. id)}
end
table.sort(holders, function(a, b) return a[2].token < b[2].token end)
local shown = {}
for at = 1, math.min(most_holders, #holders) do shown[at] = holder_view(holders[at][1], holders[at][2]) end
local turn = m.head
while turn <= m.tail and #waiters < math.min(most_waiters, m.waiters) do
  local id = get('s' .. digits(turn))
  if id then
    local q = record('q' .. id)
    waiters[#waiters + 1] = {id, q.mode, q.permits, q.limit, q.since, get('d' .. id) or ''}
  end
  turn = turn + 1
end
return done({
  m.holders, m.waiters, shown, waiters, m.changes, now - m.active, m.frees > 0 and m.frees - m.clock or -1,
})
