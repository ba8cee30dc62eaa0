#!lua flags=allow-oom
-- Releases a hold (H), the claim of a call (C), the holder with a token (F) or a waiter for which no call waits (W),
-- and may promote `next` in the same step.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 target H|C|F|W and
--       H: 5 claim, 6 token, 7 secret   C: 5 id, 6 call, 7 ''   F: 5 '', 6 token, 7 ''   W: 5 id, 6 '', 7 '';
--       8 the id of `next` or '', 9 its call
-- Returns  {ended|before|adopted|nothing, cause or '', what take_up returns for `next`}

-- Ends one hold of a holder; with its last hold, the holder ends.
local function end_hold(claim, h, at, cause)
  if #h.holds == 1 then return end_holder(claim, h, cause) end
  local hold = table.remove(h.holds, at)
  record_end(h, hold, cause, false)
  if hold.id ~= claim then del('j' .. hold.id) end
  put('h' .. claim, pack(h))
end
local function release_hold(claim, token, secret)
  local h, hold, at = hold_of(claim, token, secret)
  if hold then
    end_hold(claim, h, at, 'R')
    return 'ended', 'R'
  end
  local cause = remembered(secret, token)
  return cause == '' and 'nothing' or 'before', cause
end
local function release_call(id, call_id)
  local q = record('q' .. id)
  if q and q.call == call_id then
    end_waiter(id, q)
    return 'ended', 'L'
  end
  local claim, h, hold, at = find_hold(id)
  if hold and hold.call == call_id and not hold.adopted then
    end_hold(claim, h, at, 'T')
    return 'ended', 'T'
  end
  mark(call_id)
  if q or hold then return 'adopted', '' end
  local old = record('i' .. id)
  if old then return 'before', old.cause end
  return 'nothing', ''
end
local function force_release(token)
  -- A holder that began alone has no t field. It is the eldest for as long as it holds.
  local claim = get('t' .. digits(token)) or m.eldest
  local h = claim ~= '' and holder(claim)
  if h and math.min(h.token, MAX_TOKEN) == token then
    end_holder(claim, h, 'F')
    return 'ended', 'F'
  end
  local ended = get('f' .. digits(token))
  if ended then return 'before', ended:sub(1, 1) end
  return 'nothing', ''
end

-- Evicts a waiter of this replica whose call has ended, which may be back in the queue after data went back.
local function remove_waiter(id)
  local q = record('q' .. id)
  if not q or q.replica ~= replica then return 'nothing', '' end
  evict(id, q)
  return 'ended', 'L'
end

local function run()
  if not known and ARGV[4] ~= 'C' then return {'nothing', '', {'gone'}} end
  begin()

  local found, cause
  if ARGV[4] == 'H' then
    found, cause = release_hold(ARGV[5], tonumber(ARGV[6]), ARGV[7])
  elseif ARGV[4] == 'C' then
    found, cause = release_call(ARGV[5], ARGV[6])
  elseif ARGV[4] == 'W' then
    found, cause = remove_waiter(ARGV[5])
  else
    found, cause = force_release(tonumber(ARGV[6]))
  end
  extend()
  local next = ARGV[8] ~= '' and promote(ARGV[8], ARGV[9]) or {'gone'}
  -- If `next` is no longer in the queue, the first waiter is notified, even if it has been notified before.
  if ARGV[8] ~= '' and next[1] ~= 'held' and next[1] ~= 'waiting' and m.within > m.holders then
    newly_eligible[#newly_eligible + 1] = {m.front, required_record('q' .. m.front)}
  end
  return done({found, cause, next})
end
