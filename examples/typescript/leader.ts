// A candidate for leadership, until it is ended: leader NAME [TTL_S]. The program observer shows who leads.
import { once } from "node:events";
import { FencepostError, LeaseLost, Locks, seconds, WaitTimeout } from "./locks.js";

const [name = "candidate", ttl = "5"] = process.argv.slice(2);
const locks = new Locks(process.env.FENCEPOST_ADDR ?? "127.0.0.1:50051", name);
const request = { name: "leader", ttl: seconds(Number(ttl)), metadata: { address: `${name}.example:8080` } };
for (;;) {
  try {
    await locks.hold(request, async (lock) => {
      console.log(`${name} leads with token ${lock.token}`);
      // The work of a leader ends with the signal.
      if (!lock.signal.aborted) await once(lock.signal, "abort");
    }, 3_600_000);
  } catch (error) {
    if (error instanceof LeaseLost) console.log(`${name} leads no more: ${error.message}`);
    else if (!(error instanceof WaitTimeout || (error instanceof FencepostError && error.retryable))) throw error;
  }
}
