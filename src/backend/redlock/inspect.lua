#!lua flags=allow-oom
-- Says who holds here and how the last lease ended: the truth of a node that is admitted, whether the caller has
-- heard of its admission or not.
-- ARGV  4 for how long the caller wants to hear of each change, or 0
-- Returns  {held, now, claim, call, number, what remains, since, shown, last token, its cause, what it showed}
--          | {free, now, last token, its cause, what it showed} | {untrusted, now}
if not admitted[1] then return {'untrusted', now} end
local watching = tonumber(ARGV[4])
if watching > 0 then
  call('HSET', key, 'watched', digits(math.max(watched, now + watching)))
  keep(0)
end
local last = call('HMGET', key, 'lt', 'lc', 'ls', 'freed')
local function note(n) return last[n] or '' end
if holder and holder.exp > now then
  return {'held', now, holder.claim, holder.call, holder.val, holder.exp - now, holder.since, holder.shown,
    note(1), note(2), note(3)}
end
return {'free', now, note(1), note(2), note(3)}
