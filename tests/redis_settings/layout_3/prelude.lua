-- Shared by all verbs: the layout of a lock's hash, the lock's clock, and reading and writing.
-- lists.lua, claims.lua and purge.lua follow, and then either one verb as a script or all verbs as a function library.
-- start() sets all locals that hold the state of a call, because the locals of a library survive the call.
-- KEYS[1] is always the lock's hash, and ARGV[1..3] are the namespace's channel prefix, the lock's name and the id of
-- the calling replica.
--
-- Fields of the hash (ids, secrets and calls are 16 raw bytes):
--   m          the lock's state, the values of write_state() one after another
--   h<claim>   a holder        q<claim>   a waiter
--   n<claim>   the claims before and after it: waiters in queue order, holders in the order of their tokens;
--              absent for the only claim of a list
--   o<place>   expiry and claim of a holder: a binary heap, 1 to m.holders without a gap. A renewal does not move the
--              entry (except at the root), so an entry has the earliest time at which its holder expires
--   y<claim>   the holder's place in that heap, if it is not 1
--   l          there if there were semaphore claims of several limits in the queue, until it has no semaphore claim
--   l<limit>   the number of claims in the prefix with this limit, if it is not the smallest one there
--   g<place>   a limit that has an l<limit>: a binary heap, 1 to m.limits without a gap
--   k<limit>   the limit's place in that heap, if it is not 1
--   t<token>   the holder with a token, unless it began as the only holder
--   d<claim>   a claim's description (owner, identity, metadata), opaque to the scripts
--   j<hold>    the claim that the hold of a re-entry belongs to
--   e<owner>   the latest reentrant holder of an owner and identity; v<claim> the ones before and after it
--   r<replica> the time (on m.awake) of the last heartbeat of a replica with waiters; R lists these replicas
--   f<token>   the cause of a claim's end and the secret of its last hold; f<token><secret> the cause for another hold
--   L          the ids of the latest waiters that were taken from their calls (m.lost counts them), newest last
--   i<hold>    the cause of a hold's end, for a retry    F<n> the fields of an ended hold, oldest first
--   c<call>    the cancel mark of a call                 C<n> the cancel marks, oldest first
-- Times are microseconds. Numbers are written with cmsgpack, struct or digits(), never with tostring, which keeps only
-- 14 digits.
--
-- The work of a call is bounded, however many claims the lock has or had: a claim is found by its id, its neighbours or
-- the heap, and every loop over claims has a limit, except in recount_limits(). The next calls finish a purge that exceeds
-- it.
-- Nothing is written before commit(), at the end of the call, so a script that fails has changed nothing.

local key, space, name, replica, call, pack, unpack_one

local HEARTBEAT = 1500000                  -- interval of the heartbeats of a replica with waiters
local REPLICA_TIMEOUT = 4 * HEARTBEAT      -- a replica without a heartbeat for so long has died
local HISTORY_RETENTION = 60000000
local MARK_RETENTION = 70000000
local MAX_MARKS = 10000
local VERSION = 3                          -- version of this layout
local IDLE_RETENTION = 4 * 86400000000     -- how long an unused lock keeps its last token (4 days)
-- Limits of one call:
local MAX_NOTIFIED = 32                    -- waiters that enter the prefix
local MAX_TAKEN = 48                       -- waiters taken from their calls that field L remembers
local MAX_EXPIRED = 8                      -- holders that are checked for their expiry
local MAX_SWEPT, MAX_EVICTED = 100, 20     -- waiters that are checked for a dead replica, and evicted
local MAX_LISTED = 60                      -- holders and waiters together that inspect.lua returns
local PRUNED, PRUNED_BY_TIDY = 4, 60       -- ended holds, and cancel marks, deleted by any verb and by tidy.lua
local MAX_ARGUMENTS = 2000                 -- arguments of one Redis command

