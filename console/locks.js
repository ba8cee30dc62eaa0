// The locks of a namespace by prefix, a page at a time.

import { call } from "./api.js";
import { arrowKeys, el, name, row, setText, table, update } from "./dom.js";
import { namespacePath } from "./namespaces.js";
import { pages } from "./pages.js";
import { notice } from "./poll.js";
import { prefixForm } from "./prefix.js";
import { tabs } from "./tabs.js";
import { TimeLeft, ago, seconds } from "./time.js";

/** The path of a lock's page. */
export function lockPath(namespace, lock) {
  return `${namespacePath(namespace)}/lock/${encodeURIComponent(lock)}`;
}

/** A link to the page of a lock, for `update`. */
export function lockLink(namespace, lock, text = lock) {
  return { element: el("div", {}, el("a", { href: lockPath(namespace, lock) }, name(text))), update: () => {} };
}

/** The words for how a claim shares its lock. */
export function modeText(mode) {
  if (mode?.semaphore) return `semaphore ${mode.semaphore.permits} of ${mode.semaphore.limit}`;
  return mode?.shared ? "shared" : "exclusive";
}

/** Locks by prefix, with buttons for pages. `make` makes the row of a lock, and `isShown` filters. */
export function lockList(main, signal, { page, namespace, prefix, columns, make, many, none, isShown = () => true }) {
  const problem = notice();
  const list = table(many, columns);
  list.element.addEventListener("keydown", arrowKeys);
  let wanted = prefix;
  const all = pages(signal, problem, {
    many,
    none,
    read: (asked, current) => call("LockService/ListLocks", { namespace, prefix: wanted, ...asked }, current),
    show: (answer) => {
      const locks = answer.locks.filter(isShown);
      update(list.body, locks, (lock) => lock.name, (lock) => make(list.columns, lock));
      return locks.length;
    },
  });
  const changed = (typed) => {
    wanted = typed;
    all.restart();
  };
  const form = prefixForm(signal, { namespace, page, prefix, changed });
  main.append(tabs(namespace, page), problem, form, all.element, list.element);
}

export function locks(main, signal, namespace, prefix = "") {
  main.append(el("h1", {}, "Locks of ", name(namespace)));
  const columns = ["Lock", "Held by", "Mode", "Waiting", "Since", "Time left"];
  const make = (all, lock) => lockRow(all, namespace, lock);
  lockList(main, signal, { page: "locks", namespace, prefix, columns, make, many: "locks", none: "No locks in use" });
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
