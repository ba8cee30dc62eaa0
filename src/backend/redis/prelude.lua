-- What every verb shares: one lock's hash, its clock, and how it is read and written.
-- It stands behind the first line of each verb's script, and lists.lua, claims.lua and purge.lua behind it.
-- KEYS[1] is the lock's hash throughout, and ARGV[1..3] are the namespace's channel prefix, the lock's name
-- and the caller's replica.
--
-- Fields of the hash (ids, secrets and calls are 16 raw bytes):
--   m          the lock's state, an array in the order of NUMBERS, then IDS
--   h<claim>   a holder        q<claim>   a waiter
--   n<claim>   who stands before and behind it: waiters in their order, holders in that of their tokens;
--              none for one that stands alone
--   o<place>   expiry and claim of a holder: a binary heap, 1 to m.holders without a gap. A renewal leaves
--              its entry where it is, so an entry tells when its holder expires at the earliest
--   y<claim>   the holder's place in that heap, where it is not 1
--   t<token>   the holder with a token, where it did not begin alone
--   d<claim>   what a claim shows of itself, opaque here
--   j<hold>    the claim that a re-entry's hold belongs to
--   e<owner>   the latest reentrant holder of an owner and identity; v<claim> those before and behind it
--   r<replica> when a replica that waits last called (on m.awake); R lists these replicas
--   f<token>   why a claim ended, and its last hold's secret; f<token><secret> why another hold of it did
--   L          the ids of the latest waiters that were taken from their calls (m.lost counts them), newest last
--   i<hold>    why a hold ended, for a retry    F<n> the fields of an end, oldest first
--   c<call>    the mark of a call that left     C<n> the marks, oldest first
-- Numbers are microseconds unless they count. They reach Redis through cmsgpack, struct or digits(),
-- never through tostring, which keeps only 14 digits.
--
-- What a call does is bounded, however many claims there are and were: a claim is found by its id, its
-- neighbours or the heap, and every walk has a limit. What a purge leaves undone the next calls do.
-- Nothing is written before commit(), at the very end: a script that fails has changed nothing.

local key, space, name, replica = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local call, pack, unpack_one = redis.call, cmsgpack.pack, cmsgpack.unpack

local BEAT = 1500000              -- a replica that waits calls this often
local SILENT = 4 * BEAT           -- one that did not for so long has died
local FINISHED_KEPT = 60000000
local MARKS_KEPT = 70000000
local MARKS_MOST = 10000
local VERSION = 2                 -- of this layout
local IDLE = 4 * 86400000000      -- how long an unused lock keeps its last token
-- What one call does at most:
local TOLD = 48                   -- waiters that come within the prefix
local TAKEN = 48                  -- waiters taken from their calls that are remembered
local EXPIRED = 16                -- holders that are looked at for their expiry
local SWEPT, BURIED = 150, 30     -- waiters that are looked at for a dead replica, and taken out
local SHOWN = 150                 -- holders and waiters together that are shown
local FORGOTTEN, TIDIED = 4, 120 -- ends, and marks, along the way and where that is what is to be done
local WRITTEN = 2000              -- arguments of one command
local NUMBERS = {
  'version', 'born', 'clock', 'awake', 'last', 'token', 'turn', 'edge', 'used', 'limit', 'within',
  'holders', 'waiters', 'x', 's', 'p', 'plimit', 'ppermits', 'frees', 'longest', 'hush', 'since', 'keep',
  'fin_from', 'fin_to', 'fin_at', 'fin_most', 'mark_from', 'mark_to', 'mark_at', 'watched', 'changes', 'active',
  'room', 'lost', 'shape',
}
-- The ends of the two lists, the first waiter that is not within the prefix, the one whose turn it is,
-- and the next to be looked at for a dead replica; '' is none.
local IDS = {'front', 'back', 'eldest', 'newest', 'beyond', 'head', 'sweep'}

local function digits(n) return string.format('%.0f', n) end
local function broken(what)
  error(redis.error_reply('BROKEN the record of the lock is damaged (' .. what .. '): delete its key once nobody uses the lock'))
end

-- Reads see what this call is going to write.
local unwritten, changed, messages = {}, false, {}
local function get(field)
  local value = unwritten[field]
  if value == nil then return call('HGET', key, field) end
  return value
end
local function put(field, value) unwritten[field], changed = value, true end
local function del(field) unwritten[field], changed = false, true end
local function record(field)
  local raw = get(field)
  return raw and unpack_one(raw)
end
local function needed(field) return record(field) or broken('no ' .. field:sub(1, 1)) end

