#!lua
-- Updates: replaces the description of a holder, if the caller has read the one that it has now.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 claim, 5 token, 6 secret, 7 the description that the caller has read,
--       or '' to read it, 8 the new one
-- Returns  {updated} | {read, description} | {gone, cause or ''}
local function update()
  local h = holder(ARGV[4])
  for _, hold in ipairs(h and h.token == tonumber(ARGV[5]) and h.holds or {}) do
    if hold.secret == ARGV[6] then
      local existing = get('d' .. ARGV[4]) or ''
      if ARGV[7] == '' or (existing ~= ARGV[7] and existing ~= ARGV[8]) then return {'read', existing} end
      -- Written even if it is the same: the replicas confirm only what this call writes.
      put('d' .. ARGV[4], ARGV[8])
      if existing ~= ARGV[8] then publish_change('u', ARGV[8], h.token) end
      return {'updated'}
    end
  end
  return {'gone', remembered(ARGV[6], tonumber(ARGV[5]))}
end
local function run()
  if not known then return {'gone', ''} end
  begin()
  return done(update())
end
