// The links to the pages of the server, and to those of a namespace.

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
  const pages = PAGES.map(([page, text]) => [page, text, `${namespacePath(namespace)}/${page}`]);
  return links("Pages of the namespace", pages, current);
}

/** The links to the pages of the server. */
export function serverTabs(current) {
  const pages = [
    ["namespaces", "Namespaces", "#/"],
    ["sessions", "Sessions", "#/sessions"],
  ];
  return links("Pages of the server", pages, current);
}

function links(label, pages, current) {
  const all = pages.map(([page, textContent, href]) => {
    const attributes = page === current ? { "aria-current": "page" } : {};
    return el("a", { href, textContent, attributes });
  });
  return el("nav", { className: "tabs", attributes: { "aria-label": label } }, ...all);
}
