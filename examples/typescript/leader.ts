// A candidate for leadership, until it is ended: leader NAME [TTL_S]. The program observer shows who leads.
import { once } from "node:events";
import { Client } from "fencepost-client";

const [name = "candidate", ttl = "5"] = process.argv.slice(2);
const client = new Client(undefined, { owner: name });
await client.election("leader").lead({
  value: `${name}.example:8080`,
  ttlMs: Number(ttl) * 1000,
  onElected: async ({ signal, token }) => {
    console.log(`${name} leads with token ${token}`);
    // The work of a leader ends with the signal.
    if (!signal.aborted) await once(signal, "abort");
  },
  onDeposed: (loss) => console.log(`${name} leads no more: ${loss.message}`),
});
