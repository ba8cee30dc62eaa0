#!lua flags=allow-oom
-- Adds 1 to the counter of a server.
-- KEYS  1 the hash of the namespace's servers: counter and TIME of the last beat, by id
-- ARGV  1 the server
-- Returns  {server, counter, …}; the counters that stand still are removed after an hour
local function run()
  local all, counter, reply = redis.call('HGETALL', key), now, {}
  for at = 1, #all, 2 do
    local count, time = struct.unpack('>dd', all[at + 1])
    if all[at] == ARGV[1] then
      counter = count + 1
    elseif time < now - 3600000000 then
      redis.call('HDEL', key, all[at])
    else
      reply[#reply + 1], reply[#reply + 2] = all[at], struct.pack('>d', count)
    end
  end
  redis.call('HSET', key, ARGV[1], struct.pack('>dd', counter, now))
  reply[#reply + 1], reply[#reply + 2] = ARGV[1], struct.pack('>d', counter)
  return reply
end
