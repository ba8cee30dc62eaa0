#!lua flags=allow-oom
-- Renews a lease. Never shortens it and never revives an ended one.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 claim, 5 token, 6 secret, 7 ttl, or 0 for the last one
-- Returns  {held, claim, mode, secret, token, ttl, holds, fresh, description} | {gone, cause or ''}
local function renew()
  local h = holder(ARGV[4])
  for _, hold in ipairs(h and h.token == tonumber(ARGV[5]) and h.holds or {}) do
    if hold.secret == ARGV[6] then
      local ttl = tonumber(ARGV[7])
      if ttl > 0 then hold.ttl = ttl end
      h.expires = math.max(h.expires, m.clock + hold.ttl)
      put('h' .. ARGV[4], pack(h))
      extend_expiry(ARGV[4], h)
      local answer = held_reply(ARGV[4], h, hold, false)
      answer[9] = get('d' .. ARGV[4]) or ''
      return answer
    end
  end
  return {'gone', remembered(ARGV[6], tonumber(ARGV[5]))}
end
local function run()
  if not known then return {'gone', ''} end
  begin()
  return done(renew())
end
