#!lua flags=allow-oom
-- The locks that are held here, in the order of their names. A name that nobody has used for a minute
-- is forgotten until its next use.
-- KEYS  here 1 is what the keys of all locks begin with
-- ARGV  4 the first name, as ZRANGEBYLEX takes it, 5 the end, 6 how many to look at
-- Returns  {untrusted, now}
--          | {names, now, the last one looked at where there are more or '', how many were forgotten, name, ...}
if not votes then return {'untrusted', now} end
local found = call('ZRANGEBYLEX', names, ARGV[4], ARGV[5], 'LIMIT', 0, ARGV[6])
local answer = {'names', now, #found == tonumber(ARGV[6]) and found[#found] or '', 0}
for _, one in ipairs(found) do
  local lock = redis.pcall('HMGET', key .. one, 'secret', 'epoch', 'exp', 'freed')
  if lock.err then
    -- It is no record of ours: whoever looks at the lock is told so.
    answer[#answer + 1] = one
  elseif lock[1] and lock[2] == ARGV[1] and number(lock[3]) > now then
    answer[#answer + 1] = one
  elseif math.max(number(lock[3]), number(lock[4])) + 60000000 < now then
    call('ZREM', names, one)
    call('HDEL', key .. one, 'named')
    answer[4] = answer[4] + 1
  end
end
return answer
