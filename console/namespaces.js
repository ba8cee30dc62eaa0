// The namespaces: store, guarantee and health.

import { call } from "./api.js";
import { el, name, row, table, update } from "./dom.js";
import { notice, poll } from "./poll.js";
import { askToAdmit } from "./question.js";
import { seconds, span } from "./time.js";

const HEALTH = {
  NAMESPACE_HEALTH_SERVING: ["good", "serving"],
  NAMESPACE_HEALTH_QUARANTINED: ["warn", "quarantined"],
  NAMESPACE_HEALTH_AWAY: ["bad", "unreachable"],
};
const GUARANTEE = { GUARANTEE_AP: "AP", GUARANTEE_CP: "CP" };

/** The path of a namespace's page. */
export function namespacePath(namespace) {
  return `#/ns/${encodeURIComponent(namespace)}`;
}

export function namespaces(main, signal) {
  const problem = notice();
  const list = table("Namespaces", ["Namespace", "Store", "Guarantee", "Health", "TTL", "Modes"]);
  main.append(el("h1", { textContent: "Namespaces" }), problem, list.element);
  const polled = poll(signal, 2000, problem, async (current) => {
    const { namespaces: all } = await call("ListNamespaces", {}, current);
    update(list.body, all, (one) => one.name, (one) => namespaceRow(list.columns, one, () => polled.wake()));
  });
}

function namespaceRow(columns, { name: own }, changed) {
  const link = el("a", { href: namespacePath(own) }, name(own));
  const [store, guarantee, health, ttl, modes] = [el("span"), el("span"), el("div"), el("span"), el("span")];
  const element = row(columns, link, store, guarantee, health, ttl, modes);
  element.dataset.namespace = own;
  let before;
  return {
    element,
    update: (one) => {
      const now = JSON.stringify(one);
      if (now === before) return;
      before = now;
      store.textContent = one.backend;
      guarantee.textContent = GUARANTEE[one.guarantee] ?? "";
      modes.textContent = one.modes.join(", ");
      const { minTtl, defaultTtl, maxTtl } = one.limits;
      ttl.textContent = `${span(seconds(defaultTtl))} (${span(seconds(minTtl))} to ${span(seconds(maxTtl))})`;
      const nodes = one.nodes.map((node) => state(one.name, node, node.name, changed));
      health.replaceChildren(state(one.name, one, "", changed), ...nodes);
    },
  };
}

/** How a store or one of its nodes is, with a button where it is quarantined. */
function state(namespace, one, node, changed) {
  const [className, text] = HEALTH[one.health] ?? ["warn", one.health];
  const left = one.quarantineLeft ? ` for ${span(seconds(one.quarantineLeft))}` : "";
  const isQuarantined = one.health === "NAMESPACE_HEALTH_QUARANTINED";
  const admit = el("button", {
    type: "button",
    textContent: "Admit…",
    attributes: { "aria-label": `End the quarantine of ${node || namespace}` },
    on: { click: () => askToAdmit(namespace, node, one.reason, changed) },
  });
  return el(
    "div",
    {},
    node ? name(`${node} `) : null,
    el("span", { className: `badge ${className}`, textContent: `${text}${left}` }),
    one.reason ? el("span", { className: "faint" }, " ", name(one.reason)) : null,
    isQuarantined ? el("span", {}, " ", admit) : null,
  );
}
