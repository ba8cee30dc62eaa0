// The namespaces: store, guarantee and health.

import { call } from "./api.js";
import { el, name, row, setHidden, setName, setText, table, update } from "./dom.js";
import { notice, poll } from "./poll.js";
import { askToAdmit } from "./question.js";
import { serverTabs } from "./tabs.js";
import { seconds, span } from "./time.js";

const HEALTH = {
  NAMESPACE_HEALTH_SERVING: ["good", "serving"],
  NAMESPACE_HEALTH_QUARANTINED: ["warn", "quarantined"],
  NAMESPACE_HEALTH_UNAVAILABLE: ["bad", "unavailable"],
};
const GUARANTEE = { GUARANTEE_AP: "AP", GUARANTEE_CP: "CP" };

/** The path of a namespace's page. */
export function namespacePath(namespace) {
  return `#/ns/${encodeURIComponent(namespace)}`;
}

export function namespaces(main, signal) {
  const problem = notice();
  const list = table("Namespaces", ["Namespace", "Store", "Guarantee", "Health", "TTL", "Modes"]);
  main.append(el("h1", { textContent: "Namespaces" }), serverTabs("namespaces"), problem, list.element);
  const polled = poll(signal, 2000, problem, async (current) => {
    const { namespaces: all } = await call("AdminService/ListNamespaces", {}, current);
    update(list.body, all, (one) => one.name, (one) => namespaceRow(list.columns, one, () => polled.wake()));
  });
}

function namespaceRow(columns, { name: own }, changed) {
  const link = el("a", { href: namespacePath(own) }, name(own));
  const [store, guarantee, health, ttl, modes] = [el("span"), el("span"), el("div"), el("span"), el("span")];
  const element = row(columns, link, store, guarantee, health, ttl, modes);
  element.dataset.namespace = own;
  return {
    element,
    update: (one) => {
      setText(store, one.backend);
      setText(guarantee, GUARANTEE[one.guarantee] ?? "");
      setText(modes, one.modes.join(", "));
      const { ttlMin, ttlDefault, ttlMax } = one.limits;
      setText(ttl, `${span(seconds(ttlDefault))} (${span(seconds(ttlMin))} to ${span(seconds(ttlMax))})`);
      // The store as a whole has no name.
      const states = [{ ...one, name: "" }, ...one.nodes];
      update(health, states, (part) => part.name, (part) => state(own, part.name, changed));
    },
  };
}

/** How a store or one of its nodes is, with a button where it is quarantined. */
function state(namespace, node, changed) {
  let shown;
  const [badge, reason] = [el("span"), el("span", { className: "faint" })];
  const admit = el("button", {
    type: "button",
    textContent: "Admit…",
    attributes: { "aria-label": `End the quarantine of ${node || namespace}` },
    on: { click: () => askToAdmit(namespace, node, shown.reason, changed) },
  });
  return {
    element: el("div", {}, node ? name(node) : null, " ", badge, " ", reason, " ", admit),
    update: (one) => {
      shown = one;
      const [className, text] = HEALTH[one.health] ?? ["warn", one.health];
      const left = one.quarantineLeft ? ` for ${span(seconds(one.quarantineLeft))}` : "";
      badge.className = `badge ${className}`;
      setText(badge, `${text}${left}`);
      setName(reason, one.reason);
      setHidden(admit, one.health !== "NAMESPACE_HEALTH_QUARANTINED");
    },
  };
}
