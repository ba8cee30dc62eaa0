// One lock: who holds it, its queue in order, and its history as it happens.

import { call, stream } from "./api.js";
import { el, name, row, setName, setText, table, update } from "./dom.js";
import { modeText } from "./locks.js";
import { namespacePath } from "./namespaces.js";
import { follow, notice, poll } from "./poll.js";
import { askToForce } from "./question.js";
import { TimeLeft, ago, clock, seconds } from "./time.js";

/** How many entries of the history are kept. */
export const HISTORY = 200;
/** How often the lock is read, and how soon again after a change, in ms. */
const INTERVAL = 2000;
const AFTER_CHANGE = 300;
/** Queues that are longer are read less often after changes. */
const LONG_QUEUE = 200;

const KINDS = {
  CHANGE_KIND_QUEUED: "queued",
  CHANGE_KIND_GRANTED: "granted",
  CHANGE_KIND_RELEASED: "released",
  CHANGE_KIND_EXPIRED: "expired",
  CHANGE_KIND_FORCED: "released by force",
  CHANGE_KIND_LEFT: "left the queue",
  CHANGE_KIND_UPDATED: "changed its metadata",
};

/** A list of what happened, the newest first. */
export class History {
  element = el("ol", { className: "history", tabIndex: 0, attributes: { "aria-label": "History" } });

  add(...parts) {
    const now = new Date();
    const time = el("time", { dateTime: now.toISOString(), textContent: clock(now) });
    this.element.prepend(el("li", {}, time, ...parts));
    while (this.element.childElementCount > HISTORY) this.element.lastElementChild.remove();
  }
}

export function lock(main, signal, namespace, own) {
  const [problem, streamProblem] = [notice(), notice()];
  const [holding, waiting] = [el("b", { id: "holder-count" }), el("b", { id: "waiter-count" })];
  const figures = el("ul", { className: "figures" }, el("li", {}, holding, "holding"), el("li", {}, waiting, "waiting"));
  const holders = table("Holders", ["Owner", "Identity", "Token", "Mode", "Since", "Time left", "Metadata", "Action"]);
  const waiters = table("Queue", ["Place", "Owner", "Identity", "Mode", "Waiting since", "Metadata"]);
  const more = el("p", { className: "faint" });
  const past = new History();
  const election = el("a", { href: `${namespacePath(namespace)}/election/${encodeURIComponent(own)}` }, "Show as an election");
  main.append(
    el("h1", {}, name(own)),
    problem,
    streamProblem,
    figures,
    el("p", {}, election),
    el("h2", { textContent: "Holders" }),
    holders.element,
    el("h2", { textContent: "Queue" }),
    el("div", { className: "queue" }, waiters.element),
    more,
    el("h2", { textContent: "History since this page was opened" }),
    past.element,
  );
  const show = (state) => {
    setText(holding, String(state.holderCount));
    setText(waiting, String(state.waiterCount));
    const force = (holder) => askToForce(namespace, own, holder, () => polled.wake());
    update(holders.body, state.holders, (holder) => holder.fencingToken, (holder) => holderRow(holders.columns, holder, force));
    // Owners may repeat, so a place is the key.
    const places = state.waiters.map((waiter, at) => ({ ...waiter, place: at + 1 }));
    update(waiters.body, places, (waiter) => waiter.place, () => waiterRow(waiters.columns));
    const hidden = state.waiterCount - state.waiters.length;
    setText(more, hidden > 0 ? `and ${hidden} more` : "");
  };
  let length = 0;
  const polled = poll(signal, INTERVAL, problem, async (current) => {
    const answer = await call("LockService/GetLock", { namespace, name: own }, current);
    length = answer.lock.waiterCount;
    show(answer.lock);
  });
  let due = false;
  const changed = () => {
    if (due) return;
    due = true;
    setTimeout(() => {
      due = false;
      polled.wake();
    }, length > LONG_QUEUE ? 3 * AFTER_CHANGE : AFTER_CHANGE);
  };
  let isFirst = true;
  follow(signal, streamProblem, async (current, worked) => {
    for await (const { state, change } of stream("LockService/WatchLock", { namespace, name: own }, current)) {
      worked();
      if (state) {
        if (!isFirst) past.add(el("i", { textContent: "changes before this were not seen" }));
        isFirst = false;
        show(state);
      } else {
        const token = change.fencingToken === "0" ? "" : `, token ${change.fencingToken}`;
        const counts = ` (${change.holderCount} holding, ${change.waiterCount} waiting)`;
        past.add(name(change.owner), ` ${KINDS[change.kind] ?? change.kind}${token}`, el("span", { className: "faint", textContent: counts }));
        changed();
      }
    }
  });
}

/** The entries of a claim's metadata, a line each. */
class MetadataView {
  element = el("div");
  #shown;

  show(metadata) {
    const text = JSON.stringify(metadata);
    if (text === this.#shown) return;
    this.#shown = text;
    const entries = Object.entries(metadata).map(([key, value]) => el("div", {}, name(`${key}: ${value}`)));
    this.element.replaceChildren(...entries);
  }
}

function holderRow(columns, holder, force) {
  const [since, mode] = [el("span"), el("span")];
  const [left, metadata] = [new TimeLeft(), new MetadataView()];
  let shown = holder;
  const button = el("button", {
    type: "button",
    className: "force",
    textContent: "Release by force…",
    on: { click: () => force(shown) },
  });
  const cells = [name(holder.owner), name(holder.identity), holder.fencingToken, mode, since, left.element, metadata.element, button];
  const element = row(columns, ...cells);
  element.dataset.token = holder.fencingToken;
  return {
    element,
    update: (now) => {
      shown = now;
      setText(since, ago(now.since));
      setText(mode, modeText(now.mode) + (now.holds > 1 ? `, ${now.holds} holds` : ""));
      left.set(now.fencingToken, seconds(now.remainingTtl));
      metadata.show(now.metadata);
    },
  };
}

function waiterRow(columns) {
  const [place, owner, identity, mode, since] = columns.slice(0, 5).map(() => el("span"));
  const metadata = new MetadataView();
  const element = row(columns, place, owner, identity, mode, since, metadata.element);
  return {
    element,
    update: (now) => {
      setText(place, String(now.place));
      setText(mode, modeText(now.mode));
      setText(since, ago(now.since));
      setName(owner, now.owner);
      setName(identity, now.identity);
      metadata.show(now.metadata);
    },
  };
}
