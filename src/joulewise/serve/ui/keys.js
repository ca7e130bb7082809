// Keys: "/" searches, "g" and a letter goes to a page, "t" changes light and dark, "?" shows them all.

import { h, modal } from "./dom.js";

const PATIENCE_MS = 1200; // between "g" and its letter

/** Listen from now on. `pages`: {words, key, go}; `search`, `theme`: what to do; `button`: shows the keys. */
export function listen({ pages, search, theme, button }) {
  let goes = 0;
  const help = () => explain(pages);
  button.addEventListener("click", help);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.closest?.("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const page = event.timeStamp - goes < PATIENCE_MS ? pages.find((each) => each.key === event.key) : null;
    goes = 0;
    if (page) page.go();
    else if (event.key === "g") goes = event.timeStamp;
    else if (event.key === "/") search();
    else if (event.key === "t") theme();
    else if (event.key === "?") help();
    else return;
    event.preventDefault();
  });
}

function explain(pages) {
  const rows = [
    [["/"], "search"],
    ...pages.map((page) => [["g", page.key], page.words]),
    [["t"], "light or dark"],
    [["←", "→"], "along a chart, its decisions, or a pipeline"],
    [["Esc"], "leave a field, close this"],
    [["?"], "this list"],
  ];
  const dialog = h(
    "dialog",
    { "aria-labelledby": "keys-title", class: "keys" },
    h("h2", { id: "keys-title" }, "Keys"),
    h("dl", {}, rows.map(([keys, words]) => h("div", {}, h("dt", {}, keys.map((key) => [h("kbd", {}, key), " "])), h("dd", {}, words)))),
    h("form", { method: "dialog", class: "row" }, h("button", { class: "main" }, "Close")),
  );
  modal(dialog);
}
