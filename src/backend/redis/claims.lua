-- The life of a claim: it enters the queue, holds the lock and ends; the history of ended claims. Follows lists.lua.

-- The prefix rule: the holders are the longest prefix of the queue whose permits fit in the smallest of its limits. The
-- state stores the prefix: m.within claims, which are all holders and the waiters up to position m.edge, and m.limit,
-- the smallest limit among them. m.larger of the claims have a larger limit; m.limits is the number of these limits.
local function fits(c)
  local limit = m.within > 0 and math.min(m.limit, c.limit) or c.limit
  return m.used + c.permits <= limit
end
-- Counts claims of the prefix with a limit that is larger than the smallest.
local function count_larger(limit, by)
  local id = digits(limit)
  local before = tonumber(get('l' .. id) or 0)
  m.larger = m.larger + by
  if before + by > 0 then put('l' .. id, digits(before + by)) else del('l' .. id) end
  if before == 0 then
    m.limits = m.limits + 1
    sift_up(LIMITS, m.limits, entry(id, limit))
  elseif before + by == 0 then
    remove_from_heap(LIMITS, id, m.limits)
    m.limits = m.limits - 1
  end
end
local function add_to_prefix(c)
  if m.within == 0 then
    m.limit = c.limit
  elseif c.limit > m.limit then
    count_larger(c.limit, 1)
  elseif c.limit < m.limit then
    count_larger(m.limit, m.within - m.larger)
    m.limit = c.limit
  end
  m.used, m.within = m.used + c.permits, m.within + 1
end
local function remove_from_prefix(c)
  m.used, m.within = m.used - c.permits, m.within - 1
  if c.limit > m.limit then
    count_larger(c.limit, -1)
  elseif m.larger > 0 and m.larger == m.within then
    m.limit = order_of(entry_at(LIMITS, 1))
    count_larger(m.limit, -tonumber(get('l' .. digits(m.limit)) or broken('no l')))
  end
end
-- A release that refuses mixed limits has written the lock, and knows no counts. Counts the limits of the prefix anew,
-- if they may be mixed. Nothing bounds that but the queue's limit.
local function recount_limits()
  m.mixed, m.larger, m.limits = 0, 0, 0
  if not get('l') then return end
  local place = 1
  while get('g' .. digits(place)) do
    local id = entry_at(LIMITS, place):sub(9)
    del('g' .. digits(place))
    del('k' .. id)
    del('l' .. id)
    place = place + 1
  end
  if m.p == 0 then
    del('l')
    return
  end
  m.mixed, m.used, m.within, m.room = 1, 0, 0, 1
  local function count_all(id, kind)
    while id ~= '' do
      local c = required_record(kind .. id)
      if kind == 'q' and c.turn > m.edge then return end
      add_to_prefix(c)
      local _, after = neighbours('n', id)
      id = after
    end
  end
  count_all(m.eldest, 'h')
  count_all(m.front, 'q')
end

