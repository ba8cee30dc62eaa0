#!lua flags=allow-oom
-- Reads parts.
-- ARGV  their numbers
-- Returns  the text of each, or nil
local function run() return redis.call('HMGET', key, unpack(ARGV)) end
