#!lua flags=allow-oom
-- Removes a root with its parts, but for a floor of tokens.
-- ARGV  1 the version that it must have; the floor
-- Returns  1 if it was removed, or there was none | 0
local function run()
  local damaged = read_head()
  if damaged then return damaged end
  local expected, least = struct.unpack('>c8d', ARGV[1])
  if version == NONE then return 1 end
  if version ~= expected then return 0 end
  local refused = denied('HSET') or denied('PEXPIRE')
  if refused then return refused end
  redis.call('UNLINK', key)
  local head = struct.pack(HEAD, clock, now, NONE, NONE, 0)
  redis.call('HSET', key, 'm', LAYOUT .. head, 'f', struct.pack('>d', least))
  redis.call('PEXPIRE', key, kept)
  return 1
end
