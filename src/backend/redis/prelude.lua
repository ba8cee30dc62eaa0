-- What every verb shares: one lock's hash, its clock, and how it is read and written.
-- lists.lua, claims.lua and purge.lua follow it, and then a verb as a script, or all verbs as a function library:
-- what a call keeps stands in the locals that start() sets, because a library lives on from call to call.
-- KEYS[1] is the lock's hash throughout, and ARGV[1..3] are the namespace's channel prefix, the lock's name
-- and the caller's replica.
--
-- Fields of the hash (ids, secrets and calls are 16 raw bytes):
--   m          the lock's state, the values of write_state() one after another
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

local key, space, name, replica, call, pack, unpack_one

local BEAT = 1500000              -- a replica that waits calls this often
local SILENT = 4 * BEAT           -- one that did not for so long has died
local FINISHED_KEPT = 60000000
local MARKS_KEPT = 70000000
local MARKS_MOST = 10000
local VERSION = 3                 -- of this layout
local IDLE = 4 * 86400000000      -- how long an unused lock keeps its last token
-- What one call does at most:
local TOLD = 32                   -- waiters that come within the prefix
local TAKEN = 48                  -- waiters taken from their calls that are remembered
local EXPIRED = 8                 -- holders that are looked at for their expiry
local SWEPT, BURIED = 100, 20     -- waiters that are looked at for a dead replica, and taken out
local SHOWN = 60                  -- holders and waiters together that are shown
local FORGOTTEN, TIDIED = 4, 60   -- ends, and marks, along the way and where that is what is to be done
local WRITTEN = 2000              -- arguments of one command

-- The state of a lock. `front` to `newest` are the ends of the two lists, `beyond` is the first waiter that is not
-- within the prefix, `head` the one whose turn it is, `sweep` the next to be looked at for a dead replica; '' is none.
local m
local function new_state()
  return {
    version = 0, born = 0, clock = 0, awake = 0, last = 0, token = 0, turn = 0, edge = 0, used = 0, limit = 0,
    within = 0, holders = 0, waiters = 0, x = 0, s = 0, p = 0, plimit = 0, ppermits = 0, frees = 0,
    longest = 0, hush = 0, since = 0, keep = 0, fin_from = 0, fin_to = 0, fin_at = 0, fin_most = 0,
    mark_from = 0, mark_to = 0, mark_at = 0, watched = 0, changes = 0, active = 0, room = 0, lost = 0,
    shape = 0,
    front = '', back = '', eldest = '', newest = '', beyond = '', head = '', sweep = '',
  }
end
local function write_state()
  return pack(
    m.version, m.born, m.clock, m.awake, m.last, m.token, m.turn, m.edge, m.used, m.limit, m.within, m.holders,
    m.waiters, m.x, m.s, m.p, m.plimit, m.ppermits, m.frees, m.longest, m.hush, m.since, m.keep, m.fin_from,
    m.fin_to, m.fin_at, m.fin_most, m.mark_from, m.mark_to, m.mark_at, m.watched, m.changes, m.active, m.room,
    m.lost, m.shape, m.front, m.back, m.eldest, m.newest, m.beyond, m.head, m.sweep
  )
end

local function digits(n) return string.format('%.0f', n) end
local function broken(what)
  error(redis.error_reply('BROKEN the record of the lock is damaged (' .. what .. '): delete its key once nobody uses the lock'))
end

local now, known, news
-- Reads see what this call is going to write.
local unwritten, changed, messages
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

-- Fills the state in, or returns the error for a record of another version.
local function read_state(raw)
  local read
  read,
  m.version, m.born, m.clock, m.awake, m.last, m.token, m.turn, m.edge, m.used, m.limit, m.within, m.holders,
  m.waiters, m.x, m.s, m.p, m.plimit, m.ppermits, m.frees, m.longest, m.hush, m.since, m.keep, m.fin_from,
  m.fin_to, m.fin_at, m.fin_most, m.mark_from, m.mark_to, m.mark_at, m.watched, m.changes, m.active, m.room,
  m.lost, m.shape, m.front, m.back, m.eldest, m.newest, m.beyond, m.head, m.sweep = pcall(unpack_one, raw)
  if not read then broken('m') end
  -- Versions 1 and 2 were an array.
  local version = type(m.version) == 'table' and m.version[1] or m.version
  if type(version) ~= 'number' or version < 1 or version > 31 then broken('m.version') end
  if version ~= VERSION then
    return redis.error_reply('LAYOUT the lock is stored in version ' .. version .. ', this is ' .. VERSION)
  end
  if type(m.shape) ~= 'number' or type(m.front) ~= 'string' or type(m.sweep) ~= 'string' then broken('m') end
end

-- How many waiters are not within the prefix.
local function beyond() return m.waiters - (m.within - m.holders) end
-- What counts, lists and heap say of each other. It is compared before anything is written or answered.
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
    local sets, dels = {}, {}
    unwritten.m = write_state()
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

-- Reads the lock before a verb, or returns the error to answer with.
local function start()
  key, space, name, replica = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
  call, pack, unpack_one = redis.call, cmsgpack.pack, cmsgpack.unpack
  unwritten, changed, messages, news = {}, false, {}, {}
  local stamp = call('TIME')
  now = stamp[1] * 1000000 + stamp[2]
  local raw = call('HGET', key, 'm')
  known, m = raw and true, new_state()
  if raw then
    local other = read_state(raw)
    if other then return other end
  elseif call('EXISTS', key) == 1 then
    broken('no m')
  else
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
end
