#!lua flags=allow-oom
-- Says that this replica still waits for the lock.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica
-- Returns  {when the hash was born, or 0 where there is none (any more), frees_in|-1}
if not known then return {0, -1} end
beat()
begin()
return done({m.born, m.frees > 0 and math.max(0, m.frees - m.clock) or -1})
