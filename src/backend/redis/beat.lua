#!lua flags=allow-oom
-- Says that this replica still waits for the lock, and purges.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 the count of taken waiters that the replica has seen,
--       5... the ids of its first waiters, in order
-- Returns  {when the hash was born, or 0 where there is none (any more), frees_in|-1, this replica's waiters whose
--       turn has come or that are gone, some of them, the count of waiters that were taken from their calls, 1 where
--       more is to be purged at once, the ids of those taken since ARGV[4], 1 where not all of them are remembered}
local function run()
  if not known then return {0, -1, {}, 0, 0, {}, 0} end
  beat()
  begin()
  local turns, found = {}, {}
  local function add_turn(id)
    if not found[id] then turns[#turns + 1], found[id] = id, true end
  end
  -- The replica's own waiters are served in time, however many of other replicas stand before them.
  for at = 5, #ARGV do
    local q = record('q' .. ARGV[at])
    if q and q.turn > m.edge then break end
    add_turn(ARGV[at])
  end
  -- Data that went back brings back waiters that the replica does not know: they show when they stand first.
  local id = m.front
  for _ = 1, TOLD do
    local q = id ~= '' and needed('q' .. id)
    if not q or q.turn > m.edge then break end
    if q.replica == replica then add_turn(id) end
    local _, after = neighbours('n', id)
    id = after
  end
  local missed, ids = m.lost - tonumber(ARGV[4]), get('L') or ''
  local taken, remembered = {}, #ids / 16
  for at = 1, math.min(missed, remembered) do taken[at] = ids:sub(-16 * at, -16 * at + 15) end
  return done({m.born, frees_in(), turns, m.lost, unfinished() and 1 or 0, taken, missed > remembered and 1 or 0})
end
