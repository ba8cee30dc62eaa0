// The page: signing in, and which view is shown.

import { CallError, call, hasToken, setToken } from "./api.js";
import { el, name, plainName, setText } from "./dom.js";
import { election, elections } from "./elections.js";
import { lock } from "./lock.js";
import { locks } from "./locks.js";
import { namespacePath, namespaces } from "./namespaces.js";
import { contention, owner, owners } from "./overview.js";
import { closeQuestion } from "./question.js";
import { sessions } from "./sessions.js";

const main = document.getElementById("main");
const path = document.getElementById("path");
const signOut = document.getElementById("sign-out");
const VIEWS = { locks, lock, contention, owners, owner, elections, election };
/** The views of one lock, owner or election, which must be named. */
const OF_ONE = ["lock", "owner", "election"];

let shown = new AbortController();

/** The parts of the address after the hash, or nothing for one that is damaged. */
function parts() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return ["damaged"];
  }
}

function show() {
  shown.abort();
  shown = new AbortController();
  main.replaceChildren();
  closeQuestion();
  signOut.hidden = !hasToken();
  const [area, namespace, page = "locks", ...rest] = parts();
  const view = Object.hasOwn(VIEWS, page) ? VIEWS[page] : undefined;
  const isOfOne = OF_ONE.includes(page);
  const isThere = area === "ns" && Boolean(namespace) && view !== undefined && (!isOfOne || Boolean(rest[0]));
  showPath(isThere ? namespace : undefined, isThere && isOfOne ? rest[0] : undefined);
  if (area === "") namespaces(main, shown.signal);
  else if (area === "sessions" && namespace === undefined) sessions(main, shown.signal);
  else if (isThere) view(main, shown.signal, namespace, ...rest.slice(0, 2));
  else main.append(el("h1", { textContent: "There is no such page" }));
  main.focus({ preventScroll: true });
}

function showPath(namespace, own) {
  const links = [];
  if (namespace) links.push(el("a", { href: namespacePath(namespace) }, name(namespace)));
  if (own) links.push(el("a", { href: location.hash }, name(own)));
  path.replaceChildren(...links);
  document.title = [own, namespace, "Fencepost"].filter(Boolean).map(plainName).join(" · ");
}

function askForToken(message = "") {
  shown.abort();
  shown = new AbortController();
  signOut.hidden = true;
  closeQuestion();
  path.replaceChildren();
  document.title = "Fencepost";
  const input = el("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: false });
  const problem = el("p", { className: "notice", textContent: message, attributes: { role: "alert" } });
  const submit = el("button", { className: "primary", textContent: "Sign in" });
  const form = el("form", {}, el("label", { htmlFor: "token", textContent: "Bearer token" }), input, submit);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = input.value.trim();
    if (!/^[\x21-\x7e]+$/.test(token)) {
      setText(problem, "A token has only visible ASCII characters.");
      return;
    }
    submit.disabled = true;
    setToken(token);
    const { signal } = shown;
    try {
      await call("AdminService/ListNamespaces", {}, signal);
      // Otherwise another view was opened meanwhile, and uses the token, or a later sign-in.
      if (!signal.aborted) show();
    } catch (error) {
      if (signal.aborted) return;
      setToken(null);
      submit.disabled = false;
      if (!(error instanceof CallError)) throw error;
      setText(problem, error.status === 401 ? "This token is not accepted." : error.message);
    }
  });
  const about = "The token is kept in the memory of this page alone: a reload or another tab asks for it again.";
  main.replaceChildren(
    el("h1", { textContent: "Sign in" }),
    problem,
    form,
    el("p", { className: "faint", textContent: about }),
  );
  input.focus();
}

signOut.addEventListener("click", () => {
  setToken(null);
  askForToken();
});
addEventListener("unauthenticated", () => {
  const wasKnown = hasToken();
  setToken(null);
  askForToken(wasKnown ? "The token is not accepted any more." : "");
});
addEventListener("hashchange", show);
show();
