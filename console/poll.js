// Repeats a step while its view is shown, and says when the server does not answer.

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
let lostSince = null;

function answered() {
  lostSince = null;
  setText(connection, "");
}

function unanswered() {
  lostSince ??= clock();
  setText(connection, `No answer from the server since ${lostSince}. What is shown may be old; trying again.`);
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

/** Handles what any call may end with. Returns whether it was an error of a call. */
export function handled(error, place) {
  if (!(error instanceof CallError)) return false;
  if (error.status === 0) {
    unanswered();
  } else if (error.status === 401) {
    answered();
    dispatchEvent(new CustomEvent("unauthenticated"));
  } else {
    answered();
    showProblem(place, error);
  }
  return true;
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

/** Follows a stream, and opens it again soon after it ends: see `repeat`. */
export function follow(signal, place, step) {
  repeat(signal, () => REOPEN, place, step);
}

/**
 * Runs `step` now, and again after a pause, until `signal`. While the tab is in the background it does not run, and the
 * signal that it was given is aborted. Problems are shown in `place`. `wake` of the result runs it sooner.
 */
function repeat(signal, interval, place, step) {
  let wake = () => {};
  let isWoken = false;
  const pause = (time) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, time);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  const run = async () => {
    let failures = 0;
    while (!signal.aborted) {
      await shown(signal);
      const began = performance.now();
      isWoken = false;
      try {
        await whileShown(signal, step);
        if (signal.aborted) return;
        answered();
        showProblem(place, null);
        failures = 0;
      } catch (error) {
        if (signal.aborted) return;
        if (!handled(error, place)) throw error;
        failures += 1;
      }
      const usual = interval(performance.now() - began);
      if (!isWoken) await pause(failures > 0 ? Math.min(250 * 2 ** failures, LONGEST_PAUSE) : usual);
    }
  };
  signal.addEventListener("abort", () => wake(), { once: true });
  run();
  return {
    wake: () => {
      isWoken = true;
      wake();
    },
  };
}

/** Runs a step, and aborts its signal when the tab goes to the background. */
async function whileShown(signal, step) {
  const hidden = new AbortController();
  const look = () => {
    if (document.hidden) hidden.abort();
  };
  document.addEventListener("visibilitychange", look);
  try {
    await step(AbortSignal.any([signal, hidden.signal]));
  } catch (error) {
    if (!hidden.signal.aborted) throw error;
  } finally {
    document.removeEventListener("visibilitychange", look);
  }
}