-- Moves the edge over the waiters that fit now, and adds them to `newly_eligible`. More waiters can fit only after
-- a claim has ended (m.room). If more fit than one call may notify, the next calls continue.
local function extend()
  if m.room == 0 then return end
  while m.beyond ~= '' do
    if m.within > 0 and m.used >= m.limit then break end
    local id = m.beyond
    local q = required_record('q' .. id)
    if not fits(q) then break end
    if #newly_eligible >= MAX_NOTIFIED then return end
    add_to_prefix(q)
    newly_eligible[#newly_eligible + 1] = {id, q}
    local _, after = neighbours('n', id)
    m.edge, m.beyond, changed = q.turn, after, true
  end
  m.room, changed = 0, true
end

local function count(c, by)
  if by > 0 and c.mode == 'p' then
    if m.p > 0 and m.plimit ~= c.limit and m.mixed == 0 then
      m.mixed = 1
      put('l', '')
    end
    m.plimit, m.ppermits = c.limit, c.permits
  end
  m[c.mode] = m[c.mode] + by
  if m.p == 0 and m.mixed == 1 then
    m.mixed = 0
    del('l')
  end
end

-- Deletes up to `most` records of ended holds, and as many cancel marks, that are too old or too many.
local function prune_history(most)
  for _ = 1, most do
    local over = m.fin_to - m.fin_from > m.fin_most
    if m.fin_from == m.fin_to or not (over or m.fin_at + HISTORY_RETENTION <= m.clock) then break end
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
    local over = m.mark_to - m.mark_from > MAX_MARKS
    if m.mark_from == m.mark_to or not (over or m.mark_at + MARK_RETENTION <= m.clock) then break end
    m.mark_from = m.mark_from + 1
    local field = 'C' .. digits(m.mark_from)
    local old = record(field)
    del(field)
    if old then del('c' .. old.call) end
    local oldest = m.mark_from < m.mark_to and record('C' .. digits(m.mark_from + 1))
    m.mark_at = oldest and oldest.at or m.clock
  end
end
-- Records an ended hold in the history.
local function record_end(h, hold, cause, is_last)
  if m.fin_from == m.fin_to then m.fin_at = m.clock end
  m.fin_to = m.fin_to + 1
  local field = 'f' .. digits(h.token)
  if is_last then
    put(field, cause .. hold.secret)
  else
    field = field .. hold.secret
    put(field, cause)
  end
  -- A hold that was undone leaves no record for a retry.
  local retry = hold.retryable and cause ~= 'T' and 'i' .. hold.id or nil
  if retry then put(retry, pack({cause = cause})) end
  put('F' .. digits(m.fin_to), pack({at = m.clock, field = field, retry = retry}))
end
-- Returns the cause with which the hold with this secret and token ended, or ''.
local function remembered(secret, token)
  local field = 'f' .. digits(token)
  local ended = get(field)
  if ended and ended:sub(2) == secret then return ended:sub(1, 1) end
  return get(field .. secret) or ''
end
local function mark(call_id)
  if get('c' .. call_id) then return end
  if m.mark_from == m.mark_to then m.mark_at = m.clock end
  m.mark_to = m.mark_to + 1
  put('c' .. call_id, '')
  put('C' .. digits(m.mark_to), pack({call = call_id, at = m.clock}))
end
local function marked(call_id)
  return m.mark_from < m.mark_to and get('c' .. call_id) and true or false
end

-- The reentrant holders of an owner and identity form a list, because several of its shared claims may have waited at
-- the same time.
local function add_reentrant(whose, id)
  local latest = get('e' .. whose)
  put('e' .. whose, id)
  if latest then
    local _, after = neighbours('v', latest)
    set_neighbours('v', latest, id, after)
    set_neighbours('v', id, '', latest)
  end
end
local function drop_reentrant(whose, id)
  local before, after = unlink('v', id)
  if before ~= '' then return end
  if after ~= '' then put('e' .. whose, after) else del('e' .. whose) end
end

-- Every end of a holder goes through end_holder, and every end of a waiter through end_waiter.
local function end_holder(id, h, cause)
  for at, hold in ipairs(h.holds) do
    record_end(h, hold, cause, at == #h.holds)
    if hold.id ~= id then del('j' .. hold.id) end
  end
  local description = m.watched > m.clock and get('d' .. id)
  m.holders, m.active, m.room = m.holders - 1, now, 1
  remove_from_list('eldest', 'newest', id)
  remove_from_heap(EXPIRIES, id, m.holders + 1)
  update_frees()
  del('h' .. id)
  del('d' .. id)
  if not h.alone then del('t' .. digits(h.token)) end
  if h.reentrant then drop_reentrant(h.whose, id) end
  remove_from_prefix(h)
  count(h, -1)
  publish_change(cause, description, h.token)
  if cause == 'F' then messages[#messages + 1] = {space .. 'forced', digits(h.token) .. ' ' .. name} end
end
local function remove_from_queue(id)
  local after = remove_from_list('front', 'back', id)
  if m.beyond == id then m.beyond = after end
  if m.sweep == id then m.sweep = after end
  del('q' .. id)
  m.waiters = m.waiters - 1
  if m.waiters == 0 and m.lost > 0 then del('L') end
end
local function end_waiter(id, q)
  local description = m.watched > m.clock and get('d' .. id)
  remove_from_queue(id)
  del('d' .. id)
  m.active, m.room = now, 1
  count(q, -1)
  if q.turn <= m.edge then remove_from_prefix(q) end
  publish_change('L', description, 0)
end
-- Counts a waiter that is taken from its call, so that the heartbeat notifies the call if the message is lost.
local function count_taken(id)
  m.lost = m.lost + 1
  put('L', ((get('L') or '') .. id):sub(-16 * MAX_TAKEN))
end
-- Evicts a waiter that its own replica does not remove.
local function evict(id, q)
  count_taken(id)
  end_waiter(id, q)
  notify('g', id, q)
end

-- Returns a holder, or nil. A holder whose TTL has run out is ended here, because the purge may not have reached it.
local function holder(id)
  local h = record('h' .. id)
  if h and h.expires <= m.clock then
    end_holder(id, h, 'E')
    return nil
  end
  return h
end

-- Returns a token that is greater than all earlier ones of the lock, also of one whose key has expired. A clock beyond
-- LATEST is wrong and must not use the tokens up: behind LATEST they rise by one in 64 microseconds. A token beyond
-- MAX_TOKEN was given to nobody, so the next one need not be greater.
local function mint()
  local scaled = now <= LATEST and now or math.min(LATEST + math.floor((now - LATEST) / 64), 2 ^ 52 + 2 ^ 51)
  return m.token < MAX_TOKEN and math.max(m.token + 1, scaled) or scaled
end

-- Every grant goes through this function: it mints the token and starts the TTL. The prefix already counts the claim.
local function grant(id, c, description)
  m.token = mint()
  m.holders, m.active = m.holders + 1, now
  local expires = m.clock + c.ttl
  local hold = {id = id, secret = c.secret, call = c.call, retryable = c.retryable, ttl = c.ttl, adopted = false}
  local h = {
    mode = c.mode, permits = c.permits, limit = c.limit, reentrant = c.reentrant, whose = c.whose,
    token = m.token, expires = expires, since = now, holds = {hold}, alone = m.holders == 1,
  }
  put('h' .. id, pack(h))
  if description then put('d' .. id, description) end
  if not h.alone then put('t' .. digits(m.token), id) end
  append('eldest', 'newest', id)
  sift_up(EXPIRIES, m.holders, entry(id, expires))
  if c.reentrant then add_reentrant(c.whose, id) end
  m.frees = m.frees == 0 and expires or math.min(m.frees, expires)
  m.longest = math.max(m.longest, expires)
  if m.watched > m.clock then publish_change('g', get('d' .. id), m.token) end
  return h, hold
end
local function held_reply(id, h, hold, fresh)
  return {'held', id, h.mode, hold.secret, h.token, h.expires - m.clock, #h.holds, fresh and 1 or 0}
end

-- Makes an eligible waiter a holder.
local function grant_waiter(id, q)
  remove_from_queue(id)
  local h, hold = grant(id, q)
  return held_reply(id, h, hold, true)
end

-- Finds the holder and the hold with this id. The first hold of a claim may have ended before the claim, and its id
-- may be in use again in another claim.
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

-- Finds the hold of a lease: the holder, the hold and its place among the holds.
local function hold_of(claim, token, secret)
  local h = holder(claim)
  for at, hold in ipairs(h and h.token == token and h.holds or {}) do
    if hold.secret == secret then return h, hold, at end
  end
end

local function frees_in() return m.frees > 0 and math.max(0, m.frees - m.clock) or -1 end
local function waiting_reply(q) return {'waiting', q.turn, frees_in(), m.born, m.lost} end

-- Promotes a waiter, for promote.lua and for the `next` of release.lua.
local function promote(id, call_id)
  if marked(call_id) then return {'left'} end
  local q = record('q' .. id)
  if q then
    if q.call ~= call_id then return {'superseded'} end
    return q.turn <= m.edge and grant_waiter(id, q) or waiting_reply(q)
  end
  local claim, h, hold = find_hold(id)
  if hold then return hold.call == call_id and held_reply(claim, h, hold, true) or {'superseded'} end
  local old = record('i' .. id)
  if old then return {'finished', old.cause} end
  return {'gone'}
end
