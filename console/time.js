// Times: bars that show how long a lease still lives, and when something began.

import { el, setText } from "./dom.js";

/** How often the bars move, in ms. */
const TICK = 250;
/** Below this share of its time a bar changes its colour. */
const SOON = 0.2;

const bars = new Set();

/** The seconds of a duration such as "1.5s". */
export function seconds(duration) {
  return duration ? Number(duration.slice(0, -1)) : 0;
}

/** A time span for people. */
export function span(length) {
  if (length < 10) return `${length.toFixed(1)} s`;
  if (length < 120) return `${Math.round(length)} s`;
  if (length < 7200) return `${Math.round(length / 60)} min`;
  if (length < 172_800) return `${Math.round(length / 3600)} h`;
  return `${Math.round(length / 86_400)} d`;
}

/** How much the server's clock is before this machine's, in ms; zero for a difference that the answers do not show. */
let offset = 0;
/** Answers tell the server's time in whole seconds, and take a while. In ms. */
const UNCERTAIN = 2000;

/** Notes the time in the head of an answer that has just arrived. */
export function noteServerTime(date) {
  const now = Date.parse(date ?? "") + 500 - Date.now();
  if (Math.abs(now - offset) > UNCERTAIN) offset = Math.abs(now) > UNCERTAIN ? now : 0;
}

/** How long ago a timestamp of the server was. */
export function ago(timestamp) {
  return timestamp ? `${span(Math.max(0, (Date.now() + offset - Date.parse(timestamp)) / 1000))} ago` : "";
}

/** The time of day, to the millisecond. */
export function clock(date = new Date()) {
  const two = (number) => String(number).padStart(2, "0");
  const time = [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  return `${time}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}

/** A bar that runs out. Its whole length is the longest time that its lease was seen to have. */
export class TimeLeft {
  #fill = el("span", { className: "fill" });
  #number = el("span", { className: "seconds" });
  #lease = undefined;
  #whole = 0;
  #end = 0;
  element = el(
    "span",
    { className: "time-left" },
    el("span", { className: "bar", attributes: { "aria-hidden": "true" } }, this.#fill),
    this.#number,
  );

  /** Shows what was read just now: the lease's token, and the seconds that remain; `undefined` for no lease. */
  set(lease, remaining) {
    if (lease !== this.#lease) this.#whole = 0;
    this.#lease = lease;
    this.element.hidden = lease === undefined;
    if (lease === undefined) {
      bars.delete(this);
      return;
    }
    this.#whole = Math.max(this.#whole, remaining);
    this.#end = performance.now() + remaining * 1000;
    bars.add(this);
    this.move(performance.now());
  }

  move(now) {
    const left = Math.max(0, (this.#end - now) / 1000);
    const share = this.#whole > 0 ? left / this.#whole : 0;
    this.#fill.style.transform = `scaleX(${share.toFixed(4)})`;
    this.#fill.classList.toggle("soon", share < SOON);
    // Only the next read tells whether it was renewed.
    setText(this.#number, left > 0 ? span(left) : "may be over");
  }
}

setInterval(() => {
  if (document.hidden) return;
  const now = performance.now();
  for (const bar of bars) {
    if (bar.element.isConnected) bar.move(now);
    else bars.delete(bar);
  }
}, TICK);
