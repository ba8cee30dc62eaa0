#!lua
-- Puts a claim at the tail of the queue, or finds the one with its id and adopts it.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 id, 5 call, 6 secret, 7 retryable 0|1,
--       8 mode x|s|p, 9 permits, 10 limit, 11 reentrant 0|1, 12 ttl, 13 shown, 14 owner and identity,
--       15 wait 0|1, 16 queue limit, 17 finished limit, 18 holds limit
-- Returns  {held, claim, mode, secret, token, ttl, holds, fresh} | {waiting, turn, frees_in|-1, born, lost}
--       | {again}: only purged | {busy, holder?} | {full, limit} | {mismatch, mode, permits, limit} | {finished, cause}
--       | {other, mode, permits, limit, reentrant} | {left}
local id, caller, wait, c
local function differs(there)
  return there.mode ~= c.mode or there.permits ~= c.permits or there.limit ~= c.limit or there.reentrant ~= c.reentrant
end
local function other(there)
  return {'other', there.mode, there.permits, there.limit, there.reentrant and 1 or 0}
end
local function busy()
  if m.holders == 0 then return {'busy'} end
  return {'busy', holder_view(m.eldest, needed('h' .. m.eldest))}
end

local function adopt_waiter(q)
  if differs(q) then return other(q) end
  local older = {call = q.call, replica = q.replica}
  q.call, q.secret, q.ttl, q.replica = caller, c.secret, c.ttl, replica
  put('q' .. id, pack(q))
  put('d' .. id, ARGV[13])
  tell('n', id, older)
  note_taken(id)
  if q.turn <= m.edge then return promote(id, q) end
  if wait then
    beat()
    return waiting(q)
  end
  end_waiter(id, q)
  mark(older.call)
  return busy()
end
local function adopt_hold(claim, h, hold)
  if hold.call == caller then return held(claim, h, hold, true) end
  if differs(h) then return other(h) end
  hold.adopted, hold.call = true, caller
  put('h' .. claim, pack(h))
  return held(claim, h, hold, false)
end
local function join(claim)
  local h = needed('h' .. claim)
  if differs(h) then return other(h) end
  if #h.holds >= tonumber(ARGV[18]) then return {'full', tonumber(ARGV[18])} end
  local hold = {id = id, secret = c.secret, call = caller, retryable = c.retryable, ttl = c.ttl, adopted = false}
  h.holds[#h.holds + 1] = hold
  h.expires = math.max(h.expires, m.clock + c.ttl)
  put('h' .. claim, pack(h))
  -- The claim's own id leads to it without that, and the end of such a hold deletes no field.
  if id ~= claim then put('j' .. id, claim) end
  lives_on(claim, h)
  return held(claim, h, hold, false)
end

-- A mode in the queue that this one cannot share the lock with; of several semaphore claims, the
-- permits of the latest.
local function misfit()
  if c.mode == 's' and m.p > 0 or c.mode == 'p' and m.p > 0 and m.plimit ~= c.limit then
    return {'mismatch', 'p', m.ppermits, m.plimit}
  end
  if c.mode == 'p' and m.s > 0 then return {'mismatch', 's', 1, c.limit} end
end
local function arrive()
  local mismatch = misfit()
  if mismatch then return mismatch end
  local fit, most = beyond() == 0 and fits(c), tonumber(ARGV[16])
  if not (fit or wait) then return busy() end
  if m.holders + m.waiters >= most then return {'full', most} end
  count(c, 1)
  if fit then
    push(c)
    local h, hold = become_holder(id, c, ARGV[13])
    return held(id, h, hold, true)
  end
  m.turn = m.turn + 1
  c.turn = m.turn
  m.waiters = m.waiters + 1
  put('q' .. id, pack(c))
  put('d' .. id, ARGV[13])
  append('front', 'back', id)
  if m.beyond == '' then m.beyond = id end
  beat()
  show('q', ARGV[13], 0)
  return waiting(c)
end

local function enter()
  if marked(caller) then return {'left'} end
  if c.retryable then
    local q = record('q' .. id)
    if q then return adopt_waiter(q) end
    local claim, h, hold = find_hold(id)
    if hold then return adopt_hold(claim, h, hold) end
    local old = record('i' .. id)
    if old then return differs(old) and other(old) or {'finished', old.cause} end
  end
  local mine = c.reentrant and get('e' .. c.whose)
  if mine then return join(mine) end
  -- A claim outlives its first hold while there are others: its id is not free for another claim.
  local there = c.retryable and holder(id)
  return there and other(there) or arrive()
end
local function run()
  id, caller, wait = ARGV[4], ARGV[5], ARGV[15] == '1'
  c = {
    call = caller, secret = ARGV[6], retryable = ARGV[7] == '1', mode = ARGV[8], permits = tonumber(ARGV[9]),
    limit = tonumber(ARGV[10]), reentrant = ARGV[11] == '1', ttl = tonumber(ARGV[12]), whose = ARGV[14],
    replica = replica, since = now,
  }
  m.fin_most = tonumber(ARGV[17])
  begin()
  if overdue() then return done({'again'}) end
  return done(enter())
end
