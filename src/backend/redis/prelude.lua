-- What every verb shares: one lock's hash, its clock, the purge, the prefix rule, the mint.
-- It stands behind the first line of each verb's script; KEYS[1] is the lock's hash throughout and
-- ARGV[1..3] are the namespace's channel prefix, the lock's name and the caller's replica.
--
-- Fields of the hash (ids, secrets and calls are 16 raw bytes):
--   m          the lock's state, an array in the order of STATE
--   h<claim>   a holder        o<slot>   the claim in a slot, 1 to m.holders without a gap
--   q<claim>   a waiter        s<turn>   the claim that waits at a turn
--   d<claim>   what a claim shows of itself, opaque here
--   j<hold>    the claim that a re-entry's hold belongs to
--   e<owner>   the reentrant holders of an owner and identity, one id behind the other
--   r<replica> when a replica that waits last called (on m.awake); R lists these replicas
--   f<secret>  why a hold ended, token i<hold> the same for a retry    F<n> both, oldest first
--   c<call>    the mark of a call that left                            C<n> the marks, oldest first
-- Numbers are microseconds unless they count. They reach Redis through cmsgpack or digits(), never
-- through tostring, which keeps only 14 digits.

local key, space, name, replica = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local call, pack, unpack_one = redis.call, cmsgpack.pack, cmsgpack.unpack

local BEAT = 1500000              -- a replica that waits calls this often
local SILENT = 4 * BEAT           -- one that did not for so long has died
local FINISHED_KEPT = 60000000
local MARKS_KEPT = 70000000
local MARKS_MOST = 10000
local VERSION = 1                 -- of this layout
local IDLE = 4 * 86400000000      -- how long an unused lock keeps its last token
local STATE = {
  'version', 'born', 'clock', 'awake', 'last', 'token', 'head', 'edge', 'tail', 'used', 'limit', 'within',
  'holders', 'waiters', 'x', 's', 'p', 'plimit', 'frees', 'longest', 'hush', 'first', 'since', 'keep',
  'fin_from', 'fin_to', 'fin_at', 'fin_most', 'mark_from', 'mark_to', 'mark_at', 'watched', 'changes', 'active',
}

local function digits(n) return string.format('%.0f', n) end
local function get(field) return call('HGET', key, field) end
local function record(field)
  local raw = get(field)
  return raw and unpack_one(raw)
end
local function put(...) call('HSET', key, ...) end
local function del(...) call('HDEL', key, ...) end

local stamp = call('TIME')
local now = stamp[1] * 1000000 + stamp[2]
local raw = get('m')
local known = raw and true
local m = {}
if raw then
  local values = unpack_one(raw)
  for i, field in ipairs(STATE) do m[field] = values[i] or 0 end
  if m.version ~= VERSION then
    return redis.error_reply('LAYOUT the lock is stored in version ' .. tostring(m.version) .. ', this is ' .. VERSION)
  end
else
  for _, field in ipairs(STATE) do m[field] = 0 end
  m.version, m.born, m.last, m.fin_most = VERSION, now, now, 1000
end

-- The lock's clock only adds what passed: a step of the server's clock back is no time at all.
-- For waiters, silence of everybody (a paused server) is two beats at most.
local passed = math.max(0, now - m.last)
m.last = now
m.clock = m.clock + passed
m.awake = m.awake + math.min(passed, 2 * BEAT)

-- Keeps the state; the key itself outlives every lease and the token it must not mint again.
local function save()
  local idle = m.token == 0 and 2 * MARKS_KEPT or IDLE
  local needed = math.max(0, m.longest - m.clock) + idle
  local values = {}
  if m.keep < now + needed - idle / 8 then m.keep = now + needed else needed = nil end
  for i, field in ipairs(STATE) do values[i] = m[field] end
  put('m', pack(values))
  if needed then call('PEXPIRE', key, digits(needed / 1000)) end
end

-- One change, for people who watch. Nothing is published while nobody does.
local function show(kind, shown, token)
  if m.watched <= m.clock then return end
  m.changes = m.changes + 1
  local frees_in = m.frees > 0 and math.max(0, m.frees - m.clock) or 0
  local head = table.concat(
    {kind, digits(m.changes), digits(token), digits(m.holders), digits(m.waiters), digits(frees_in)}, ' ')
  call('PUBLISH', space .. 'c:' .. name, head .. '\n' .. (shown or ''))
end

-- Tells the replica of a waiter: 'n' it may be next, 'g' it is gone.
local function tell(kind, id, q)
  call('PUBLISH', space .. 'w:' .. q.replica, kind .. id .. name)
end

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
local function beyond() return m.waiters - (m.within - m.holders) end

