// Asks before something is done that cannot be undone.

import { CallError, call } from "./api.js";
import { el, name } from "./dom.js";
import { notice, showProblem } from "./poll.js";

const dialog = document.getElementById("question");
/** Whether the call of the question is under way. */
let isCalling = false;

// The question stays until its answer is there: who closes it would not learn what became of the call.
dialog.addEventListener("cancel", (event) => {
  if (isCalling) event.preventDefault();
});
// Browsers close a dialog at the second Escape, whatever became of the first.
dialog.addEventListener("keydown", (event) => {
  if (isCalling && event.key === "Escape") event.preventDefault();
});
dialog.addEventListener("close", () => {
  const isLost = document.activeElement === null || document.activeElement === document.body;
  if (isLost) document.getElementById("main").focus({ preventScroll: true });
});

/** Closes a question that nobody has answered. */
export function closeQuestion() {
  if (!isCalling) dialog.close();
}

/**
 * Asks, and makes a call if the answer is yes. `facts` are pairs of a label and a text. The error of the call is shown
 * within the question. `done` runs after the call's success.
 */
export function ask({ title, facts, warning, yes, method, request, done }) {
  const problem = notice();
  const list = facts.flatMap(([label, text]) => [el("dt", { textContent: label }), el("dd", {}, name(text))]);
  const cancel = el("button", { type: "button", textContent: "Cancel", id: "question-no", on: { click: closeQuestion } });
  const confirm = el("button", { type: "button", className: "danger", textContent: yes, id: "question-yes" });
  const setCalling = (now) => {
    isCalling = now;
    dialog.setAttribute("aria-busy", String(now));
    confirm.setAttribute("aria-disabled", String(now));
    cancel.setAttribute("aria-disabled", String(now));
  };
  confirm.addEventListener("click", async () => {
    if (isCalling) return;
    setCalling(true);
    showProblem(problem, null);
    try {
      await call(method, request, new AbortController().signal);
      setCalling(false);
      dialog.close();
      done();
    } catch (error) {
      setCalling(false);
      showProblem(problem, error instanceof CallError && error.status !== 0 ? error : unknown(error));
    }
  });
  dialog.replaceChildren(
    el("h2", { id: "question-title", textContent: title }),
    el("dl", {}, ...list),
    el("p", { textContent: warning }),
    problem,
    el("div", { className: "controls" }, cancel, confirm),
  );
  dialog.showModal();
  cancel.focus();
}

/** The problem of a call whose outcome is not known. */
function unknown(error) {
  return { reason: "No answer", message: `it is not known whether this was done. ${error.message}` };
}

/** Asks whether a holder shall be removed. */
export function askToForce(namespace, lock, holder, done) {
  const identity = holder.identity ? [["Identity", holder.identity]] : [];
  ask({
    title: "Release this lock by force?",
    facts: [
      ["Namespace", namespace],
      ["Lock", lock],
      ["Owner", holder.owner ?? holder.candidate],
      ...identity,
      ["Fencing token", holder.fencingToken],
    ],
    warning:
      "The first waiter is granted the lock at once, while the owner's work may still run. Only a resource that compares fencing tokens refuses it. The audit log will show who did this.",
    yes: "Release by force",
    method: "AdminService/ForceRelease",
    request: { namespace, name: lock, fencingToken: holder.fencingToken },
    done,
  });
}

/** Asks whether a store shall be trusted again. */
export function askToAdmit(namespace, node, reason, done) {
  ask({
    title: "End this quarantine?",
    facts: [
      ["Namespace", namespace],
      ["Node", node || "all of the store"],
      ["Reason", reason],
    ],
    warning:
      "Leases that were granted before the store lost its data may still be in use. Go on only if none is. The audit log will show who did this.",
    yes: "End the quarantine",
    method: "AdminService/Admit",
    request: { namespace, node },
    done,
  });
}
