// Contention, owners, and the locks of one owner: what was counted over all locks of a namespace.

import { count } from "./counted.js";
import { arrowKeys, el, name, row, setText, table, update } from "./dom.js";
import { lockLink, lockRow } from "./locks.js";
import { namespacePath } from "./namespaces.js";
import { notice, poll } from "./poll.js";
import { prefixForm } from "./prefix.js";
import { tabs } from "./tabs.js";
import { span } from "./time.js";

/** How often all locks are counted, in ms. */
const INTERVAL = 3000;

function overview(main, signal, { page, title, namespace, prefix, about, list, show, of = null }) {
  const problem = notice();
  const [locks, holders, waiters] = ["locks", "holders", "waiters"].map(() => el("b", { textContent: "…" }));
  const figures = el(
    "ul",
    { className: "figures" },
    el("li", {}, locks, "locks in use"),
    el("li", {}, holders, "holding"),
    el("li", {}, waiters, "waiting"),
  );
  const part = el("p", { className: "notice", id: "part", attributes: { role: "status" } });
  list.element.addEventListener("keydown", arrowKeys);
  let wanted = prefix;
  const changed = (typed) => {
    wanted = typed;
    polled.wake();
  };
  const form = prefixForm(signal, { namespace, page, prefix, changed });
  if (title) main.append(el("h1", {}, `${title} of `, name(namespace)));
  main.append(
    tabs(namespace, page),
    problem,
    ...(of ? [] : [form]),
    part,
    figures,
    el("p", { className: "faint", textContent: about }),
    list.element,
  );
  const polled = poll(signal, INTERVAL, problem, async (current) => {
    const asked = wanted;
    const answer = await count(namespace, asked, of, current);
    if (asked !== wanted) return polled.wake();
    setText(locks, `${answer.locks}${answer.complete ? "" : " and more"}`);
    setText(part, partText(answer));
    setText(holders, String(answer.holders));
    setText(waiters, String(answer.waiters));
    show(answer);
  });
}

/** What an answer lacks. */
function partText({ complete, locks }) {
  return complete ? "" : `Only the first ${locks} locks were read. Give a prefix to see others.`;
}

export function contention(main, signal, namespace, prefix = "") {
  const list = table("Longest queues", ["Lock", "Held by", "Mode", "Waiting", "Since", "Time left"]);
  const make = (lock) => lockRow(list.columns, namespace, lock);
  const show = ({ longest }) => update(list.body, longest, (lock) => lock.name, make);
  const about = "The 100 locks with the longest queues.";
  overview(main, signal, { page: "contention", title: "Contention", namespace, prefix, about, list, show });
}

export function owners(main, signal, namespace, prefix = "") {
  const list = table("Owners", ["Owner", "Identity", "Locks", "Waiting for them", "Shortest time left", "Some of its locks"]);
  const key = (one) => JSON.stringify([one.owner, one.identity]);
  const show = (answer) => update(list.body, answer.owners, key, (one) => ownerRow(list.columns, namespace, one));
  const about = "The 100 owners with the most locks. Of a shared lock only the first holder counts.";
  overview(main, signal, { page: "owners", title: "Owners", namespace, prefix, about, list, show });
}

/** The locks of one owner. */
export function owner(main, signal, namespace, own, identity = "") {
  const list = table("Locks of the owner", ["Lock", "Held by", "Mode", "Waiting", "Since", "Time left"]);
  const make = (lock) => lockRow(list.columns, namespace, lock);
  const show = ({ held }) => update(list.body, held, (lock) => lock.name, make);
  main.append(el("h1", {}, "Locks of the owner ", name(own), identity ? name(` (${identity})`) : null));
  const about = "Up to 1000 locks that this owner holds first.";
  overview(main, signal, { page: "owner", namespace, prefix: "", about, list, show, of: { owner: own, identity } });
}

function ownerRow(columns, namespace, { owner: own, identity }) {
  const path = `${namespacePath(namespace)}/owner/${encodeURIComponent(own)}/${encodeURIComponent(identity)}`;
  const link = el("a", { href: path }, name(own));
  const [locks, waiters, shortest, names] = [el("span"), el("span"), el("span"), el("div")];
  return {
    element: row(columns, link, name(identity), locks, waiters, shortest, names),
    update: (now) => {
      setText(locks, String(now.locks));
      setText(waiters, String(now.waiters));
      setText(shortest, span(now.shortestTtlS));
      update(names, now.names, (lock) => lock, (lock) => lockLink(namespace, lock));
    },
  };
}
