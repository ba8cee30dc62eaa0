#!lua flags=allow-oom
-- Renews a lease. Never shortens it and never revives an ended one.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 claim, 5 token, 6 secret, 7 ttl, or 0 for the last one
-- Returns  {held, claim, mode, secret, token, ttl, holds, fresh, description} | {gone, cause or ''}
local function renew()
  local token = tonumber(ARGV[5])
  local h, hold = hold_of(ARGV[4], token, ARGV[6])
  if not hold then return {'gone', remembered(ARGV[6], token)} end
  local ttl = tonumber(ARGV[7])
  if ttl > 0 then hold.ttl = ttl end
  h.expires = math.max(h.expires, m.clock + hold.ttl)
  put('h' .. ARGV[4], pack(h))
  extend_expiry(ARGV[4], h)
  local answer = held_reply(ARGV[4], h, hold, false)
  answer[9] = get('d' .. ARGV[4]) or ''
  return answer
end
local function run()
  if not known then return {'gone', ''} end
  begin()
  return done(renew())
end
