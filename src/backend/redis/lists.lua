-- The lists of waiters and holders, and the heaps of expiries and limits. Follows prelude.lua.

-- A doubly linked list of claims. Each claim has a field with its neighbours; the state has the ends of the list.
local function neighbours(link, id)
  local both = get(link .. id)
  if not both then return '', '' end
  return unpack_one(both)
end
local function set_neighbours(link, id, before, after)
  if before == '' and after == '' then del(link .. id) else put(link .. id, pack(before, after)) end
end
local function append(first, last, id)
  local tail = m[last]
  m.shape = m.shape + 1
  m[last] = id
  if tail == '' then
    m[first] = id
    return
  end
  set_neighbours('n', tail, (neighbours('n', tail)), id)
  set_neighbours('n', id, tail, '')
end
-- Unlinks a claim from its neighbours, and checks that they refer to it.
local function unlink(link, id)
  local before, after = neighbours(link, id)
  if before ~= '' then
    local further, same = neighbours(link, before)
    if same ~= id then broken('a neighbour') end
    set_neighbours(link, before, further, after)
  end
  if after ~= '' then
    local same, further = neighbours(link, after)
    if same ~= id then broken('a neighbour') end
    set_neighbours(link, after, before, further)
  end
  if before ~= '' or after ~= '' then del(link .. id) end
  return before, after
end
local function remove_from_list(first, last, id)
  m.shape = m.shape + 1
  if m[first] == id and m[last] == id then
    m[first], m[last] = '', ''
    return ''
  end
  local before, after = unlink('n', id)
  if (m[first] == id) ~= (before == '') or (m[last] == id) ~= (after == '') then broken('the end of a list') end
  if before == '' then m[first] = after end
  if after == '' then m[last] = before end
  return after
end

-- Two binary heaps in fields: of the holders by their expiries, and of the larger limits of the prefix. An entry is its
-- order followed by its id. `from` is the previous place of an entry, nil for a new one.
local EXPIRIES, LIMITS = {at = 'o', place = 'y'}, {at = 'g', place = 'k'}
local function entry(id, order) return struct.pack('>d', order) .. id end
local function order_of(one) return (struct.unpack('>d', one)) end
local function entry_at(heap, place) return get(heap.at .. digits(place)) or broken('no ' .. heap.at) end
local function set_at(heap, place, one, from)
  put(heap.at .. digits(place), one)
  if place > 1 then
    put(heap.place .. one:sub(9), digits(place))
  elseif from and from > 1 then
    del(heap.place .. one:sub(9))
  end
end
local function sift_up(heap, place, one, from)
  while place > 1 do
    local parent = math.floor(place / 2)
    local above = entry_at(heap, parent)
    if order_of(above) <= order_of(one) then break end
    set_at(heap, place, above, parent)
    place = parent
  end
  set_at(heap, place, one, from)
end
local function sift_down(heap, place, one, from, count)
  while 2 * place <= count do
    local child = 2 * place
    local below = entry_at(heap, child)
    local other = child < count and entry_at(heap, child + 1)
    if other and order_of(other) < order_of(below) then child, below = child + 1, other end
    if order_of(one) <= order_of(below) then break end
    set_at(heap, place, below, child)
    place = child
  end
  set_at(heap, place, one, from)
end
-- Removes the entry of an id from a heap of `count` entries.
local function remove_from_heap(heap, id, count)
  local place = tonumber(count > 1 and get(heap.place .. id) or 1)
  if entry_at(heap, place):sub(9) ~= id then broken(heap.place) end
  local last = place < count and entry_at(heap, count)
  del(heap.at .. digits(count))
  if place > 1 then del(heap.place .. id) end
  if place == count then return end
  if place > 1 and order_of(entry_at(heap, math.floor(place / 2))) > order_of(last) then
    sift_up(heap, place, last, count)
  else
    sift_down(heap, place, last, count, count - 1)
  end
end

local function update_frees() m.frees = m.holders > 0 and order_of(entry_at(EXPIRIES, 1)) or 0 end
-- Records that a holder expires later. Only the entry at the root of the heap is moved.
local function extend_expiry(id, h)
  m.longest = math.max(m.longest, h.expires)
  if get('y' .. id) then return end
  if entry_at(EXPIRIES, 1):sub(9) ~= id then broken('o1') end
  sift_down(EXPIRIES, 1, entry(id, h.expires), 1, m.holders)
  update_frees()
end
