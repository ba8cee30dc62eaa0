#!lua
-- Lifts the number of an attempt that holds here to the token that its majority decides for.
-- ARGV  4 secret, 5 round, 6 token
-- Returns  {ok | no | untrusted, now}
if not votes then return {'untrusted', now} end
local token = tonumber(ARGV[6])
if not holder or holder.secret ~= ARGV[4] or holder.round ~= tonumber(ARGV[5]) then return {'no', now} end
if holder.val ~= token and c >= token then return {'no', now} end
lift(token)
call('HSET', key, 'c', ARGV[6], 'val', ARGV[6])
changed()
return {'ok', now}
