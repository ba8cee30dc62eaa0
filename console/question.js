// Asks before something is done that cannot be undone.

import { CallError, call } from "./api.js";
import { el, name } from "./dom.js";
import { notice, showProblem } from "./poll.js";

const dialog = document.getElementById("question");

/**
 * Asks, and makes a call if the answer is yes. `facts` are pairs of a label and a text. The error of the call is shown
 * within the question. `done` runs after the call's success.
 */
export function ask({ title, facts, warning, yes, method, request, done }) {
  const problem = notice();
  const list = facts.flatMap(([label, text]) => [el("dt", { textContent: label }), el("dd", {}, name(text))]);
  const cancel = el("button", { type: "button", textContent: "Cancel", id: "question-no", on: { click: () => dialog.close() } });
  const confirm = el("button", { type: "button", className: "danger", textContent: yes, id: "question-yes" });
  confirm.addEventListener("click", async () => {
    confirm.disabled = true;
    try {
      await call(method, request, new AbortController().signal);
      dialog.close();
      done();
    } catch (error) {
      if (!(error instanceof CallError)) throw error;
      showProblem(problem, error);
      confirm.disabled = false;
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
    method: "ForceRelease",
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
      "Leases that were granted before the store lost its memory may still be in use. Go on only if none is. The audit log will show who did this.",
    yes: "End the quarantine",
    method: "Admit",
    request: { namespace, node },
    done,
  });
}
