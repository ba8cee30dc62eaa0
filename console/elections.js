// Elections: who leads, with which value, and who led before.

import { call, stream } from "./api.js";
import { el, name, row } from "./dom.js";
import { History } from "./lock.js";
import { lockList, lockPath } from "./locks.js";
import { namespacePath } from "./namespaces.js";
import { follow, notice, poll } from "./poll.js";
import { askToForce } from "./question.js";
import { TimeLeft, ago, seconds } from "./time.js";

function electionPath(namespace, election) {
  return `${namespacePath(namespace)}/election/${encodeURIComponent(election)}`;
}

export function elections(main, signal, namespace, prefix = "") {
  main.append(
    el("h1", {}, "Elections of ", name(namespace)),
    el("p", { className: "faint", textContent: "An election is an exclusive lock. Its holder is the leader." }),
  );
  const columns = ["Election", "Leader", "Candidates waiting", "Since", "Time left"];
  const isShown = ({ firstHolder }) => firstHolder?.mode?.exclusive !== undefined;
  const make = (all, lock) => electionRow(all, namespace, lock);
  lockList(main, signal, { page: "elections", namespace, prefix, caption: "Elections", columns, make, isShown });
}

function electionRow(columns, namespace, lock) {
  const link = el("a", { href: electionPath(namespace, lock.name) }, name(lock.name));
  const [leader, waiting, since] = [el("span"), el("span"), el("span")];
  const left = new TimeLeft();
  return {
    element: row(columns, link, leader, waiting, since, left.element),
    update: ({ firstHolder, waiterCount }) => {
      waiting.textContent = String(waiterCount);
      since.textContent = ago(firstHolder.since);
      leader.replaceChildren(name(firstHolder.owner));
      left.set(firstHolder.fencingToken, seconds(firstHolder.remainingTtl));
    },
  };
}

export function election(main, signal, namespace, own) {
  const [problem, streamProblem] = [notice(), notice()];
  const [leader, left, past] = [el("div", { id: "leader" }), new TimeLeft(), new History()];
  main.append(
    el("h1", {}, name(own)),
    problem,
    streamProblem,
    el("p", {}, el("a", { href: lockPath(namespace, own) }, "Show as a lock")),
    el("h2", { textContent: "Leader" }),
    leader,
    el("h2", { textContent: "Leaders since this page was opened" }),
    past.element,
  );
  let [before, token] = [undefined, undefined];
  const show = (now) => {
    token = now?.fencingToken;
    left.set(token, seconds(now?.remainingTtl));
    leader.replaceChildren(...(now ? leaderParts(now, left, () => askToForce(namespace, own, now, () => {})) : ["Nobody leads."]));
    const text = now ? JSON.stringify([now.fencingToken, now.value]) : "";
    if (text === before) return;
    before = text;
    if (now) past.add(name(now.candidate), ` leads with token ${now.fencingToken}: `, name(now.value));
    else past.add("nobody leads");
  };
  follow(signal, streamProblem, async (current) => {
    for await (const { leader: now } of stream("Observe", { namespace, election: own }, current)) show(now);
  });
  // Observers are not told of renewals.
  poll(signal, 2000, problem, async (current) => {
    const { leader: now } = await call("GetLeader", { namespace, election: own }, current);
    if (now && now.fencingToken === token) left.set(token, seconds(now.remainingTtl));
  });
}

function leaderParts(now, left, depose) {
  const since = el("span", { textContent: ago(now.since) });
  const columns = ["Candidate", "Identity", "Token", "Since", "Time left"];
  const cells = [name(now.candidate), name(now.identity), now.fencingToken, since, left.element];
  const parts = columns.flatMap((column, at) => [el("dt", { className: "faint", textContent: column }), el("dd", {}, cells[at])]);
  const button = el("button", { type: "button", className: "force", textContent: "Release by force…", on: { click: depose } });
  return [el("dl", {}, ...parts), el("pre", {}, name(now.value)), el("p", {}, button)];
}
