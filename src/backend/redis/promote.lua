#!lua
-- Promotes: makes an eligible waiter a holder.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 id, 5 call
-- Returns  {held, claim, mode, secret, token, ttl, holds, fresh} | {waiting, position, frees_in|-1, born, lost}
--       | {finished, cause} | {left} | {superseded} | {gone}
local function run()
  if not known then return {'gone'} end
  begin()
  return done(promote(ARGV[4], ARGV[5]))
end
