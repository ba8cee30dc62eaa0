// The field for the prefix of names. The page's address remembers it.

import { el } from "./dom.js";
import { namespacePath } from "./namespaces.js";

/** How long typing pauses before the view follows, in ms. */
const TYPING = 200;

/** A form with the field, for a page of a namespace. `changed` gets another prefix that was typed. */
export function prefixForm(signal, { namespace, page, prefix, changed }) {
  const input = el("input", { id: "prefix", type: "search", value: prefix, autocomplete: "off", spellcheck: false });
  const label = el("label", { htmlFor: "prefix", textContent: "Names that begin with" });
  const form = el("form", { on: { submit: (event) => event.preventDefault() } }, label, input);
  form.setAttribute("role", "search");
  let typing;
  input.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      if (signal.aborted) return;
      history.replaceState(null, "", `${namespacePath(namespace)}/${page}/${encodeURIComponent(input.value)}`);
      changed(input.value);
    }, TYPING);
  });
  const slash = (event) => {
    const isTyping = event.target instanceof HTMLInputElement;
    if (event.key !== "/" || isTyping || document.querySelector("dialog[open]")) return;
    event.preventDefault();
    input.focus();
  };
  addEventListener("keydown", slash, { signal });
  return form;
}
