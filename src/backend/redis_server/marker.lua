#!lua flags=allow-oom
-- Judges whether the server behind this connection remembers what was granted, and keeps the marker.
-- KEYS  1 the marker
-- ARGV  1 run_id, 2 history, 3 history before, 4 uptime in ms, 5 durable 0|1,
--       6 1: the caller was admitted under this very run_id, 2: an operator admits it,
--       7 what no marker means: 0 not known, 1 a new store, 2 a loss, because the caller has granted in it,
--       8 the caller's nonce for a quarantine, 9 a nonce that has been waited for, or '',
--       10 the longest TTL in ms that the caller grants, 11 when the caller last saw a marker written, in ms, or 0,
--       12 how often this marker had been written then, or 0, 13 the caller's id
-- Returns  {admitted, '', longest in ms, when the marker was written, in ms, how often it was, ''}
--          | {pending, nonce, longest in ms, 0, 0, why: empty, lost, restarted, or older}
local key, run_id = KEYS[1], ARGV[1]
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local found = redis.call('HMGET', key, 'run_id', 'history', 'durable', 'written', 'longest', 'until', 'pending', 'nonce',
  'lost', 'writes', 'older', 'base')
local was, history, durable, written = found[1], found[2], found[3], tonumber(found[4] or '0')
local longest, till, pending, nonce = tonumber(found[5] or '0'), tonumber(found[6] or '0'), found[7], found[8]
-- Once a server that has granted here found no marker, nobody takes the store for a new one.
local lost = not was and (found[9] or ARGV[7] == '2')
-- What was there before is not: each writing is counted, and each caller's last one is kept, so that the writings of those
-- who came after a loss hide it from nobody. Until that was waited for, nobody believes the store. An admission that is above
-- all that the caller saw was made after a wait, or by an operator.
local writes, base, saw = tonumber(found[10] or '0'), tonumber(found[12] or '0'), tonumber(ARGV[12])
local by = 'by:' .. ARGV[13]
local own = tonumber(redis.call('HGET', key, by) or '0')
local older = found[11] or was and saw > 0 and (own < saw and base <= saw or ARGV[6] == '1' and was ~= run_id)
local function whole(n) return string.format('%.0f', n) end

-- A promoted replica has gone on from the history that the marker names, and its process is older
-- than the marker's last writing: it did not restart with less. Both ends of its uptime are whole
-- seconds, so it may look a second older than it is. By a clock that is behind the marker's, nothing
-- is known of its age. A copy may have stopped long before the promotion, for the master is followed without
-- being waited for: it has to have what the caller saw written, but for a few seconds. A caller that saw nothing
-- believes a copy of the last minute.
local function promoted()
  local follows = history and (history == ARGV[2] or history == ARGV[3])
  local runs_on = now >= written - 5000 and now - tonumber(ARGV[4]) <= written - 1000
  local seen = tonumber(ARGV[11])
  local fresh = seen > 0 and written >= seen - 5000 or seen == 0 and now - written <= 60000
  return follows and runs_on and fresh and pending ~= run_id
end
local function trusted()
  if ARGV[6] == '2' or pending == run_id and nonce == ARGV[9] then return true end
  if was and was ~= run_id and not found[11] and promoted() then return true end
  if older then return false end
  if was == run_id or ARGV[6] == '1' then return true end
  if was and durable == '1' and ARGV[5] == '1' then return true, true end
  return not was and not lost and ARGV[7] == '1'
end
local mine = tonumber(ARGV[10])
local is_trusted, has_all = trusted()
if not is_trusted then
  if pending ~= run_id then nonce = ARGV[8] end
  -- The marker may be as old as the rest of the data: a longer TTL may have been granted since, and by
  -- whom is only known when it comes.
  longest = math.max(longest, mine)
  redis.call('HSET', key, 'pending', run_id, 'nonce', nonce, 'longest', whole(longest))
  if lost then redis.call('HSET', key, 'lost', '1') end
  if older then redis.call('HSET', key, 'older', '1') end
  return {'pending', nonce, longest, 0, 0, older and 'older' or was and 'restarted' or lost and 'lost' or 'empty'}
end

-- Every lease in force has a TTL of at most `longest`; when nobody has granted such for so long that
-- all have ended, it shrinks.
if now > till then longest = 0 end
if mine >= longest then
  longest, till = mine, now + 2 * mine
end
-- Those of callers who are gone: behind an admission nobody asks for them, and after a day nobody comes back for them.
local function forget(least)
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if string.sub(field, 1, 3) == 'by:' and tonumber(redis.call('HGET', key, field)) < least then
      redis.call('HDEL', key, field)
    end
  end
end
if has_all then
  base, writes = writes, writes + 1
elseif was == run_id and not older then
  writes = writes + 1
else
  -- That of a new admission is above each one that others have seen of the last, also by a clock that is behind.
  writes = math.max(writes + 1000, now)
  base = writes
  forget(base)
end
if redis.call('HLEN', key) > 200 then forget(writes - 200000) end
redis.call('HDEL', key, 'pending', 'nonce', 'lost', 'older')
redis.call('HSET', key, 'run_id', run_id, 'history', ARGV[2], 'durable', ARGV[5], 'written', whole(now),
  'longest', whole(longest), 'until', whole(till), 'writes', whole(writes),
  'base', whole(base), by, whole(writes))
return {'admitted', '', longest, now, writes, ''}
