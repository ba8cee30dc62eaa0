-- What every verb begins and ends with. It stands behind claims.lua, and before the verb.

-- Purges: holders whose TTL ran out; waiters of replicas that died; a waiter at the head that did
-- not take its turn up.
local function overdue() return m.holders > 0 and m.frees <= m.clock end
local function expire()
  local left = EXPIRED
  while overdue() and left > 0 do
    local id = entry_at(1):sub(9)
    local h = needed('h' .. id)
    if h.expires <= m.clock then
      end_holder(id, h, 'E')
      left = left - #h.holds
    else
      sink(1, entry(id, h.expires), 1, m.holders)
      soonest()
      left = left - 1
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
local function find_silent()
  if m.hush == 0 or m.awake < m.hush then return end
  changed = true
  if get('r' .. replica) then beat() end
  local first, alive = 0, {}
  for _, one in ipairs(record('R') or {}) do
    local last = tonumber(get('r' .. one) or '0')
    if last + SILENT <= m.awake then
      del('r' .. one)
      m.sweep = m.front
    else
      alive[#alive + 1] = one
      first = first == 0 and last or math.min(first, last)
    end
  end
  if #alive > 0 then put('R', pack(alive)) else del('R') end
  m.hush = first == 0 and 0 or first + SILENT
end
local function sweep()
  local alive, left, graves = {}, SWEPT, BURIED
  while m.sweep ~= '' and left > 0 and graves > 0 do
    local id = m.sweep
    local q = needed('q' .. id)
    local _, after = neighbours('n', id)
    if alive[q.replica] == nil then alive[q.replica] = get('r' .. q.replica) and true or false end
    m.sweep, left, changed = after, left - 1, true
    if not alive[q.replica] then
      bury(id, q)
      graves = graves - 1
    end
  end
end
local function bury_head()
  for _ = 1, 2 do
    local head = m.within > m.holders and m.front or ''
    if m.head ~= head then m.head, m.since, changed = head, m.awake, true end
    if head == '' or m.awake - m.since < SILENT then return end
    bury(head, needed('q' .. head))
    extend()
  end
end

-- Every verb begins with the purge and ends here: the new edge, the wake-ups, what is written.
local function begin()
  expire()
  find_silent()
  sweep()
  extend()
  bury_head()
end
-- Whether a purge is left to do.
local function unfinished() return overdue() or m.sweep ~= '' or m.room ~= 0 end
local function done(answer)
  extend()
  bury_head()
  for _, one in ipairs(news) do
    if get('q' .. one[1]) then tell('n', one[1], one[2]) end
  end
  if changed then forget(FORGOTTEN) end
  commit()
  return answer
end

-- A holder as others may see it.
local function holder_view(id, h)
  return {
    id, h.mode, h.permits, h.limit, h.token, math.max(0, h.expires - m.clock), #h.holds, h.since, get('d' .. id) or '',
  }
end
