// Elections: who leads, with which value, and who led before.

import { call, stream } from "./api.js";
import { el, name, row, setHidden, setName, setText } from "./dom.js";
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
    el("p", { className: "faint", textContent: "An election is an exclusive lock. Its holder is the leader and shows a value." }),
  );
  const columns = ["Election", "Leader", "Candidates waiting", "Since", "Time left"];
  const isShown = ({ isElection }) => isElection;
  const make = (all, lock) => electionRow(all, namespace, lock);
  const words = { many: "elections", none: "No elections" };
  lockList(main, signal, { page: "elections", namespace, prefix, columns, make, isShown, ...words });
}

function electionRow(columns, namespace, lock) {
  const link = el("a", { href: electionPath(namespace, lock.name) }, name(lock.name));
  const [leader, waiting, since] = [el("span"), el("span"), el("span")];
  const left = new TimeLeft();
  return {
    element: row(columns, link, leader, waiting, since, left.element),
    update: ({ firstHolder, waiterCount }) => {
      setText(waiting, String(waiterCount));
      setText(since, ago(firstHolder.since));
      setName(leader, firstHolder.owner);
      left.set(firstHolder.fencingToken, seconds(firstHolder.remainingTtl));
    },
  };
}

export function election(main, signal, namespace, own) {
  const [problem, streamProblem] = [notice(), notice()];
  const past = new History();
  const leader = new LeaderView((now) => askToForce(namespace, own, now, () => polled.wake()));
  main.append(
    el("h1", {}, name(own)),
    problem,
    streamProblem,
    el("p", {}, el("a", { href: lockPath(namespace, own) }, "Show as a lock")),
    el("h2", { textContent: "Leader" }),
    leader.element,
    el("h2", { textContent: "Leaders since this page was opened" }),
    past.element,
  );
  let before;
  // Counts what the stream has told, which is newer than an answer that was asked for before.
  let told = 0;
  const show = (now) => {
    leader.show(now);
    const text = now ? JSON.stringify([now.fencingToken, now.value]) : "";
    if (text === before) return;
    before = text;
    if (now) past.add(name(now.candidate), ` leads with token ${now.fencingToken}: `, name(now.value));
    else past.add("nobody leads");
  };
  follow(signal, streamProblem, async (current, worked) => {
    for await (const { leader: now } of stream("ElectionService/Observe", { namespace, election: own }, current)) {
      told += 1;
      worked();
      show(now);
    }
  });
  // Observers are not told of renewals, and a stream may be refused.
  const polled = poll(signal, 2000, problem, async (current) => {
    const asked = told;
    const { leader: now } = await call("ElectionService/GetLeader", { namespace, election: own }, current);
    if (asked === told) show(now);
  });
}

/** Who leads. Its elements stay, so that the button keeps the focus. */
class LeaderView {
  element = el("div", { id: "leader" });
  #now = undefined;
  #left = new TimeLeft();
  #parts = Object.fromEntries(["candidate", "identity", "token", "since"].map((part) => [part, el("span")]));
  #value = el("pre");
  #nobody = el("p", { textContent: "Nobody leads.", hidden: true });
  #somebody;

  constructor(depose) {
    const { candidate, identity, token, since } = this.#parts;
    const facts = [
      ["Candidate", candidate],
      ["Identity", identity],
      ["Token", token],
      ["Since", since],
      ["Time left", this.#left.element],
    ];
    const list = facts.flatMap(([label, shown]) => [el("dt", { className: "faint", textContent: label }), el("dd", {}, shown)]);
    const click = () => depose(this.#now);
    const button = el("button", { type: "button", className: "force", textContent: "Release by force…", on: { click } });
    this.#somebody = el("div", { hidden: true }, el("dl", {}, ...list), this.#value, el("p", {}, button));
    this.element.append(this.#nobody, this.#somebody);
  }

  /** Shows this leader; nobody if it is absent. */
  show(now) {
    this.#now = now;
    setHidden(this.#nobody, Boolean(now));
    setHidden(this.#somebody, !now);
    this.#left.set(now?.fencingToken, seconds(now?.remainingTtl));
    if (!now) return;
    const { candidate, identity, token, since } = this.#parts;
    setName(candidate, now.candidate);
    setName(identity, now.identity);
    setText(token, now.fencingToken);
    setText(since, ago(now.since));
    setName(this.#value, now.value);
  }
}
