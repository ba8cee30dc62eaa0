#!lua
-- Updates: replaces the description of a holder, if the caller has read the one that it has now.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 claim, 5 token, 6 secret, 7 the description that the caller has read,
--       or '' to read it, 8 the new one
-- Returns  {updated} | {read, description} | {gone, cause or ''}
local function update()
  local token = tonumber(ARGV[5])
  local h, hold = hold_of(ARGV[4], token, ARGV[6])
  if not hold then return {'gone', remembered(ARGV[6], token)} end
  local existing = get('d' .. ARGV[4]) or ''
  if ARGV[7] == '' or (existing ~= ARGV[7] and existing ~= ARGV[8]) then return {'read', existing} end
  -- Written even if it is the same: the replicas confirm only what this call writes.
  put('d' .. ARGV[4], ARGV[8])
  if existing ~= ARGV[8] then publish_change('u', ARGV[8], h.token) end
  return {'updated'}
end
local function run()
  if not known then return {'gone', ''} end
  begin()
  return done(update())
end