-- Moves the edge over every waiter that fits now, and adds those to `news`. Between two calls of
-- any verb the edge is where it belongs, so only what left since makes room.
local room = false
local function extend(news)
  if not room then return end
  room = false
  while beyond() > 0 do
    if m.within > 0 and m.used >= m.limit then return end
    local id = get('s' .. digits(m.edge + 1))
    if id then
      local q = record('q' .. id)
      if not fits(q) then return end
      push(q)
      news[#news + 1] = {id, q}
    end
    m.edge = m.edge + 1
  end
  m.edge = m.tail
end

local function count(c, by)
  m[c.mode] = m[c.mode] + by
  if c.mode == 'p' then m.plimit = c.limit end
end

-- Remembers an ended hold, and forgets the oldest beyond the bounds; a few each time.
local function forget()
  for _ = 1, 4 do
    local over = m.fin_to - m.fin_from > m.fin_most
    if m.fin_from == m.fin_to or not (over or m.fin_at + FINISHED_KEPT <= m.clock) then break end
    m.fin_from = m.fin_from + 1
    local field = 'F' .. digits(m.fin_from)
    local old = record(field)
    if old then
      del(field, 'f' .. old.secret)
      -- What was taken back left no word for a retry: one that is there is of a later end.
      if old.cause ~= 'T' then del('i' .. old.id) end
    end
    local oldest = m.fin_from < m.fin_to and record('F' .. digits(m.fin_from + 1))
    m.fin_at = oldest and oldest.at or m.clock
  end
  for _ = 1, 4 do
    local over = m.mark_to - m.mark_from > MARKS_MOST
    if m.mark_from == m.mark_to or not (over or m.mark_at + MARKS_KEPT <= m.clock) then break end
    m.mark_from = m.mark_from + 1
    local field = 'C' .. digits(m.mark_from)
    local old = record(field)
    if old then del(field, 'c' .. old.call) end
    local oldest = m.mark_from < m.mark_to and record('C' .. digits(m.mark_from + 1))
    m.mark_at = oldest and oldest.at or m.clock
  end
end
local function finish(h, hold, cause)
  if m.fin_from == m.fin_to then m.fin_at = m.clock end
  m.fin_to = m.fin_to + 1
  local entry = {secret = hold.secret, id = hold.id, at = m.clock, cause = cause, token = h.token}
  put('F' .. digits(m.fin_to), pack(entry), 'f' .. hold.secret, cause .. digits(h.token))
  if hold.retryable and cause ~= 'T' then
    put('i' .. hold.id, pack({cause = cause, mode = h.mode, permits = h.permits, limit = h.limit, reentrant = h.reentrant}))
  end
end
-- Why the hold of this secret and token ended, or ''.
local function remembered(secret, token)
  local ended = get('f' .. secret)
  return ended and ended:sub(2) == digits(token) and ended:sub(1, 1) or ''
end
local function mark(caller)
  if call('HSETNX', key, 'c' .. caller, '') == 0 then return end
  if m.mark_from == m.mark_to then m.mark_at = m.clock end
  m.mark_to = m.mark_to + 1
  put('C' .. digits(m.mark_to), pack({call = caller, at = m.clock}))
end
local function marked(caller)
  return m.mark_from < m.mark_to and call('HEXISTS', key, 'c' .. caller) == 1
end

-- The reentrant holders of an owner and identity: several readers may have waited side by side.
local function add_reentrant(whose, id)
  put('e' .. whose, (get('e' .. whose) or '') .. id)
end
local function drop_reentrant(whose, id)
  local rest = {}
  for one in (get('e' .. whose) or ''):gmatch(('.'):rep(16)) do
    if one ~= id then rest[#rest + 1] = one end
  end
  if #rest > 0 then put('e' .. whose, table.concat(rest)) else del('e' .. whose) end
end

-- The one way out of holding, and the one out of waiting.
local function end_holder(id, h, cause)
  for _, hold in ipairs(h.holds) do
    finish(h, hold, cause)
    if hold.id ~= id then del('j' .. hold.id) end
  end
  local shown = m.watched > m.clock and get('d' .. id)
  local last = 'o' .. digits(m.holders)
  if h.slot < m.holders then
    local moved = get(last)
    local other = record('h' .. moved)
    other.slot = h.slot
    put('h' .. moved, pack(other), 'o' .. digits(h.slot), moved)
  end
  del('h' .. id, 'd' .. id, last)
  if h.reentrant then drop_reentrant(h.whose, id) end
  m.holders, m.active, room = m.holders - 1, now, true
  pull(h)
  count(h, -1)
  if m.holders == 0 then m.frees = 0 end
  show(cause, shown, h.token)
end
local function end_waiter(id, q)
  local shown = m.watched > m.clock and get('d' .. id)
  del('q' .. id, 's' .. digits(q.turn), 'd' .. id)
  m.waiters, m.active, room = m.waiters - 1, now, true
  count(q, -1)
  if q.turn <= m.edge then pull(q) end
  show('L', shown, 0)
end

-- The one way in: mints the token and starts the TTL. The prefix has counted the claim before.
local function become_holder(id, c, shown)
  m.token = math.max(m.token + 1, now)
  m.holders, m.active = m.holders + 1, now
  local expires = m.clock + c.ttl
  local hold = {id = id, secret = c.secret, call = c.call, retryable = c.retryable, ttl = c.ttl, adopted = false}
  local h = {
    mode = c.mode, permits = c.permits, limit = c.limit, reentrant = c.reentrant, whose = c.whose,
    token = m.token, expires = expires, slot = m.holders, since = now, holds = {hold},
  }
  if shown then
    put('h' .. id, pack(h), 'o' .. digits(m.holders), id, 'd' .. id, shown)
  else
    put('h' .. id, pack(h), 'o' .. digits(m.holders), id)
  end
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
  del('q' .. id, 's' .. digits(q.turn))
  m.waiters = m.waiters - 1
  local h, hold = become_holder(id, q)
  return held(id, h, hold, true)
end

-- The holder and the hold with this id, where it is held. The first hold of a claim may have ended
-- before the claim, and come again in another.
local function hold_in(claim, id)
  local h = record('h' .. claim)
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

local function waiting(q)
  return {'waiting', q.turn, m.frees > 0 and math.max(0, m.frees - m.clock) or -1, m.born}
end

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

-- Purges: holders whose TTL ran out; waiters of replicas that died; a waiter at the head that did
-- not take its turn up.
local function expire()
  if m.frees == 0 or m.clock < m.frees then return end
  local soonest = 0
  for slot = m.holders, 1, -1 do
    local id = get('o' .. digits(slot))
    local h = record('h' .. id)
    if h.expires <= m.clock then
      end_holder(id, h, 'E')
    elseif soonest == 0 or h.expires < soonest then
      soonest = h.expires
    end
  end
  m.frees = soonest
end
local function bury(dead)
  for turn = m.head, m.tail do
    local id = get('s' .. digits(turn))
    local q = id and record('q' .. id)
    if q and dead[q.replica] then
      end_waiter(id, q)
      tell('g', id, q)
    end
  end
end
local function beat()
  local field = 'r' .. replica
  local last = get(field)
  if last and m.awake - tonumber(last) < BEAT / 2 then return end
  put(field, digits(m.awake))
  if not last then
    local all = record('R') or {}
    all[#all + 1] = replica
    put('R', pack(all))
  end
  if m.hush == 0 then m.hush = m.awake + SILENT end
end
local function bury_silent()
  if m.hush == 0 or m.awake < m.hush then return end
  if get('r' .. replica) then beat() end
  local soonest, alive, dead, any = 0, {}, {}, false
  for _, one in ipairs(record('R') or {}) do
    local last = tonumber(get('r' .. one) or '0')
    if last + SILENT <= m.awake then
      dead[one], any = true, true
      del('r' .. one)
    else
      alive[#alive + 1] = one
      soonest = soonest == 0 and last or math.min(soonest, last)
    end
  end
  if any then
    bury(dead)
    if #alive > 0 then put('R', pack(alive)) else del('R') end
  end
  m.hush = soonest == 0 and 0 or soonest + SILENT
end
local function bury_head(news)
  while m.within > m.holders do
    local id = get('s' .. digits(m.head))
    while not id do
      m.head = m.head + 1
      id = get('s' .. digits(m.head))
    end
    if m.first ~= m.head then m.first, m.since = m.head, m.awake end
    if m.awake - m.since < SILENT then return end
    local q = record('q' .. id)
    end_waiter(id, q)
    tell('g', id, q)
    extend(news)
  end
  m.head = m.edge + 1
end

-- Every verb begins with the purge and ends here: the new edge, the wake-ups, the state kept.
local news = {}
local function begin()
  expire()
  bury_silent()
  forget()
  extend(news)
  bury_head(news)
end
local function done(answer)
  extend(news)
  bury_head(news)
  for _, one in ipairs(news) do
    if call('HEXISTS', key, 'q' .. one[1]) == 1 then tell('n', one[1], one[2]) end
  end
  save()
  return answer
end

-- A holder as others may see it.
local function holder_view(id, h)
  return {
    id, h.mode, h.permits, h.limit, h.token, math.max(0, h.expires - m.clock), #h.holds, h.since, get('d' .. id) or '',
  }
end
