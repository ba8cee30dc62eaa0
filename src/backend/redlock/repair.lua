#!lua
-- Gives a lease that its majority has its place here too: where nobody holds, or where it holds with a
-- smaller number.
-- ARGV  4 secret, 5 claim, 6 token, 7 ttl, 8 call, 9 since, 10 what it shows
-- Returns  {ok | no | untrusted, now}
if not votes then return {'untrusted', now} end
local token, ttl = tonumber(ARGV[6]), tonumber(ARGV[7])
local cause, over = ended(ARGV[4])
-- Nor one whose time has ended here, though its attempts may go on.
if cause and (cause ~= '-' or over >= ALL) then return {'no', now} end
if holder then
  if holder.secret ~= ARGV[4] or (holder.val ~= token and c >= token) then return {'no', now} end
elseif c and c > token then
  return {'no', now}
end
use()
name()
lift(token)
local exp = math.max(holder and holder.exp or 0, now + ttl)
call('HSET', key, 'c', digits(math.max(c or 0, token)), 'round', digits(ALL), 'val', ARGV[6], 'exp', digits(exp))
if not holder then
  call('HSET', key, 'secret', ARGV[4], 'epoch', ARGV[1], 'claim', ARGV[5], 'call', ARGV[8], 'ttl', ARGV[7],
    'since', ARGV[9], 'shown', ARGV[10])
end
keep(exp - now)
return {'ok', now}
