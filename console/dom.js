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

/** Characters that change how others are shown, or show nothing, or look like a space. */
const HIDDEN =
  /[\p{Cc}\p{Cf}\p{Co}\p{Cn}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}\u00a0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000]/u;
const HIDDEN_OR_NOT = new RegExp(`(${HIDDEN.source})`, "u");

/** The parts of a text, in which each hidden character, and each space at an end, is a part of its own. */
function parts(text) {
  let [start, end] = [0, text.length];
  while (start < end && text[start] === " ") start += 1;
  while (end > start && text[end - 1] === " ") end -= 1;
  const middle = text.slice(start, end).split(HIDDEN_OR_NOT);
  return [...text.slice(0, start), ...middle, ...text.slice(end)].filter((part) => part !== "");
}

/** The number of a hidden character, such as `U+202E`; nothing for another part. */
function number(part) {
  if (part !== " " && !HIDDEN.test(part)) return undefined;
  return `U+${part.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A name that somebody else chose, in plain text: hidden characters are shown by their numbers. */
export function plainName(text) {
  return parts(text).map((part) => number(part) ?? part).join("");
}

/** The same as an element. */
export function name(text) {
  const shown = parts(text).map((part) => {
    const textContent = number(part);
    return textContent === undefined ? part : el("span", { className: "escaped", textContent });
  });
  return el("bdi", { className: "name" }, ...shown);
}

/** Makes an element show a name, without touching one that is the same. */
export function setName(element, text) {
  if (element.shownName === text) return;
  element.shownName = text;
  element.replaceChildren(...(text === "" ? [] : [name(text)]));
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
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const at = focused ? [...parent.children].findIndex((child) => child.contains(focused)) : -1;
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
  if (focused && document.activeElement !== focused) restoreFocus(parent, focused, at);
}

/** Hides an element or shows it. The focus does not stay in what is hidden. */
export function setHidden(element, isHidden) {
  if (isHidden && element.contains(document.activeElement)) document.getElementById("main").focus({ preventScroll: true });
  element.hidden = isHidden;
}

/** Gives the focus back to an element that was moved, or to the child that took the place of one that is gone. */
function restoreFocus(parent, focused, at) {
  const child = parent.children[Math.min(at, parent.childElementCount - 1)];
  const instead = parent.contains(focused) ? focused : child?.querySelector("a, button");
  (instead ?? document.getElementById("main")).focus({ preventScroll: true });
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
