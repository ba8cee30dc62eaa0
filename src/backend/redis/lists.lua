-- The lists of waiters and holders, and the heap of the holders' expiries. Follows prelude.lua.

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
  local before, after = unlink('n', id)
  if (m[first] == id) ~= (before == '') or (m[last] == id) ~= (after == '') then broken('the end of a list') end
  if before == '' then m[first] = after end
  if after == '' then m[last] = before end
  return after
end

-- The heap of the holders' expiries. `from` is the previous place of an entry, nil for a new one.
local function entry(id, expires) return struct.pack('>d', expires) .. id end
local function expiry(one) return (struct.unpack('>d', one)) end
local function entry_at(place) return get('o' .. digits(place)) or broken('no o') end
local function set_at(place, one, from)
  put('o' .. digits(place), one)
  if place > 1 then
    put('y' .. one:sub(9), digits(place))
  elseif from and from > 1 then
    del('y' .. one:sub(9))
  end
end
local function sift_up(place, one, from)
  while place > 1 do
    local parent = math.floor(place / 2)
    local above = entry_at(parent)
    if expiry(above) <= expiry(one) then break end
    set_at(place, above, parent)
    place = parent
  end
  set_at(place, one, from)
end
local function sift_down(place, one, from, count)
  while 2 * place <= count do
    local child = 2 * place
    local below = entry_at(child)
    local other = child < count and entry_at(child + 1)
    if other and expiry(other) < expiry(below) then child, below = child + 1, other end
    if expiry(one) <= expiry(below) then break end
    set_at(place, below, child)
    place = child
  end
  set_at(place, one, from)
end
local function update_frees() m.frees = m.holders > 0 and expiry(entry_at(1)) or 0 end
-- Removes a holder's entry; m.holders must no longer count the holder.
local function remove_from_heap(id)
  local count = m.holders + 1
  local place = tonumber(get('y' .. id) or 1)
  if entry_at(place):sub(9) ~= id then broken('y') end
  local last = entry_at(count)
  del('o' .. digits(count))
  if place > 1 then del('y' .. id) end
  if place == count then return end
  if place > 1 and expiry(entry_at(math.floor(place / 2))) > expiry(last) then
    sift_up(place, last, count)
  else
    sift_down(place, last, count, count - 1)
  end
end
-- Records that a holder expires later. Only the entry at the root of the heap is moved.
local function extend_expiry(id, h)
  m.longest = math.max(m.longest, h.expires)
  if get('y' .. id) then return end
  if entry_at(1):sub(9) ~= id then broken('o1') end
  sift_down(1, entry(id, h.expires), 1, m.holders)
  update_frees()
end
