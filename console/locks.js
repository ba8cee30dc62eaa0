// The locks of a namespace by prefix, a page at a time.

import { call } from "./api.js";
import { arrowKeys, el, name, row, setText, table, update } from "./dom.js";
import { namespacePath } from "./namespaces.js";
import { notice, poll } from "./poll.js";
import { prefixForm } from "./prefix.js";
import { tabs } from "./tabs.js";
import { TimeLeft, ago, seconds } from "./time.js";

const PAGE = 100;
const INTERVAL = 2000;

/** The path of a lock's page. */
export function lockPath(namespace, lock) {
  return `${namespacePath(namespace)}/lock/${encodeURIComponent(lock)}`;
}

/** The words for how a claim shares its lock. */
export function modeText(mode) {
  if (mode?.semaphore) return `semaphore ${mode.semaphore.permits} of ${mode.semaphore.limit}`;
  return mode?.shared ? "shared" : "exclusive";
}

/** Locks by prefix, with buttons for pages. `make` makes the row of a lock, and `isShown` filters. */
export function lockList(main, signal, { page, namespace, prefix, caption, columns, make, isShown = () => true }) {
  const problem = notice();
  const list = table(caption, columns);
  list.element.addEventListener("keydown", arrowKeys);
  const form = prefixForm(signal, {
    namespace,
    page,
    prefix,
    changed: (typed) => {
      wanted = typed;
      tokens = [""];
      polled.wake();
    },
  });
  const [previous, next] = ["Previous", "Next"].map((text) =>
    el("button", { type: "button", textContent: text, disabled: true }),
  );
  const count = el("span", { className: "faint", id: "count", attributes: { role: "status" } });
  const controls = el("div", { className: "controls" }, previous, next, count);
  main.append(tabs(namespace, page), problem, form, controls, list.element);

  let wanted = prefix;
  // The tokens of the pages up to this one, and that of the next one.
  let tokens = [""];
  let following = "";
  const polled = poll(signal, INTERVAL, problem, async (current) => {
    const [asked, pageToken] = [wanted, tokens.at(-1)];
    const answer = await call("ListLocks", { namespace, prefix: asked, pageSize: PAGE, pageToken }, current);
    if (asked !== wanted || pageToken !== tokens.at(-1)) return polled.wake();
    following = answer.nextPageToken;
    const locks = answer.locks.filter(isShown);
    update(list.body, locks, (lock) => lock.name, (lock) => make(list.columns, lock));
    const more = following === "" ? "" : ", and more";
    setText(count, locks.length === 0 ? "No locks in use" : `Page ${tokens.length}: ${locks.length} locks${more}`);
    previous.disabled = tokens.length === 1;
    next.disabled = following === "";
  });
  previous.addEventListener("click", () => {
    tokens.pop();
    polled.wake();
  });
  next.addEventListener("click", () => {
    tokens.push(following);
    next.disabled = true;
    polled.wake();
  });
}

export function locks(main, signal, namespace, prefix = "") {
  main.append(el("h1", {}, "Locks of ", name(namespace)));
  const columns = ["Lock", "Held by", "Mode", "Waiting", "Since", "Time left"];
  const make = (all, lock) => lockRow(all, namespace, lock);
  lockList(main, signal, { page: "locks", namespace, prefix, caption: "Locks", columns, make });
}

/** The row of a lock; `lock` is a LockSummary. */
export function lockRow(columns, namespace, lock) {
  const link = el("a", { href: lockPath(namespace, lock.name) }, name(lock.name));
  const [holder, mode, waiting, since] = [el("span"), el("span"), el("span"), el("span")];
  const left = new TimeLeft();
  const element = row(columns, link, holder, mode, waiting, since, left.element);
  let held;
  return {
    element,
    update: ({ firstHolder, holderCount, waiterCount }) => {
      setText(waiting, String(waiterCount));
      setText(since, ago(firstHolder?.since));
      left.set(firstHolder?.fencingToken, seconds(firstHolder?.remainingTtl));
      const now = firstHolder ? `${firstHolder.fencingToken} ${holderCount}` : "";
      if (now === held) return;
      held = now;
      mode.textContent = firstHolder ? modeText(firstHolder.mode) : "";
      const others = holderCount > 1 ? ` and ${holderCount - 1} more` : "";
      holder.replaceChildren(...(firstHolder ? [name(firstHolder.owner), others] : ["nobody"]));
    },
  };
}
