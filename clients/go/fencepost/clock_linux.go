package fencepost

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is the time since boot, which includes suspends.
func now() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic("fencepost: CLOCK_BOOTTIME: " + err.Error()) // Every kernel that Go supports has it.
	}
	return time.Duration(t.Nano())
}
