-- The purge: every verb begins and ends with it. Follows claims.lua and precedes the verb.

-- Removes holders whose TTL ran out, waiters of dead replicas, and an eligible waiter at the head that its replica does
-- not promote for REPLICA_TIMEOUT.
local function overdue() return m.holders > 0 and m.frees <= m.clock end
local function expire()
  local left = MAX_EXPIRED
  while overdue() and left > 0 do
    local id = entry_at(EXPIRIES, 1):sub(9)
    local h = required_record('h' .. id)
    if h.expires <= m.clock then
      end_holder(id, h, 'E')
      left = left - #h.holds
    else
      sift_down(EXPIRIES, 1, entry(id, h.expires), 1, m.holders)
      update_frees()
      left = left - 1
    end
  end
end
local function heartbeat()
  local field = 'r' .. replica
  local last = get(field)
  if last and m.awake - tonumber(last) < HEARTBEAT / 2 then return end
  put(field, digits(m.awake))
  if not last then
    local all = record('R') or {}
    all[#all + 1] = replica
    put('R', pack(all))
  end
  if m.hush == 0 then m.hush = m.awake + REPLICA_TIMEOUT end
end
local function find_dead_replicas()
  if m.hush == 0 or m.awake < m.hush then return end
  changed = true
  if get('r' .. replica) then heartbeat() end
  local first, alive = 0, {}
  for _, one in ipairs(record('R') or {}) do
    local last = tonumber(get('r' .. one) or '0')
    if last + REPLICA_TIMEOUT <= m.awake then
      del('r' .. one)
      m.sweep = m.front
    else
      alive[#alive + 1] = one
      first = first == 0 and last or math.min(first, last)
    end
  end
  if #alive > 0 then put('R', pack(alive)) else del('R') end
  m.hush = first == 0 and 0 or first + REPLICA_TIMEOUT
end
local function sweep()
  if m.sweep == '' then return end
  local alive, left, evictions = {}, MAX_SWEPT, MAX_EVICTED
  while m.sweep ~= '' and left > 0 and evictions > 0 do
    local id = m.sweep
    local q = required_record('q' .. id)
    local _, after = neighbours('n', id)
    if alive[q.replica] == nil then alive[q.replica] = get('r' .. q.replica) and true or false end
    m.sweep, left, changed = after, left - 1, true
    if not alive[q.replica] then
      evict(id, q)
      evictions = evictions - 1
    end
  end
end
local function evict_head()
  for _ = 1, 2 do
    local head = m.within > m.holders and m.front or ''
    if m.head ~= head then m.head, m.since, changed = head, m.awake, true end
    if head == '' or m.awake - m.since < REPLICA_TIMEOUT then return end
    evict(head, required_record('q' .. head))
    extend()
  end
end

-- Every verb calls begin() before and done() after its own work. done() moves the edge, notifies waiters and writes.
local function begin()
  if not m.limits then recount_limits() end
  expire()
  find_dead_replicas()
  sweep()
  extend()
  evict_head()
end
-- Whether more is left to purge.
local function unfinished() return overdue() or m.sweep ~= '' or m.room ~= 0 end
local function done(answer)
  extend()
  evict_head()
  for _, one in ipairs(newly_eligible) do
    if get('q' .. one[1]) then notify('n', one[1], one[2]) end
  end
  if changed then prune_history(PRUNED) end
  commit()
  return answer
end

-- A holder in a reply; without secrets. A token beyond MAX_TOKEN, which nobody was given, is shown as that.
local function holder_view(id, h)
  return {
    id, h.mode, h.permits, h.limit, math.min(h.token, MAX_TOKEN), math.max(0, h.expires - m.clock), #h.holds, h.since, get('d' .. id) or '',
  }
end
