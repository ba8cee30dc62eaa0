// Takes, watches and releases a lock with the client of Connect, by the descriptors of the service.

import { readFileSync } from "node:fs";
import { createFileRegistry, fromBinary } from "@bufbuild/protobuf";
import { FileDescriptorSetSchema } from "@bufbuild/protobuf/wkt";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";

const registry = createFileRegistry(fromBinary(FileDescriptorSetSchema, readFileSync("descriptors.bin")));
const service = registry.getService("fencepost.v1.LockService");
const code = (error) => Code[error.code].replace(/(?<=.)[A-Z]/g, (letter) => `_${letter}`).toLowerCase();

for (const [version, httpVersion] of [["http1", "1.1"], ["http2", "2"]]) {
  for (const [kind, useBinaryFormat] of [["json", false], ["proto", true]]) {
    const transport = createConnectTransport({ baseUrl: process.env.SERVER, httpVersion, useBinaryFormat });
    const locks = createClient(service, transport);
    const lock = { namespace: "default", name: `node/${version}/${kind}` };
    const { lease } = await locks.acquire({ ...lock, owner: "me", ttl: { seconds: 30n } });
    const said = [lease.owner === "me" && lease.fencingToken > 0n ? "taken" : "not taken"];
    await locks.acquire({ ...lock, owner: "you" }).catch((cause) => {
      const error = ConnectError.from(cause);
      said.push(`${error.metadata.get("fencepost-reason")} ${code(error)}`);
    });
    try {
      for await (const { event } of locks.watchLock(lock, { timeoutMs: 2000 })) {
        if (event.case === "state") said.push(event.value.holderCount === 1 ? "watched held" : "watched nothing");
        else if (event.value.holderCount === 0) said.push("watched free");
        if (event.case === "state") await locks.release({ leaseId: lease.leaseId });
      }
    } catch (cause) {
      said.push(code(ConnectError.from(cause)));
    }
    console.log(`${version} ${kind}: ${said.join(", ")}`);
  }
}
process.exit();
