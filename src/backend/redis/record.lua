-- A lock's record: one root with parts, replaced by compare-and-set on the lock's clock. The scripts know nothing of what
-- it says: claims, leases and tokens are in the body.
-- KEYS[1] is the lock's hash:
--   m        LAYOUT, then the head: the clock, the server's TIME at the last commit, the root's version, the server with a
--            reservation, and until when it has it by the clock
--   b        the body
--   n        who has the next reservation, and for how long, or ''
--   <number> a part: the name has 8 bytes
--   f        what is left of a root that was removed, whose version is NONE: a floor, which none of its tokens exceeds
-- Times are microseconds in doubles; versions and servers have 8 bytes.
-- The clock begins with TIME and advances with it. It stands still while TIME goes back.

-- msgpack: the version of the layout, and a string of 40 bytes, the head. Earlier releases refuse it by its version.
local LAYOUT = '\4\217\40'
local HEAD = '>ddc8c8d'
local NONE = '\0\0\0\0\0\0\0\0'
local DAY = 86400000
-- Until when tokens follow TIME, in the year 2112.
local LATEST = 2 ^ 52
-- Arguments of one Redis command.
local MAX_ARGUMENTS = 2000

local key, now, kept, raw, clock, last, version, reserved_for, reserved_until, is_reserved

local function start()
  key = KEYS[1]
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
  -- How long a root is kept behind its last lease, and the floor of a removed one, in milliseconds, so that no token is
  -- minted twice although TIME goes back, or is beyond LATEST.
  kept = now < LATEST and 4 * DAY or LATEST
end

local function broken(what)
  return redis.error_reply('BROKEN the record of the lock is damaged (' .. what .. '): delete its key once nobody uses the lock')
end

-- Reads the head, or returns the error for a record that is none or has another layout.
local function read_head()
  raw = redis.call('HGET', key, 'm')
  clock, last, version, reserved_for, is_reserved = now, now, NONE, NONE, false
  if not raw then
    if redis.call('EXISTS', key) == 1 then return broken('no m') end
    return
  end
  local layout = string.byte(raw) or 0
  if layout ~= 4 and layout > 0 and layout < 32 then
    return redis.error_reply('LAYOUT the lock is stored in version ' .. layout .. ', this is 4')
  end
  if #raw ~= 43 or string.sub(raw, 1, 3) ~= LAYOUT then return broken('m') end
  clock, last, version, reserved_for, reserved_until = struct.unpack(HEAD, raw, 4)
  if version == NONE then
    clock = now
    return
  end
  if now > last then clock = clock + (now - last) end
  -- While TIME is behind, the clock would not reach the end of a reservation.
  is_reserved = reserved_until > clock and now >= last
end

-- The floor of tokens that a root that was removed has left.
local function floor()
  local left = raw and version == NONE and redis.call('HGET', key, 'f')
  return left and struct.unpack('>d', left) or 0
end

-- The reply that shows the root: the clocks and the floor; the reservation, or ''; and then nothing if there is no root,
-- '' if it is the known one, or its stamp and version, and its body, or '' without it.
local function found(known, with_body)
  local reply = {
    struct.pack('>ddd', clock, now, floor()), is_reserved and reserved_for .. struct.pack('>d', reserved_until) or '',
  }
  if version ~= NONE then
    reply[3] = version == known and '' or string.sub(raw, 4, 27)
    if version ~= known then reply[4] = with_body and redis.call('HGET', key, 'b') or '' end
  end
  return reply
end

-- The error, before anything is written, if the user may not run a command on the key.
local function denied(command)
  if redis.acl_check_cmd(command, key, '1') then return end
  return redis.error_reply('DENIED this user may not run ' .. command .. ' on the key of the lock')
end

-- Reserves the lock for a server, or lets it follow the one that has the reservation, if none follows that one yet.
local function reserve_for(server, period)
  if not is_reserved then
    is_reserved, reserved_for, reserved_until = true, server, clock + period
    redis.call('HSET', key, 'm', string.sub(raw, 1, 27) .. server .. struct.pack('>d', reserved_until))
  elseif reserved_for ~= server and (redis.call('HGET', key, 'n') or '') == '' then
    redis.call('HSET', key, 'n', server .. struct.pack('>d', period))
  end
end

-- ARGV  1 the version that the root must have, or NONE; the new version; the server; not_before, not_after by the clock;
--       latest by TIME; the known floor; for how long to reserve, or 0; how many milliseconds the longest lease goes on;
--       how many parts to write, and messages to publish
--       2 the body, then the parts (number, text), the messages (channel, text), and the numbers of parts to delete
-- Returns  the clock and TIME that the root was stamped with | what was found, if it was refused
local function commit()
  local damaged = read_head()
  if damaged then return damaged end
  local expected, new, server, not_before, not_after, latest, least, reserve, keep, puts, messages =
    struct.unpack('>c8c8c8ddddddHH', ARGV[1])
  if version ~= expected or (is_reserved and reserved_for ~= server) then
    if version ~= NONE and reserve > 0 then reserve_for(server, reserve) end
    return found(expected, true)
  end
  if clock < not_before or clock >= not_after or now > latest or floor() > least then return found(expected, true) end
  local lapses, from = redis.call('PTTL', key) < keep + kept, 3 + 2 * puts + 2 * messages
  local refused = lapses and denied('PEXPIRE') or from <= #ARGV and denied('HDEL')
  if refused then return refused end
  local stamp = struct.pack('>dd', clock, now)
  local follows, reservation = reserved_for ~= NONE and redis.call('HGET', key, 'n') or '', NONE .. NONE
  if follows ~= '' and string.sub(follows, 1, 8) ~= server then
    reservation = string.sub(follows, 1, 8) .. struct.pack('>d', clock + struct.unpack('>d', follows, 9))
  end
  local head = LAYOUT .. stamp .. new .. reservation
  local written = redis.pcall('HSET', key, 'm', head, 'b', ARGV[2], unpack(ARGV, 3, 2 + 2 * puts))
  if type(written) == 'table' then return denied('HSET') or written end
  if follows ~= '' then redis.call('HSET', key, 'n', '') end
  if lapses then redis.call('PEXPIRE', key, keep + kept + DAY) end
  for first = from, #ARGV, MAX_ARGUMENTS do
    redis.call('HDEL', key, unpack(ARGV, first, math.min(first + MAX_ARGUMENTS - 1, #ARGV)))
  end
  -- A message that cannot be published is lost.
  for at = 3 + 2 * puts, from - 1, 2 do redis.pcall('PUBLISH', ARGV[at], stamp .. ARGV[at + 1]) end
  return stamp
end
