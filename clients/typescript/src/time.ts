import os from "node:os";
import { create } from "@bufbuild/protobuf";
import { type Duration, DurationSchema } from "@bufbuild/protobuf/wkt";

/** By how much the two clocks may differ without a suspend: /proc/uptime counts in steps of 10 ms. */
const ROUNDING_MS = 500;
/** How long the program may run between two looks at the slower clock, which is a file. */
const LOOK_MS = 5;
const bootOffset = os.uptime() * 1000 - performance.now();
let suspendedMs = 0;
let lookAt = 0;

/**
 * Milliseconds on a clock that nobody sets and that runs on while the machine is suspended. On Linux `performance.now()` stands
 * still then, and `os.uptime()` does not; elsewhere `performance.now()` goes on by itself.
 */
export function now(): number {
  const elapsed = performance.now();
  if (process.platform === "linux" && elapsed >= lookAt) {
    lookAt = elapsed + LOOK_MS;
    const ahead = os.uptime() * 1000 - bootOffset - elapsed;
    if (ahead > suspendedMs + ROUNDING_MS) suspendedMs = ahead;
  }
  return elapsed + suspendedMs;
}

/** A duration of the server, rounded down so that a lease never counts too long. */
export const milliseconds = (duration?: Duration) =>
  duration ? Number(duration.seconds) * 1000 + Math.floor(duration.nanos / 1e6) : 0;

/** A duration for the server. */
export const duration = (ms: number) =>
  create(DurationSchema, { seconds: BigInt(Math.floor(Math.ceil(ms) / 1000)), nanos: (Math.ceil(ms) % 1000) * 1e6 });

/** Pauses between repetitions in milliseconds: 100, then twice as long up to 2,000, each shortened at random by up to a half. */
export function* pauses(): Generator<number, never> {
  for (let ms = 100; ; ms = Math.min(ms * 2, 2_000)) yield ms * (0.5 + Math.random() / 2);
}
