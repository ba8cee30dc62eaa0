// The open KeepAlive and Session streams of the server.

import { call } from "./api.js";
import { el, name, row, setText, table, update } from "./dom.js";
import { lockLink } from "./locks.js";
import { pages } from "./pages.js";
import { notice } from "./poll.js";
import { serverTabs } from "./tabs.js";
import { ago } from "./time.js";

const KINDS = { SESSION_KIND_KEEP_ALIVE: "KeepAlive", SESSION_KIND_SESSION: "Session" };

export function sessions(main, signal) {
  const problem = notice();
  const columns = ["Session", "Kind", "Identity", "Peer", "Since", "Leases", "Commands", "Waits", "Unsent bytes", "Locks"];
  const list = table("Sessions", columns);
  const all = pages(signal, problem, {
    many: "sessions",
    none: "No open sessions",
    read: (asked, current) => call("AdminService/ListSessions", asked, current),
    show: (answer) => {
      update(list.body, answer.sessions, (one) => one.number, (one) => sessionRow(columns, one));
      return answer.sessions.length;
    },
  });
  const about =
    "The open KeepAlive and Session streams of this server. Without the verb admin for all locks of all namespaces only your own are shown.";
  main.append(
    el("h1", { textContent: "Sessions" }),
    serverTabs("sessions"),
    problem,
    el("p", { className: "faint", textContent: about }),
    all.element,
    list.element,
  );
}

function sessionRow(columns, { number, kind, identity, peer }) {
  const [since, leases, commands, waits, unsent] = columns.slice(4, 9).map(() => el("span"));
  const [locks, more] = [el("div"), el("div", { className: "faint" })];
  const cells = [number, KINDS[kind] ?? kind, name(identity), name(peer), since, leases, commands, waits, unsent, el("div", { className: "kept" }, locks, more)];
  return {
    element: row(columns, ...cells),
    update: (now) => {
      setText(since, ago(now.since));
      setText(leases, String(now.attachedLeases));
      setText(commands, String(now.commandsInFlight));
      setText(waits, String(now.waits));
      setText(unsent, now.unsentBytes);
      const text = ({ namespace, name: own }) => `${namespace}/${own}`;
      update(locks, now.locks, text, (lock) => lockLink(lock.namespace, lock.name, text(lock)));
      const others = now.attachedLeases - now.locks.length;
      setText(more, others > 0 ? `${others} more leases` : "");
    },
  };
}
