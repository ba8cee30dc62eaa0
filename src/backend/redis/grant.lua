#!lua
-- Commits what may grant the lock or adds to its queue. Redis refuses it while its memory is full.
local function run() return commit() end
