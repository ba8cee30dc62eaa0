// Shows who leads, until it is ended: the present leader, then each change.
import { Client } from "fencepost-client";

const client = new Client();
for await (const { token, candidate, value } of client.election("leader").observe()) {
  console.log(token === null ? "nobody leads" : `${candidate} leads at ${value}, token ${token}`);
}
