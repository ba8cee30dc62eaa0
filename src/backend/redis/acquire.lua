#!lua
-- Acquires: appends a claim to the queue and grants it if it fits, or adopts the existing claim with its id.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 id, 5 call, 6 secret, 7 retryable 0|1,
--       8 mode x|s|p, 9 permits, 10 limit, 11 reentrant 0|1, 12 ttl, 13 description, 14 owner and identity,
--       15 wait 0|1, 16 queue limit, 17 finished limit, 18 holds limit
-- Returns  {held, claim, mode, secret, token, ttl, holds, fresh} | {waiting, position, frees_in|-1, born, lost}
--       | {again}: only purged | {busy, holder?} | {full, limit} | {mismatch, mode, permits, limit} | {finished, cause}
--       | {other, mode, permits, limit, reentrant} | {left}
local id, call_id, wait, c
local function differs(existing)
  return existing.mode ~= c.mode or existing.permits ~= c.permits or existing.limit ~= c.limit
    or existing.reentrant ~= c.reentrant
end
local function other(existing)
  return {'other', existing.mode, existing.permits, existing.limit, existing.reentrant and 1 or 0}
end
local function busy()
  if m.holders == 0 then return {'busy'} end
  return {'busy', holder_view(m.eldest, required_record('h' .. m.eldest))}
end

local function adopt_waiter(q)
  if differs(q) then return other(q) end
  local older = {call = q.call, replica = q.replica}
  q.call, q.secret, q.ttl, q.replica = call_id, c.secret, c.ttl, replica
  put('q' .. id, pack(q))
  put('d' .. id, ARGV[13])
  notify('n', id, older)
  count_taken(id)
  if q.turn <= m.edge then return grant_waiter(id, q) end
  if wait then
    heartbeat()
    return waiting_reply(q)
  end
  end_waiter(id, q)
  mark(older.call)
  return busy()
end
local function adopt_hold(claim, h, hold)
  if hold.call == call_id then return held_reply(claim, h, hold, true) end
  if differs(h) then return other(h) end
  hold.adopted, hold.call = true, call_id
  put('h' .. claim, pack(h))
  return held_reply(claim, h, hold, false)
end
local function join(claim)
  local h = required_record('h' .. claim)
  if differs(h) then return other(h) end
  if #h.holds >= tonumber(ARGV[18]) then return {'full', tonumber(ARGV[18])} end
  local hold = {id = id, secret = c.secret, call = call_id, retryable = c.retryable, ttl = c.ttl, adopted = false}
  h.holds[#h.holds + 1] = hold
  h.expires = math.max(h.expires, m.clock + c.ttl)
  put('h' .. claim, pack(h))
  -- A hold with the claim's own id needs no j field, and its end deletes none.
  if id ~= claim then put('j' .. id, claim) end
  extend_expiry(claim, h)
  return held_reply(claim, h, hold, false)
end

-- Returns a mismatch if the queue has shared claims and this one is of a semaphore, or the reverse. The limit and the
-- permits in it are those of the latest semaphore claim.
local function find_mismatch()
  if c.mode == 's' and m.p > 0 then return {'mismatch', 'p', m.ppermits, m.plimit} end
  if c.mode == 'p' and m.s > 0 then return {'mismatch', 's', 1, c.limit} end
end
local function grant_or_enqueue()
  local mismatch = find_mismatch()
  if mismatch then return mismatch end
  local fit, most = beyond() == 0 and fits(c), tonumber(ARGV[16])
  if not (fit or wait) then return busy() end
  if m.holders + m.waiters >= most then return {'full', most} end
  count(c, 1)
  if fit then
    add_to_prefix(c)
    local h, hold = grant(id, c, ARGV[13])
    return held_reply(id, h, hold, true)
  end
  m.turn = m.turn + 1
  c.turn = m.turn
  m.waiters = m.waiters + 1
  put('q' .. id, pack(c))
  put('d' .. id, ARGV[13])
  append('front', 'back', id)
  if m.beyond == '' then m.beyond = id end
  heartbeat()
  publish_change('q', ARGV[13], 0)
  return waiting_reply(c)
end

local function acquire()
  if marked(call_id) then return {'left'} end
  if c.retryable then
    local q = m.waiters > 0 and record('q' .. id)
    if q then return adopt_waiter(q) end
    local claim, h, hold
    if m.holders > 0 then claim, h, hold = find_hold(id) end
    if hold then return adopt_hold(claim, h, hold) end
    local old = record('i' .. id)
    if old then return {'finished', old.cause} end
  end
  local own = c.reentrant and get('e' .. c.whose)
  if own then return join(own) end
  -- A claim outlives its first hold while it has other holds, so its id cannot be used for another claim.
  local existing = c.retryable and m.holders > 0 and holder(id)
  return existing and other(existing) or grant_or_enqueue()
end
local function run()
  id, call_id, wait = ARGV[4], ARGV[5], ARGV[15] == '1'
  c = {
    call = call_id, secret = ARGV[6], retryable = ARGV[7] == '1', mode = ARGV[8], permits = tonumber(ARGV[9]),
    limit = tonumber(ARGV[10]), reentrant = ARGV[11] == '1', ttl = tonumber(ARGV[12]), whose = ARGV[14],
    replica = replica, since = now,
  }
  m.fin_most = tonumber(ARGV[17])
  begin()
  if overdue() then return done({'again'}) end
  return done(acquire())
end
