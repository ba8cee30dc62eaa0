import assert from "node:assert/strict";
import { before, describe, it } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, LeaseLost } from "fencepost-client";
import type { TestServer } from "fencepost-client/testing";
import { command, connect, serve, TcpProxy, until } from "./support.js";

let server: TestServer;
let client: Client;

before(async () => {
  server = await serve();
  client = connect(server.address);
});

describe("an election", { concurrency: true }, () => {
  it("has a leader with a value, which observers see in order, also over connections that break", async () => {
    const proxy = await TcpProxy.to(server.address);
    const observer = connect(proxy.address);
    const stop = new AbortController();
    const seen: (string | null)[] = [];
    const tokens: number[] = [];
    const observing = (async () => {
      for await (const { value, token } of observer.election("order").observe({ signal: stop.signal })) {
        seen.push(value);
        if (token !== null) tokens.push(token);
      }
    })();
    await until(() => seen.length === 1);
    for (const value of ["a", "b", "c", "d"]) {
      const leadership = await client.election("order").campaign({ value });
      await until(() => seen.at(-1) === value);
      proxy.cut();
      await leadership.proclaim(`${value}2`);
      await until(() => seen.at(-1) === `${value}2`);
      await leadership.release();
    }
    stop.abort(new Error("enough"));
    await assert.rejects(observing, /enough/);
    assert.deepEqual(
      tokens,
      [...tokens].sort((a, b) => a - b),
    );
    assert.deepEqual(
      seen.filter((value) => value !== null),
      ["a", "a2", "b", "b2", "c", "c2", "d", "d2"],
    );
  });

  it("is led again after a loss, and no more after the signal", async () => {
    const election = client.election("lead");
    const stop = new AbortController();
    const tokens: number[] = [];
    const deposed: string[] = [];
    const leading = election.lead({
      value: "here",
      signal: stop.signal,
      onElected: async ({ token, signal }) => {
        tokens.push(token);
        await sleep(60_000, undefined, { signal });
      },
      onDeposed: ({ loss }) => deposed.push(loss),
    });
    await until(() => tokens.length === 1);
    assert.equal((await election.leader())?.value, "here");
    await command(server.address, "force-release", "default/lead", String(tokens[0]));
    await until(() => tokens.length === 2);
    assert.deepEqual(deposed, ["forced"]);
    stop.abort();
    await assert.rejects(leading, { name: "AbortError" });
    assert.equal(await election.leader(), null);
  });

  it("ends when the leader's work ends, or fails with its error", async () => {
    const election = client.election("work");
    await election.lead({ onElected: () => undefined });
    const fail = () => {
      throw new RangeError("mine");
    };
    await assert.rejects(election.lead({ onElected: fail }), RangeError);
    assert.equal(await election.leader(), null);
    const leadership = await election.campaign({ ttlMs: 1_000, renew: false });
    await sleep(1_100);
    await assert.rejects(leadership.proclaim("late"), LeaseLost);
  });
});