-- The state of a lock. `front`, `back`, `eldest` and `newest` are the ends of the two lists. `beyond` is the first
-- waiter outside the prefix, `head` the eligible waiter at the front, and `sweep` the next waiter to check for a dead
-- replica; '' means none. `mixed`, `larger` and `limits` are last: releases that refuse mixed limits do not read them, and
-- leave them out when they write. Such a release never keeps a `limit` that is too large.
local m
local function new_state()
  return {
    version = 0, born = 0, clock = 0, awake = 0, last = 0, token = 0, turn = 0, edge = 0, used = 0, limit = 0,
    within = 0, holders = 0, waiters = 0, x = 0, s = 0, p = 0, plimit = 0, ppermits = 0, frees = 0,
    longest = 0, hush = 0, since = 0, keep = 0, fin_from = 0, fin_to = 0, fin_at = 0, fin_most = 0,
    mark_from = 0, mark_to = 0, mark_at = 0, watched = 0, changes = 0, active = 0, room = 0, lost = 0,
    shape = 0, mixed = 0, larger = 0, limits = 0,
    front = '', back = '', eldest = '', newest = '', beyond = '', head = '', sweep = '',
  }
end
local function write_state()
  return pack(
    m.version, m.born, m.clock, m.awake, m.last, m.token, m.turn, m.edge, m.used, m.limit, m.within, m.holders,
    m.waiters, m.x, m.s, m.p, m.plimit, m.ppermits, m.frees, m.longest, m.hush, m.since, m.keep, m.fin_from,
    m.fin_to, m.fin_at, m.fin_most, m.mark_from, m.mark_to, m.mark_at, m.watched, m.changes, m.active, m.room,
    m.lost, m.shape, m.front, m.back, m.eldest, m.newest, m.beyond, m.head, m.sweep, m.mixed, m.larger, m.limits
  )
end

-- `%d` takes half the time of `%.0f`, but holds only 32 bits where a C `long` has no more.
local function digits(n) return string.format(n < 2 ^ 31 and '%d' or '%.0f', n) end
local function broken(what)
  error(redis.error_reply('BROKEN the record of the lock is damaged (' .. what .. '): delete its key once nobody uses the lock'))
end

local now, known, newly_eligible
-- `unwritten` buffers the writes of this call; reads include them.
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
local function required_record(field) return record(field) or broken('no ' .. field:sub(1, 1)) end

-- Reads the state into m, or returns the error for a record of another version.
local function read_state(raw)
  local read
  read,
  m.version, m.born, m.clock, m.awake, m.last, m.token, m.turn, m.edge, m.used, m.limit, m.within, m.holders,
  m.waiters, m.x, m.s, m.p, m.plimit, m.ppermits, m.frees, m.longest, m.hush, m.since, m.keep, m.fin_from,
  m.fin_to, m.fin_at, m.fin_most, m.mark_from, m.mark_to, m.mark_at, m.watched, m.changes, m.active, m.room,
  m.lost, m.shape, m.front, m.back, m.eldest, m.newest, m.beyond, m.head, m.sweep, m.mixed, m.larger,
  m.limits = pcall(unpack_one, raw)
  if not read then broken('m') end
  -- Versions 1 and 2 were an array.
  local version = type(m.version) == 'table' and m.version[1] or m.version
  if type(version) ~= 'number' or version < 1 or version > 31 then broken('m.version') end
  if version ~= VERSION then
    return redis.error_reply('LAYOUT the lock is stored in version ' .. version .. ', this is ' .. VERSION)
  end
  if type(m.shape) ~= 'number' or type(m.front) ~= 'string' or type(m.sweep) ~= 'string' then broken('m') end
end

-- The number of waiters outside the prefix.
local function beyond() return m.waiters - (m.within - m.holders) end
-- Checks that counts, lists and heap agree, before anything is written or returned.
local function check_counts()
  local same = beyond() >= 0 and (beyond() == 0) == (m.beyond == '') and (m.waiters == 0) == (m.front == '')
    and (m.waiters == 0) == (m.back == '') and (m.holders == 0) == (m.eldest == '')
    and (m.holders == 0) == (m.newest == '') and (m.holders == 0) == (m.frees == 0)
  if not same then broken('its counts') end
end

