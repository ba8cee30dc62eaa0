-- How a claim comes in, holds and goes, and what is remembered of it. It stands behind lists.lua.

-- The prefix rule: the holders are the longest prefix of the queue whose permits fit. The state
-- keeps the prefix: m.within claims, all holders and the waiters up to turn m.edge.
local function fits(c)
  local limit = m.within > 0 and math.min(m.limit, c.limit) or c.limit
  return m.used + c.permits <= limit
end
local function push(c)
  m.limit = m.within > 0 and math.min(m.limit, c.limit) or c.limit
  m.used, m.within = m.used + c.permits, m.within + 1
end
local function pull(c)
  m.used, m.within = m.used - c.permits, m.within - 1
end

-- Moves the edge over the waiters that fit now, and adds those to `news`. Only what left makes room
-- (m.room); where more fit than one call tells, the next calls go on.
local function extend()
  if m.room == 0 then return end
  while m.beyond ~= '' do
    if m.within > 0 and m.used >= m.limit then break end
    local id = m.beyond
    local q = needed('q' .. id)
    if not fits(q) then break end
    if #news >= TOLD then return end
    push(q)
    news[#news + 1] = {id, q}
    local _, after = neighbours('n', id)
    m.edge, m.beyond, changed = q.turn, after, true
  end
  m.room, changed = 0, true
end

local function count(c, by)
  m[c.mode] = m[c.mode] + by
  if by > 0 and c.mode == 'p' then m.plimit, m.ppermits = c.limit, c.permits end
end

-- Remembers an ended hold, and forgets the oldest beyond the bounds; a few each time.
local function forget(most)
  for _ = 1, most do
    local over = m.fin_to - m.fin_from > m.fin_most
    if m.fin_from == m.fin_to or not (over or m.fin_at + FINISHED_KEPT <= m.clock) then break end
    m.fin_from = m.fin_from + 1
    local field = 'F' .. digits(m.fin_from)
    local old = record(field)
    del(field)
    if old then
      del(old.field)
      if old.retry then del(old.retry) end
    end
    local oldest = m.fin_from < m.fin_to and record('F' .. digits(m.fin_from + 1))
    m.fin_at = oldest and oldest.at or m.clock
  end
  for _ = 1, most do
    local over = m.mark_to - m.mark_from > MARKS_MOST
    if m.mark_from == m.mark_to or not (over or m.mark_at + MARKS_KEPT <= m.clock) then break end
    m.mark_from = m.mark_from + 1
    local field = 'C' .. digits(m.mark_from)
    local old = record(field)
    del(field)
    if old then del('c' .. old.call) end
    local oldest = m.mark_from < m.mark_to and record('C' .. digits(m.mark_from + 1))
    m.mark_at = oldest and oldest.at or m.clock
  end
end
local function finish(h, hold, cause, is_last)
  if m.fin_from == m.fin_to then m.fin_at = m.clock end
  m.fin_to = m.fin_to + 1
  local field = 'f' .. digits(h.token)
  if is_last then
    put(field, cause .. hold.secret)
  else
    field = field .. hold.secret
    put(field, cause)
  end
  -- What was taken back leaves no word for a retry.
  local retry = hold.retryable and cause ~= 'T' and 'i' .. hold.id or nil
  if retry then
    put(retry, pack({cause = cause, mode = h.mode, permits = h.permits, limit = h.limit, reentrant = h.reentrant}))
  end
  put('F' .. digits(m.fin_to), pack({at = m.clock, field = field, retry = retry}))
end
-- Why the hold of this secret and token ended, or ''.
local function remembered(secret, token)
  local field = 'f' .. digits(token)
  local ended = get(field)
  if ended and ended:sub(2) == secret then return ended:sub(1, 1) end
  return get(field .. secret) or ''
end
local function mark(caller)
  if get('c' .. caller) then return end
  if m.mark_from == m.mark_to then m.mark_at = m.clock end
  m.mark_to = m.mark_to + 1
  put('c' .. caller, '')
  put('C' .. digits(m.mark_to), pack({call = caller, at = m.clock}))
end
local function marked(caller)
  return m.mark_from < m.mark_to and get('c' .. caller) and true or false
end

-- The reentrant holders of an owner and identity: several readers may have waited side by side.
local function add_reentrant(whose, id)
  local latest = get('e' .. whose)
  put('e' .. whose, id)
  if latest then
    local _, after = neighbours('v', latest)
    join_up('v', latest, id, after)
    join_up('v', id, '', latest)
  end
end
local function drop_reentrant(whose, id)
  local before, after = part('v', id)
  if before ~= '' then return end
  if after ~= '' then put('e' .. whose, after) else del('e' .. whose) end
end

-- The one way out of holding, and the one out of waiting.
local function end_holder(id, h, cause)
  for at, hold in ipairs(h.holds) do
    finish(h, hold, cause, at == #h.holds)
    if hold.id ~= id then del('j' .. hold.id) end
  end
  local shown = m.watched > m.clock and get('d' .. id)
  m.holders, m.active, m.room = m.holders - 1, now, 1
  take_out('eldest', 'newest', id)
  leave_heap(id)
  soonest()
  del('h' .. id)
  del('d' .. id)
  if not h.alone then del('t' .. digits(h.token)) end
  if h.reentrant then drop_reentrant(h.whose, id) end
  pull(h)
  count(h, -1)
  show(cause, shown, h.token)
end
local function out_of_line(id)
  local after = take_out('front', 'back', id)
  if m.beyond == id then m.beyond = after end
  if m.sweep == id then m.sweep = after end
  del('q' .. id)
  m.waiters = m.waiters - 1
  if m.waiters == 0 and m.lost > 0 then del('L') end
end
local function end_waiter(id, q)
  local shown = m.watched > m.clock and get('d' .. id)
  out_of_line(id)
  del('d' .. id)
  m.active, m.room = now, 1
  count(q, -1)
  if q.turn <= m.edge then pull(q) end
  show('L', shown, 0)
end
-- Counts a waiter that is taken from its call, so that the heartbeat tells the call if the message is lost.
local function note_taken(id)
  m.lost = m.lost + 1
  put('L', ((get('L') or '') .. id):sub(-16 * TAKEN))
end
-- Takes out a waiter whose replica does not do so.
local function bury(id, q)
  note_taken(id)
  end_waiter(id, q)
  tell('g', id, q)
end

-- A holder whose TTL has run out is none, although the purge may not have come to it yet.
local function holder(id)
  local h = record('h' .. id)
  if h and h.expires <= m.clock then
    end_holder(id, h, 'E')
    return nil
  end
  return h
end

-- The one way in: mints the token and starts the TTL. The prefix has counted the claim before.
local function become_holder(id, c, shown)
  m.token = math.max(m.token + 1, now)
  m.holders, m.active = m.holders + 1, now
  local expires = m.clock + c.ttl
  local hold = {id = id, secret = c.secret, call = c.call, retryable = c.retryable, ttl = c.ttl, adopted = false}
  local h = {
    mode = c.mode, permits = c.permits, limit = c.limit, reentrant = c.reentrant, whose = c.whose,
    token = m.token, expires = expires, since = now, holds = {hold}, alone = m.holders == 1,
  }
  put('h' .. id, pack(h))
  if shown then put('d' .. id, shown) end
  if not h.alone then put('t' .. digits(m.token), id) end
  append('eldest', 'newest', id)
  rise(m.holders, entry(id, expires))
  if c.reentrant then add_reentrant(c.whose, id) end
  m.frees = m.frees == 0 and expires or math.min(m.frees, expires)
  m.longest = math.max(m.longest, expires)
  if m.watched > m.clock then show('g', get('d' .. id), m.token) end
  return h, hold
end
local function held(id, h, hold, fresh)
  return {'held', id, h.mode, hold.secret, h.token, h.expires - m.clock, #h.holds, fresh and 1 or 0}
end

-- Makes an eligible waiter a holder.
local function promote(id, q)
  out_of_line(id)
  local h, hold = become_holder(id, q)
  return held(id, h, hold, true)
end

-- The holder and the hold with this id, where it is held. The first hold of a claim may have ended
-- before the claim, and come again in another.
local function hold_in(claim, id)
  local h = holder(claim)
  for at, hold in ipairs(h and h.holds or {}) do
    if hold.id == id then return claim, h, hold, at end
  end
end
local function find_hold(id)
  local claim, h, hold, at = hold_in(id, id)
  if hold then return claim, h, hold, at end
  local joined = get('j' .. id)
  if joined then return hold_in(joined, id) end
end

local function frees_in() return m.frees > 0 and math.max(0, m.frees - m.clock) or -1 end
local function waiting(q) return {'waiting', q.turn, frees_in(), m.born, m.lost} end

-- What take_up does, for the verb and for the `next` of a leave.
local function take_up(id, caller)
  if marked(caller) then return {'left'} end
  local q = record('q' .. id)
  if q then
    if q.call ~= caller then return {'superseded'} end
    return q.turn <= m.edge and promote(id, q) or waiting(q)
  end
  local claim, h, hold = find_hold(id)
  if hold then return hold.call == caller and held(claim, h, hold, true) or {'superseded'} end
  local old = record('i' .. id)
  if old then return {'finished', old.cause} end
  return {'gone'}
end
