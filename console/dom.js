// Elements. All text of others becomes text nodes, never markup.

/** An element with properties, `data` attributes, listeners in `on`, and children. */
export function el(tag, { data = {}, on = {}, attributes = {}, ...properties } = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  Object.assign(element.dataset, data);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  for (const [name, listener] of Object.entries(on)) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Sets a text, without touching one that is the same. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Characters that change how others are shown, or show nothing. */
const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u3164\uffa0\u2800]/u;
const HIDDEN_OR_NOT = new RegExp(`(${HIDDEN.source})`, "u");

/** A name that somebody else chose: hidden characters are shown by their numbers. */
export function name(text) {
  const parts = text.split(HIDDEN_OR_NOT).filter((part) => part !== "");
  const shown = parts.map((part) => {
    if (!HIDDEN.test(part)) return part;
    const number = part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return el("span", { className: "escaped", textContent: `U+${number}` });
  });
  return el("bdi", { className: "name" }, ...shown);
}

/** A table with these columns. Its `body` is for `update`. */
export function table(caption, columns) {
  const body = el("tbody");
  const heads = columns.map((column) => el("th", { scope: "col", textContent: column }));
  const head = el("thead", {}, el("tr", {}, ...heads));
  const element = el("table", { attributes: { "aria-label": caption } }, head, body);
  return { element, body, columns };
}

/** A row of cells, each with the label of its column for narrow screens. */
export function row(columns, ...cells) {
  const all = cells.map((cell, at) => el("td", { data: { label: columns[at] } }, cell));
  return el("tr", {}, ...all);
}

/**
 * Makes the children of an element show these items: those with the same key are updated, others are made or removed.
 * `make(item)` returns an object with an `element` and an `update(item)`.
 */
export function update(parent, items, key, make) {
  const known = parent.shownItems ?? new Map();
  const next = new Map(items.map((item) => [key(item), item]));
  // First, so that the others stay where they are and keep the focus.
  for (const [id, { element }] of known) {
    if (!next.has(id)) element.remove();
  }
  let place = parent.firstElementChild;
  for (const [id, item] of next) {
    const shown = known.get(id) ?? make(item);
    shown.update(item);
    next.set(id, shown);
    if (shown.element === place) place = place.nextElementSibling;
    else parent.insertBefore(shown.element, place);
  }
  parent.shownItems = next;
}

/** Moves the focus between the links of a table with the arrow keys. */
export function arrowKeys(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (step === undefined) return;
  const links = [...event.currentTarget.querySelectorAll("tbody a")];
  const at = links.indexOf(document.activeElement);
  const next = links[at + step];
  if (at < 0 || next === undefined) return;
  event.preventDefault();
  next.focus();
}