-- Fails if the user may not run a command on the key. HSET needs no check: it runs first, so nothing has been written
-- if it is refused.
local function check_allowed(command)
  if redis.acl_check_cmd(command, key, '1') then return end
  error(redis.error_reply('NOPERM this user may not run ' .. command .. ' on the key of the lock'))
end
local function in_batches(command, fields, count)
  for from = 1, count, MAX_ARGUMENTS do
    call(command, key, unpack(fields, from, math.min(from + MAX_ARGUMENTS - 1, count)))
  end
end

-- Writes all changes of a call and publishes its messages. The expiry of the key is later than that of every lease, and
-- late enough that no token is minted twice. The user's permissions are checked before the first write. A message that
-- cannot be published does not fail the call.
local function commit()
  check_counts()
  if changed then
    local idle = m.token == 0 and 2 * MARK_RETENTION or IDLE_RETENTION
    local keep = math.max(0, m.longest - m.clock) + idle
    if m.keep < now + keep - idle / 8 then m.keep = now + keep else keep = nil end
    -- With room for what most calls write, so that the arrays do not grow step by step.
    local sets, set_count = {nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil, nil}, 0
    local dels, del_count = {nil, nil, nil, nil, nil, nil}, 0
    unwritten.m = write_state()
    for field, value in pairs(unwritten) do
      if value then
        sets[set_count + 1], sets[set_count + 2], set_count = field, value, set_count + 2
      else
        del_count = del_count + 1
        dels[del_count] = field
      end
    end
    if del_count > 0 then check_allowed('HDEL') end
    if keep then check_allowed('PEXPIRE') end
    in_batches('HSET', sets, set_count)
    in_batches('HDEL', dels, del_count)
    if keep then call('PEXPIRE', key, digits(keep / 1000)) end
  end
  for _, message in ipairs(messages) do redis.pcall('PUBLISH', message[1], message[2]) end
end

-- Publishes a change for watchers, if the lock has any.
local function publish_change(kind, description, token)
  if m.watched <= m.clock then return end
  m.changes = m.changes + 1
  local frees_in = m.frees > 0 and math.max(0, m.frees - m.clock) or 0
  local head = table.concat(
    {kind, digits(m.changes), digits(token), digits(m.holders), digits(m.waiters), digits(frees_in)}, ' ')
  messages[#messages + 1] = {space .. 'c:' .. name, head .. '\n' .. (description or '')}
end

-- Notifies the replica of a waiter: 'n' the waiter may be eligible, 'g' the waiter is gone.
local function notify(kind, id, q)
  messages[#messages + 1] = {space .. 'w:' .. q.replica, kind .. id .. name}
end

-- Reads the lock before a verb, or returns the error reply.
local function start()
  key, space, name, replica = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
  call, pack, unpack_one = redis.call, cmsgpack.pack, cmsgpack.unpack
  unwritten, changed, messages, newly_eligible = {}, false, {}, {}
  local stamp = call('TIME')
  now = stamp[1] * 1000000 + stamp[2]
  local raw = call('HGET', key, 'm')
  known = raw and true
  if raw then
    -- The state of the previous call is overwritten, because a new table costs more than all its fields.
    m = m or new_state()
    local other = read_state(raw)
    if other then return other end
  elseif call('EXISTS', key) == 1 then
    broken('no m')
  else
    m = new_state()
    m.version, m.born, m.last, m.fin_most = VERSION, now, now, 1000
  end
  -- The lock's clock adds only elapsed time; a backward step of the server's clock counts as no time. For the liveness
  -- of waiters (m.awake), a time without any call (a paused server) counts as at most two heartbeats. A call that would
  -- only read also writes the clock after a backward step, and if there are waiters and the last write is two
  -- heartbeats ago.
  local passed = math.max(0, now - m.last)
  if now < m.last or (m.waiters > 0 and passed >= 2 * HEARTBEAT) then changed = true end
  m.last = now
  m.clock = m.clock + passed
  m.awake = m.awake + math.min(passed, 2 * HEARTBEAT)
end
