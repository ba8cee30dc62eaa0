// Repeats a step while its view is shown, and says when what is shown may be old.

import { CallError } from "./api.js";
import { clock } from "./time.js";
import { el, name, setText } from "./dom.js";

/** The longest pause after a failure, in ms. */
const LONGEST_PAUSE = 4000;
/** The longest pause after a step that took long, in ms. */
const LONGEST_INTERVAL = 30_000;
/** The pause before a stream is opened again, in ms. */
const REOPEN = 300;

const connection = document.getElementById("connection");
/** Why the last run of a step showed nothing new, and since when, for each step for which that is so. */
const stale = new Map();
const SILENT = "silent";
const REFUSED = "refused";
const PAUSED = "paused";

function setStale(step, why) {
  if (why === null) stale.delete(step);
  else stale.set(step, { since: stale.get(step)?.since ?? clock(), why });
  const all = [...stale.values()];
  const texts = {
    [SILENT]: (since) => `No answer from the server since ${since}. What is shown may be old; trying again.`,
    [REFUSED]: (since) => `The server has answered with errors since ${since}. What is shown may be old; trying again.`,
    [PAUSED]: (since) => `Not read since ${since}, while the page was in the background; reading again.`,
  };
  const worst = [SILENT, REFUSED, PAUSED].map((kind) => all.find((one) => one.why === kind)).find(Boolean);
  setText(connection, worst ? texts[worst.why](worst.since) : "");
  connection.classList.toggle("paused", worst?.why === PAUSED);
}

/** A place for the problem of a view. */
export function notice() {
  return el("p", { className: "notice", attributes: { role: "alert" } });
}

/** Shows the error of a call, or nothing. */
export function showProblem(place, error) {
  const texts = {
    PERMISSION_DENIED: "Not allowed",
    NAMESPACE_NOT_FOUND: "No such namespace",
    INVALID_FIELD: "Not valid",
    LEASE_LOST: "Not held any more",
  };
  const text = error ? `${texts[error.reason] ?? error.reason}: ${error.message}` : "";
  if (place.problem === text) return;
  place.problem = text;
  place.replaceChildren(...(error ? [name(text)] : []));
}

/** Waits while the tab is in the background. */
async function shown(signal) {
  while (document.hidden && !signal.aborted) {
    await new Promise((resolve) => {
      document.addEventListener("visibilitychange", resolve, { once: true });
      signal.addEventListener("abort", resolve, { once: true });
    });
  }
}

/** Reads something again after each `interval` ms, and less often what takes long: see `repeat`. */
export function poll(signal, interval, place, step) {
  return repeat(signal, (took) => Math.max(interval, Math.min(5 * took, LONGEST_INTERVAL)), place, step);
}

/**
 * Follows a stream, and opens it again soon after it ends: see `repeat`. What its view shows is read by a `poll` too, which
 * says whether that is old; a stream says in its own place that changes are missed.
 */
export function follow(signal, place, step) {
  const mark = (why, error) => why === SILENT && showProblem(place, error);
  repeat(signal, () => REOPEN, place, step, mark);
}

/**
 * Runs `step` now, and again after a pause, until `signal`. While the tab is in the background it does not run, and the
 * signal that it was given is aborted. A step that lasts calls its second argument when it has shown something. Problems
 * are shown in `place`, and `mark` is told why what is shown may be old. `wake` of the result runs it sooner.
 */
function repeat(signal, interval, place, step, mark = (why) => setStale(step, why)) {
  let wake = () => {};
  let isWoken = false;
  let failures = 0;
  let hasWorked = false;
  const pause = (time) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, time);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  const worked = () => {
    if (signal.aborted) return;
    failures = 0;
    hasWorked = true;
    mark(null);
    showProblem(place, null);
  };
  const failed = (error) => {
    failures += 1;
    if (!(error instanceof CallError)) {
      console.error(error);
      showProblem(place, { reason: "This page failed", message: String(error) });
    } else if (error.status === 401 || error.reason === "UNAUTHENTICATED") {
      dispatchEvent(new CustomEvent("unauthenticated"));
    } else if (error.status === 0 || error.reason === "DRAINING") {
      mark(SILENT, error);
    } else {
      mark(hasWorked ? REFUSED : null);
      showProblem(place, error);
    }
  };
  const run = async () => {
    while (!signal.aborted) {
      if (document.hidden && hasWorked) mark(PAUSED);
      await shown(signal);
      if (signal.aborted) return;
      const began = performance.now();
      isWoken = false;
      const hidden = untilHidden();
      try {
        await step(AbortSignal.any([signal, hidden.signal]), worked);
        worked();
      } catch (error) {
        if (signal.aborted) return;
        // Nothing was read, and nothing failed.
        if (hidden.signal.aborted) {
          mark(PAUSED);
          continue;
        }
        failed(error);
      } finally {
        hidden.end();
      }
      const usual = interval(performance.now() - began);
      if (!isWoken) await pause(failures > 0 ? Math.min(250 * 2 ** failures, LONGEST_PAUSE) : usual);
    }
  };
  const end = () => {
    wake();
    mark(null);
  };
  signal.addEventListener("abort", end, { once: true });
  run();
  return {
    wake: () => {
      isWoken = true;
      wake();
    },
  };
}

/** A signal that is aborted when the tab goes to the background, until its `end`. */
function untilHidden() {
  const hidden = new AbortController();
  const look = () => {
    if (document.hidden) hidden.abort();
  };
  document.addEventListener("visibilitychange", look);
  return { signal: hidden.signal, end: () => document.removeEventListener("visibilitychange", look) };
}
