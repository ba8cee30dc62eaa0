#!lua
-- Votes for an attempt, with a number that this node has never handed out before.
-- ARGV  4 secret, 5 round, 6 claim, 7 call, 8 ttl, 9 hint, 10 what it shows, 11 waits 0|1, 12 ends to remember,
--       13 whether others of its replica wait behind it 0|1
-- Returns  {ok, now, number} | {busy, now, claim, call, number, what remains, since, shown} | {left, now}
--          | {untrusted, now}
if not votes then return {'untrusted', now} end
local secret, round = ARGV[4], tonumber(ARGV[5])
local _, over = ended(secret)
if (over and over >= round) or call('HEXISTS', key, 'm' .. ARGV[7]) == 1 then return {'left', now} end
if holder and holder.secret == secret and holder.round == round then return {'ok', now, holder.val} end
if holder then
  if ARGV[11] == '1' then hear() end
  return {'busy', now, holder.claim, holder.call, holder.val, math.max(0, holder.exp - now), holder.since, holder.shown}
end
local val = c and math.max(c + 1, floor) or math.max(scale, floor)
val = math.max(val, math.min(tonumber(ARGV[9]), now + 100000))
local ttl = tonumber(ARGV[8])
use()
name()
lift(val)
call('HSET', key, 'c', digits(val), 'secret', secret, 'round', ARGV[5], 'val', digits(val), 'exp', digits(now + ttl),
  'epoch', ARGV[1], 'claim', ARGV[6], 'call', ARGV[7], 'ttl', ARGV[8], 'since', digits(now), 'shown', ARGV[10],
  'most', ARGV[12])
keep(ttl)
if ARGV[13] == '1' then hear() end
changed()
return {'ok', now, val}
