-- What every verb shares: one lock's hash at one node, whether the node votes, and who holds here.
-- It stands behind the first line of each verb's script. KEYS: 1 the lock's hash, 2 the node's marker,
-- 3 the names in use; ARGV: 1 the admission that the caller knows, 2 the channel, 3 the lock's name.
--
-- Fields of the hash (ids, secrets, calls and admissions are raw bytes):
--   c       the counter: the last number that was handed out here; neither release nor expiry resets it
--   secret, round, val, exp, epoch, claim, call, ttl, since, shown    the holder here
--   named   whether the lock is among the names in use; freed: when its last lease ended
--   waits, watched   until when somebody wants to hear that the lock is free, or of each change
--   lt, lc, ls       the token, the cause and the note of the last end
--   s<secret>        why a lease, or which attempts of it, ended: cause (- for none), the last round that is over,
--                    token, until when it is kept
--   m<call>          the mark of a call that left
--   x<n>             both, oldest first, from+1 to `to`; most: how many are kept
--   wide             nothing: a value so long that Redis stores the hash as a table. A short list of pairs, as it
--                    does by default up to 512 of them, is searched from its beginning for each field.
-- Numbers are microseconds unless they count. They reach Redis through digits(), never through
-- tostring, which keeps only 14 digits.

local key, marker, names = KEYS[1], KEYS[2], KEYS[3]
local call = redis.call
local KEPT = 70000000             -- how long an end is remembered at the least
local IDLE = 4 * 86400000         -- how long an unused lock keeps its counter, in ms
local ALL = 999999999             -- past every round of an attempt
local LISTED = 16                 -- how many ends may be in a list of pairs
local AHEAD = 1000000             -- how far a number may be past the clock and be forgotten with its lock
local MAX_NUMBER = 2 ^ 53 - 1     -- the largest token; a larger number was never one, and does not count
local LATEST = 2 ^ 52             -- numbers follow no clock past this (the year 2112)

local function digits(n) return string.format('%.0f', n) end
local function number(text) return tonumber(text or '0') end
local function counting(n) return n and n <= MAX_NUMBER and n or nil end
local stamp = call('TIME')
local now = stamp[1] * 1000000 + stamp[2]
local scale = math.min(now, LATEST)
local admitted = call('HMGET', marker, 'epoch', 'floor', 'used', 'longest')
local votes = admitted[1] and admitted[1] == ARGV[1]
local floor = counting(number(admitted[2])) or 0
local raw = call('HMGET', key, 'c', 'secret', 'round', 'val', 'exp', 'epoch', 'claim', 'call', 'ttl', 'since', 'shown',
  'waits', 'watched', 'from', 'to', 'most', 'named')
local c, waits, watched = counting(tonumber(raw[1] or nil)), number(raw[12]), number(raw[13])
local from, till, most = number(raw[14]), number(raw[15]), number(raw[16] or '1000')

-- The holder here. One of another admission counts for nothing: this node may have forgotten who came
-- after it.
local holder
if raw[2] and raw[6] == admitted[1] and counting(number(raw[4])) then
  holder = {
    secret = raw[2], round = number(raw[3]), val = number(raw[4]), exp = number(raw[5]), claim = raw[7],
    call = raw[8], ttl = number(raw[9]), since = raw[10], shown = raw[11],
  }
end

-- Keeps the hash for so many ms more, and for no less than before.
local function outlive(ms)
  if call('PEXPIRE', key, digits(ms), 'GT') == 0 then call('PEXPIRE', key, digits(ms), 'NX') end
end
local function keep(ttl) outlive(IDLE + ttl / 1000) end

local function clear()
  call('HDEL', key, 'secret', 'round', 'val', 'exp', 'epoch', 'claim', 'call', 'ttl', 'since', 'shown')
  holder = nil
end

-- Remembers something in a field until its time has come, and forgets the oldest; a few each time.
local function remember(field, value, longest)
  local left = math.max(KEPT, longest)
  if call('HSET', key, field, value .. digits(now + left)) == 1 then
    till = till + 1
    call('HSET', key, 'x' .. digits(till), field, 'to', digits(till))
    if till - from == LISTED then call('HSET', key, 'wide', string.rep('-', 65)) end
    -- A lock that was never held here is forgotten with what is remembered of it.
    if not c or left > IDLE * 1000 then outlive(left / 1000 + 1000) end
  end
  for _ = 1, 3 do
    if from >= till then break end
    local at = 'x' .. digits(from + 1)
    local oldest = call('HGET', key, at)
    local value = oldest and call('HGET', key, oldest)
    if till - from <= most and value and number(string.match(value, '%d+$')) > now then break end
    from = from + 1
    call('HDEL', key, at, oldest or '')
    call('HSET', key, 'from', digits(from))
  end
end
local function entomb(secret, cause, round, token, longest)
  remember('s' .. secret, cause .. ' ' .. digits(round) .. ' ' .. digits(token) .. ' ', longest)
end
-- Why a secret's lease ended: cause, the last round that is over, token.
local function ended(secret)
  local value = call('HGET', key, 's' .. secret)
  if not value then return end
  local cause, round, token = string.match(value, '^(.) (%d+) (%d+) %d+$')
  return cause, number(round), number(token)
end

-- A number far past the clock lifts the floor of all locks: an unused lock is forgotten some day, and the clock
-- may not have come to its numbers by then. By a clock past LATEST each number does.
local function lift(val)
  if (val > scale + AHEAD or now > LATEST) and val >= floor then call('HSET', marker, 'floor', digits(val + 1)) end
end

local function tell(kind) call('PUBLISH', ARGV[2], kind .. ARGV[3]) end
local function changed()
  if watched > now then tell('c') end
end
local function freed(val)
  if waits > now then
    call('HDEL', key, 'waits')
    waits = 0
    tell('r' .. digits(val) .. ' ')
  else
    changed()
  end
end

-- Ends the lease that holds here, and says its number. Time ends a vote as the end of its attempt would: its
-- call may never have heard of it, and goes on with later rounds.
local function finish(cause)
  local val = holder.val
  entomb(holder.secret, cause, cause == 'E' and holder.round or ALL, val, holder.ttl)
  call('HSET', key, 'lt', digits(val), 'lc', cause, 'ls', holder.shown, 'freed', digits(now))
  clear()
  return val
end
local function name()
  if raw[17] then return end
  call('ZADD', names, 0, ARGV[3])
  call('HSET', key, 'named', '1')
end
-- Somebody wants to hear when the lock is free.
local function hear()
  if waits < now + 3000000 then call('HSET', key, 'waits', digits(now + 6000000)) end
end
local function use()
  if not admitted[3] then call('HSET', marker, 'used', '1') end
end

if raw[2] and not holder and votes then clear() end
-- No lease is so long: the clock was ahead when it was written. Nobody knows when it would have ended.
local most = 2000 * number(admitted[4])
if holder and votes and most > 0 and holder.exp > now + most then
  holder.exp = now + most
  call('HSET', key, 'exp', digits(holder.exp))
end
if holder and holder.exp <= now and votes then
  freed(finish('E'))
end
