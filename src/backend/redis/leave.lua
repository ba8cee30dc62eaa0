#!lua flags=allow-oom
-- Takes a hold, a call's claim, a token's holder or a waiter that nobody knows out, and may take `next` up in the same
-- step.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 who H|C|F|W and
--       H: 5 claim, 6 token, 7 secret   C: 5 id, 6 call, 7 ''   F: 5 '', 6 token, 7 ''   W: 5 id, 6 '', 7 '';
--       8 the id of `next` or '', 9 its call
-- Returns  {ended|before|adopted|nothing, cause or '', what take_up returns for `next`}
-- Takes one hold of a holder out, and the holder with its last hold.
local function end_hold(claim, h, at, cause)
  if #h.holds == 1 then return end_holder(claim, h, cause) end
  local hold = table.remove(h.holds, at)
  finish(h, hold, cause, false)
  if hold.id ~= claim then del('j' .. hold.id) end
  put('h' .. claim, pack(h))
end
local function leave_hold(claim, token, secret)
  local h = holder(claim)
  for at, hold in ipairs(h and h.token == token and h.holds or {}) do
    if hold.secret == secret then
      end_hold(claim, h, at, 'R')
      return 'ended', 'R'
    end
  end
  local cause = remembered(secret, token)
  return cause == '' and 'nothing' or 'before', cause
end
local function leave_call(id, caller)
  local q = record('q' .. id)
  if q and q.call == caller then
    end_waiter(id, q)
    return 'ended', 'L'
  end
  local claim, h, hold, at = find_hold(id)
  if hold and hold.call == caller and not hold.adopted then
    end_hold(claim, h, at, 'T')
    return 'ended', 'T'
  end
  mark(caller)
  if q or hold then return 'adopted', '' end
  local old = record('i' .. id)
  if old then return 'before', old.cause end
  return 'nothing', ''
end
local function leave_token(token)
  -- One that began alone is the eldest for as long as it holds.
  local claim = get('t' .. digits(token)) or m.eldest
  local h = claim ~= '' and holder(claim)
  if h and h.token == token then
    end_holder(claim, h, 'F')
    return 'ended', 'F'
  end
  local ended = get('f' .. digits(token))
  if ended then return 'before', ended:sub(1, 1) end
  return 'nothing', ''
end

-- A waiter of this replica whose call has ended: data that went back has brought it back.
local function leave_waiter(id)
  local q = record('q' .. id)
  if not q or q.replica ~= replica then return 'nothing', '' end
  bury(id, q)
  return 'ended', 'L'
end

local function run()
  if not known and ARGV[4] ~= 'C' then return {'nothing', '', {'gone'}} end
  begin()

  local found, cause
  if ARGV[4] == 'H' then
    found, cause = leave_hold(ARGV[5], tonumber(ARGV[6]), ARGV[7])
  elseif ARGV[4] == 'C' then
    found, cause = leave_call(ARGV[5], ARGV[6])
  elseif ARGV[4] == 'W' then
    found, cause = leave_waiter(ARGV[5])
  else
    found, cause = leave_token(tonumber(ARGV[6]))
  end
  extend()
  local next = ARGV[8] ~= '' and take_up(ARGV[8], ARGV[9]) or {'gone'}
  -- Where the one that was named is not there any more, whoever stands first is told, also if it was before.
  if ARGV[8] ~= '' and next[1] ~= 'held' and next[1] ~= 'waiting' and m.within > m.holders then
    news[#news + 1] = {m.front, needed('q' .. m.front)}
  end
  return done({found, cause, next})
end
