#!lua flags=allow-oom
-- Lengthens a lease that holds here: never shortens, never revives. Past its attempt it is settled:
-- no late end of an attempt takes it away.
-- ARGV  4 secret, 5 claim, 6 token, 7 ttl or 0 for its last
-- Returns  {ok, now, what remains, ttl, call, since, shown} | {behind, now} | {before, now, cause} | {no, now}
--          | {untrusted, now}
if not votes then return {'untrusted', now} end
local token = tonumber(ARGV[6])
if holder and holder.secret == ARGV[4] and holder.claim == ARGV[5] then
  if holder.val < token then return {'behind', now} end
  if holder.val > token or c > token then return {'no', now} end
  local ttl = tonumber(ARGV[7])
  if ttl == 0 then ttl = holder.ttl end
  local exp = math.max(holder.exp, now + ttl)
  call('HSET', key, 'exp', digits(exp), 'ttl', digits(ttl), 'round', digits(ALL))
  keep(exp - now)
  return {'ok', now, exp - now, digits(ttl), holder.call, holder.since, holder.shown}
end
local cause, _, was = ended(ARGV[4])
if cause and cause ~= '-' and was == token then return {'before', now, cause} end
return {'no', now}
