// A list that the server divides into pages.

import { el, setText } from "./dom.js";
import { poll } from "./poll.js";

/** How many rows a page has. */
const PAGE = 100;
/** How often the page that is shown is read, in ms. */
const INTERVAL = 2000;

/**
 * Reads the page that is shown again and again. `read` gets what a request for a page has, and returns an answer with a
 * `nextPageToken`; `show` shows it and returns how many rows there are, of which `many` is the word. The result has the
 * buttons as `element`, and `restart` goes to the first page.
 */
export function pages(signal, place, { read, show, many, none }) {
  // The tokens of the pages up to this one, and that of the next one.
  let tokens = [""];
  let following = "";
  // Counts the changes of page, so that the answer for another one is not shown.
  let change = 0;
  const turn = (act) => {
    act();
    following = "";
    change += 1;
    polled.wake();
  };
  const button = (textContent, click) => el("button", { type: "button", textContent, on: { click } });
  const previous = button("Previous", () => tokens.length > 1 && turn(() => tokens.pop()));
  const next = button("Next", () => following !== "" && turn(() => tokens.push(following)));
  const count = el("span", { className: "faint", id: "count", attributes: { role: "status" } });
  // A button that is disabled would lose the focus.
  const enable = (element, isEnabled) => element.setAttribute("aria-disabled", String(!isEnabled));
  enable(previous, false);
  enable(next, false);
  const polled = poll(signal, INTERVAL, place, async (current) => {
    const asked = change;
    const answer = await read({ pageSize: PAGE, pageToken: tokens.at(-1) }, current);
    if (asked !== change) return polled.wake();
    following = answer.nextPageToken;
    const rows = show(answer);
    const more = following === "" ? "" : ", and more";
    const isNone = rows === 0 && tokens.length === 1 && following === "";
    setText(count, isNone ? none : `Page ${tokens.length}: ${rows} ${many}${more}`);
    enable(previous, tokens.length > 1);
    enable(next, following !== "");
  });
  return {
    element: el("div", { className: "controls" }, previous, next, count),
    restart: () => turn(() => (tokens = [""])),
  };
}
