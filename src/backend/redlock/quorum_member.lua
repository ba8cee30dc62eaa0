#!lua flags=allow-oom
-- Judges whether a node of a quorum remembers all that it has voted for, and keeps its marker. A node that
-- restarted, or that lost its marker with its data, may have forgotten: it is admitted anew, after its
-- quarantine. What was sent under an earlier admission counts for nothing.
-- KEYS  1 the marker
-- ARGV  1 run_id, 2 by hand 0|1: the caller was told to admit this very run, 3 absent: no marker means 0 perhaps a
--       loss, 1 a new node, 2 that it is told, 3 a loss, 4 a fresh nonce, 5 a nonce that has been waited for, or '',
--       6 the longest TTL in ms that the caller grants, 7 what no number of an earlier admission has reached, in us,
--       8 what none that the caller has heard of has reached, 9 how many nodes the caller's quorum has
-- Returns  {admitted, admission, longest in ms, used: whether it has voted, time in us}
--          | {pending, nonce, longest in ms, why: empty, lost or restarted, time in us}
--          | {missing, '', 0, '', time in us} | {other, '', 0, how many nodes its quorum has, time in us}
local LATEST = 2 ^ 52             -- as in prelude.lua
local key, run_id, fresh = KEYS[1], ARGV[1], ARGV[4]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local found = redis.call('HMGET', key, 'run_id', 'epoch', 'pending', 'nonce', 'longest', 'used', 'floor', 'lost',
  'nodes')
local was, epoch, pending, nonce, used = found[1], found[2], found[3], found[4], found[6] or ''
local known, mine = tonumber(found[5] or '0'), tonumber(ARGV[6])
local longest = math.max(known, mine)
-- Once a server that has been granted votes here found no marker, nobody takes the node for a new one.
local lost = not was and (found[8] or ARGV[3] == '3')
-- Majorities of quorums of different sizes need have no node in common.
if found[9] and found[9] ~= ARGV[9] then return {'other', '', 0, found[9], now} end
local function note()
  if longest > known then redis.call('HSET', key, 'longest', string.format('%.0f', longest)) end
end
if was == run_id then
  note()
  -- Its number was removed, because the nodes of the quorum change.
  if not found[9] then redis.call('HSET', key, 'nodes', ARGV[9]) end
  -- Who admitted it may have known less.
  if tonumber(ARGV[8]) > tonumber(found[7] or '0') then redis.call('HSET', key, 'floor', ARGV[8]) end
  return {'admitted', epoch, longest, used, now}
end
if not was and not lost and ARGV[3] == '2' then return {'missing', '', 0, '', now} end
local is_new = not was and not lost and ARGV[3] == '1'
local waited = pending == run_id and nonce == ARGV[5]
note()
if not (is_new or waited or ARGV[2] == '1') then
  if pending ~= run_id then
    nonce = fresh
    redis.call('HSET', key, 'pending', run_id, 'nonce', nonce)
    redis.call('HDEL', key, 'epoch')
  end
  if lost then redis.call('HSET', key, 'lost', '1') end
  return {'pending', nonce, longest, was and 'restarted' or lost and 'lost' or 'empty', now}
end
local floor = math.max(math.min(now, LATEST), tonumber(ARGV[7]))
redis.call('HDEL', key, 'pending', 'nonce', 'lost')
redis.call('HSET', key, 'run_id', run_id, 'epoch', fresh, 'floor', string.format('%.0f', floor), 'nodes', ARGV[9])
return {'admitted', fresh, longest, used, now}
