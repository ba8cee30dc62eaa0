#!lua flags=allow-oom
-- Reads the root. It counts as a write, so that no replica answers.
-- ARGV  1 the known version, or NONE
--       2 1: with the body
-- Returns  what was found
local function run()
  return read_head() or found(ARGV[1], ARGV[2] == '1')
end
