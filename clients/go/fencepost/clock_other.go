//go:build !linux

package fencepost

import "time"

var started = time.Now()

// now is the time since the start on Go's monotonic clock, which may stop while the machine is suspended.
func now() time.Duration { return time.Since(started) }
