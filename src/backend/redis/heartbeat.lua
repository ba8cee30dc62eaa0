#!lua flags=allow-oom
-- Heartbeat: records that this replica still waits for the lock, and purges.
-- KEYS  1 the lock's hash
-- ARGV  1 channel prefix, 2 lock name, 3 replica; 4 the count of taken waiters that the replica has
--       processed, 5... the ids of its first waiters, in queue order
-- Returns  {the time when the hash was created, or 0 if it does not exist, frees_in|-1, the ids of waiters of this
--       replica that are eligible or no longer in the queue (not necessarily all), the count of waiters that were taken
--       from their calls, 1 if more should be purged immediately, the ids of the waiters taken since ARGV[4], 1 if the
--       hash does not remember all of these}
local function run()
  if not known then return {0, -1, {}, 0, 0, {}, 0} end
  heartbeat()
  begin()
  local eligible, found = {}, {}
  local function add_eligible(id)
    if not found[id] then eligible[#eligible + 1], found[id] = id, true end
  end
  -- The replica passes its own first waiters, so that they are found however many waiters of other replicas precede
  -- them.
  for at = 5, #ARGV do
    local q = record('q' .. ARGV[at])
    if q and q.turn > m.edge then break end
    add_eligible(ARGV[at])
  end
  -- After data went back, the queue may contain waiters that the replica does not know. They are returned once they
  -- are among the first of the queue.
  local id = m.front
  for _ = 1, MAX_NOTIFIED do
    local q = id ~= '' and required_record('q' .. id)
    if not q or q.turn > m.edge then break end
    if q.replica == replica then add_eligible(id) end
    local _, after = neighbours('n', id)
    id = after
  end
  local missed, ids = m.lost - tonumber(ARGV[4]), get('L') or ''
  local taken, remembered = {}, #ids / 16
  for at = 1, math.min(missed, remembered) do taken[at] = ids:sub(-16 * at, -16 * at + 15) end
  return done({m.born, frees_in(), eligible, m.lost, unfinished() and 1 or 0, taken, missed > remembered and 1 or 0})
end
