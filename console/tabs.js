// The pages of a namespace.

import { el } from "./dom.js";
import { namespacePath } from "./namespaces.js";

const PAGES = [
  ["locks", "Locks"],
  ["contention", "Contention"],
  ["owners", "Owners"],
  ["elections", "Elections"],
];

/** The links to the pages of a namespace. */
export function tabs(namespace, current) {
  const links = PAGES.map(([page, text]) => {
    const attributes = page === current ? { "aria-current": "page" } : {};
    return el("a", { href: `${namespacePath(namespace)}/${page}`, textContent: text, attributes });
  });
  return el("nav", { className: "tabs", attributes: { "aria-label": "Pages of the namespace" } }, ...links);
}
