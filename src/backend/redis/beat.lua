#!lua flags=allow-oom
-- Adds 1 to the counter of a server.
-- KEYS  1 the hash of the namespace's servers: counter and TIME of the last beat, by id
-- ARGV  1 the server
-- Returns  {server, counter, …}; counters that stand still for an hour are removed, and damaged ones
local function run()
  local all, counter, reply = redis.call('HGETALL', key), now, {}
  for at = 1, #all, 2 do
    local server, value, count, time = all[at], all[at + 1], 0, -math.huge
    if #server == 8 and server ~= NONE and #value == 16 then count, time = struct.unpack('>dd', value) end
    if time < now - 3600000000 then
      redis.call('HDEL', key, server)
    elseif server == ARGV[1] then
      counter = count + 1
    else
      reply[#reply + 1], reply[#reply + 2] = server, struct.pack('>d', count)
    end
  end
  redis.call('HSET', key, ARGV[1], struct.pack('>dd', counter, now))
  reply[#reply + 1], reply[#reply + 2] = ARGV[1], struct.pack('>d', counter)
  return reply
end
