#!lua flags=allow-oom
-- Ends a lease, an attempt, all that a call has here, or whoever has a token. A tombstone keeps out what
-- comes late.
-- ARGV  4 what: H a lease, A an attempt, C a call, F a token; 5 secret, 6 claim, 7 the call, or the round of an
--       attempt, 8 token, 9 how long a tombstone is kept at the least
-- Returns  {ended | before, now, cause, of a token its secret} | {other, now} | {nothing, now}
local what, secret, token, longest = ARGV[4], ARGV[5], tonumber(ARGV[8]), tonumber(ARGV[9])
local function over(cause)
  freed(finish(cause))
  return {'ended', now, cause}
end
local function before(cause, was)
  if cause and cause ~= '-' and was == token then return {'before', now, cause} end
  return {'nothing', now}
end
if what == 'A' then
  local round = tonumber(ARGV[7])
  local cause, last, was = ended(secret)
  if not cause or last < round then entomb(secret, cause or '-', round, was or 0, longest) end
  if not holder or holder.secret ~= secret or holder.round > round then return {'nothing', now} end
  clear()
  return {'ended', now, 'L'}
elseif what == 'C' then
  remember('m' .. ARGV[7], '', longest)
  if holder and holder.call == ARGV[7] then return over('T') end
  return {'nothing', now}
elseif what == 'F' then
  if holder and holder.val == token then
    local secret = holder.secret
    freed(finish('F'))
    return {'ended', now, 'F', secret}
  end
  for n = till, from + 1, -1 do
    local field = call('HGET', key, 'x' .. digits(n))
    if field and string.sub(field, 1, 1) == 's' then
      local cause, _, was = ended(string.sub(field, 2))
      if cause and cause ~= '-' and was == token then return {'before', now, cause, string.sub(field, 2)} end
    end
  end
  return {'nothing', now}
end
if holder and holder.secret == secret then
  if holder.claim ~= ARGV[6] then return {'nothing', now} end
  if holder.val ~= token then return {'other', now} end
  return over('R')
end
local cause, last, was = ended(secret)
if not cause or last < ALL then entomb(secret, cause or '-', ALL, was or 0, longest) end
return before(cause, was)