local stamp = call('TIME')
local now = stamp[1] * 1000000 + stamp[2]
local raw = call('HGET', key, 'm')
local known = raw and true
local m = {}
if raw then
  local read, values = pcall(unpack_one, raw)
  if not read or type(values) ~= 'table' then broken('m') end
  if values[1] ~= VERSION then
    return redis.error_reply('LAYOUT the lock is stored in version ' .. tostring(values[1]) .. ', this is ' .. VERSION)
  end
  for i, field in ipairs(NUMBERS) do m[field] = tonumber(values[i]) or broken('m.' .. field) end
  for i, field in ipairs(IDS) do m[field] = values[#NUMBERS + i] or broken('m.' .. field) end
elseif call('EXISTS', key) == 1 then
  broken('no m')
else
  for _, field in ipairs(NUMBERS) do m[field] = 0 end
  for _, field in ipairs(IDS) do m[field] = '' end
  m.version, m.born, m.last, m.fin_most = VERSION, now, now, 1000
end

-- The lock's clock only adds what passed: a step of the server's clock back is no time at all.
-- For waiters, silence of everybody (a paused server) is two beats at most. Who only reads keeps the
-- clock where it was stepped back, and where nobody else does while there are waiters.
local passed = math.max(0, now - m.last)
if now < m.last or (m.waiters > 0 and passed >= 2 * BEAT) then changed = true end
m.last = now
m.clock = m.clock + passed
m.awake = m.awake + math.min(passed, 2 * BEAT)

-- How many waiters are not within the prefix.
local function beyond() return m.waiters - (m.within - m.holders) end
-- What counts, lists and heap say of each other, before a call and after it.
local function check_counts()
  local same = beyond() >= 0 and (beyond() == 0) == (m.beyond == '') and (m.waiters == 0) == (m.front == '')
    and (m.waiters == 0) == (m.back == '') and (m.holders == 0) == (m.eldest == '')
    and (m.holders == 0) == (m.newest == '') and (m.holders == 0) == (m.frees == 0)
  if not same then broken('its counts') end
end

-- HSET comes first: where that is refused, nothing has been written.
local function check_allowed(command)
  if redis.acl_check_cmd(command, key, '1') then return end
  error(redis.error_reply('NOPERM this user may not run ' .. command .. ' on the key of the lock'))
end
local function fields_in_turns(command, fields)
  for from = 1, #fields, WRITTEN do
    call(command, key, unpack(fields, from, math.min(from + WRITTEN - 1, #fields)))
  end
end

-- Writes all that a call changes: the key outlives every lease and the token it must not mint again.
-- What the user may not do is found out before, and messages that cannot be sent undo nothing.
local function commit()
  check_counts()
  if changed then
    local idle = m.token == 0 and 2 * MARKS_KEPT or IDLE
    local keep = math.max(0, m.longest - m.clock) + idle
    if m.keep < now + keep - idle / 8 then m.keep = now + keep else keep = nil end
    local values, sets, dels = {}, {}, {}
    for i, field in ipairs(NUMBERS) do values[i] = m[field] end
    for i, field in ipairs(IDS) do values[#NUMBERS + i] = m[field] end
    unwritten.m = pack(values)
    for field, value in pairs(unwritten) do
      if value then
        sets[#sets + 1], sets[#sets + 2] = field, value
      else
        dels[#dels + 1] = field
      end
    end
    if #dels > 0 then check_allowed('HDEL') end
    if keep then check_allowed('PEXPIRE') end
    fields_in_turns('HSET', sets)
    fields_in_turns('HDEL', dels)
    if keep then call('PEXPIRE', key, digits(keep / 1000)) end
  end
  for _, message in ipairs(messages) do redis.pcall('PUBLISH', message[1], message[2]) end
end

-- One change, for people who watch. Nothing is published while nobody does.
local function show(kind, shown, token)
  if m.watched <= m.clock then return end
  m.changes = m.changes + 1
  local frees_in = m.frees > 0 and math.max(0, m.frees - m.clock) or 0
  local head = table.concat(
    {kind, digits(m.changes), digits(token), digits(m.holders), digits(m.waiters), digits(frees_in)}, ' ')
  messages[#messages + 1] = {space .. 'c:' .. name, head .. '\n' .. (shown or '')}
end

-- Tells the replica of a waiter: 'n' it may be next, 'g' it is gone.
local function tell(kind, id, q)
  messages[#messages + 1] = {space .. 'w:' .. q.replica, kind .. id .. name}
end
