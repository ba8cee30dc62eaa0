// Shows who leads, until it is ended: the present leader, then each change.
import { setTimeout as sleep } from "node:timers/promises";
import type { LockState__Output } from "./gen/fencepost/v1/LockState.js";
import type { WatchLockResponse__Output } from "./gen/fencepost/v1/WatchLockResponse.js";
import { Locks } from "./locks.js";

const { stub } = new Locks(process.env.FENCEPOST_ADDR ?? "127.0.0.1:50051", "observer");
const lock = { namespace: "default", name: "leader" };
let newest = 0;

const present = () => new Promise<LockState__Output>((resolve, reject) =>
  stub.getLock(lock, { deadline: Date.now() + 5000 }, (error, answer) => (error ? reject(error) : resolve(answer!.lock!))));

function show(state: LockState__Output) {
  if (state.holders.length === 0) console.log("nobody leads");
  for (const holder of state.holders) {
    if (holder.fencingToken <= newest) continue;
    newest = holder.fencingToken;
    console.log(`${holder.owner} leads at ${holder.metadata.address}, token ${newest}`);
  }
}

for (;;) {
  try {
    for await (const { state, change } of stub.watchLock(lock) as AsyncIterable<WatchLockResponse__Output>) {
      // A change does not show the holder's metadata.
      if (state) show(state);
      else if (change?.kind !== "CHANGE_KIND_QUEUED") show(await present());
    }
  } catch {
    // The next watch begins with the present state.
  }
  await sleep(500);
}
