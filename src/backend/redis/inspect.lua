#!lua flags=allow-oom
-- Inspects: reads the queue, or a part of it.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 limit of holders, 5 limit of waiters, 6 for how long to publish
--       changes to watchers, or 0; 7, 8 the holder and the waiter after which to continue, or '', 9 the shape in the
--       reply that contained these, or ''
-- Returns  {again}: only purged | {moved}: the shape has changed | {holder count, waiter count, holders, waiters,
--       changes, idle time|-1, frees_in|-1, shape}; at most MAX_LISTED holders and waiters together; a holder is
--       {claim, mode, permits, limit, token, remaining, holds, since, description}, a waiter
--       {claim, mode, permits, limit, since, description}
local function run()
  local most_holders, most_waiters, watching = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
  if not known and watching == 0 then return {0, 0, {}, {}, 0, -1, -1, 0} end
  begin()
  if overdue() then return done({'again'}) end
  if watching > 0 and m.watched < m.clock + watching / 2 then
    m.watched, changed = m.clock + watching, true
  end
  if ARGV[9] ~= '' and ARGV[9] ~= digits(m.shape) then return done({'moved'}) end
  local holders, waiters, left = {}, {}, MAX_LISTED
  local function after(id, first)
    if id == '' then return first end
    local _, next = neighbours('n', id)
    return next
  end
  local id = after(ARGV[7], m.eldest)
  while id ~= '' and #holders < most_holders and left > 0 do
    holders[#holders + 1] = holder_view(id, required_record('h' .. id))
    id, left = after(id), left - 1
  end
  id = after(ARGV[8], m.front)
  while id ~= '' and #waiters < most_waiters and left > 0 do
    local q = required_record('q' .. id)
    waiters[#waiters + 1] = {id, q.mode, q.permits, q.limit, q.since, get('d' .. id) or ''}
    id, left = after(id), left - 1
  end
  return done({m.holders, m.waiters, holders, waiters, m.changes, now - m.active, frees_in(), m.shape})
end
