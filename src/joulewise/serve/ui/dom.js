// Elements out of data. Data becomes text and attributes only, never markup: a run may be called "<script>".

const SVG = "http://www.w3.org/2000/svg";
const LINKS = /^(#|\/(?!\/))/; // what data may link to: our own pages

/** An element: `h("p", {class: "small", onclick: f}, "text", child, …)`. null, undefined and false are left out. */
export function h(name, attributes, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same in SVG. */
export function s(name, attributes, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "href" && !LINKS.test(value)) continue;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  put(element, ...children);
  return element;
}

/** Append children: elements, text, numbers, lists of them. */
export function put(element, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Replace what is in it. */
export function fill(element, ...children) {
  element.replaceChildren();
  return put(element, ...children);
}

/** Set text only where it is another: what has not changed is not laid out again, and not read out again. */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Set attributes only where they are others, as `say` does with text. */
export function mark(element, attributes) {
  for (const [key, value] of Object.entries(attributes)) {
    if (element.getAttribute(key) !== String(value)) element.setAttribute(key, value);
  }
}

/** Let an element have these children, in this order. Those that are there already stay, with whoever stands in them. */
export function ordered(parent, children) {
  const wanted = new Set(children);
  const stood = document.activeElement;
  for (const old of [...parent.children]) if (!wanted.has(old)) old.remove();
  let next = parent.firstElementChild;
  for (const child of children) {
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
  // What is moved loses the focus.
  if (stood !== document.activeElement && parent.contains(stood)) stood.focus({ preventScroll: true });
}

/**
 * A table. `columns`: {name, cell(row) -> child, number, long, tight: how it is set}. It scrolls by itself where it is too
 * wide; on a phone one that is `stacked` becomes a block a row instead, each value behind its name. `renew(rows)` shows
 * other rows and touches only what differs, so that whoever reads it or stands in it keeps the place: `key(row)` tells
 * rows apart (else their order does), `said(row)` is all that its cells are made of, as text.
 */
export function table(caption, columns, rows, { rowClass, stacked = false, key = null, said = JSON.stringify } = {}) {
  const head = columns.map((column) => h("th", { scope: "col", class: classes(column) }, column.name));
  const body = h("tbody", {});
  const element = h(
    "div",
    { class: stacked ? "wide stacked" : "wide", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", { class: "unseen" }, caption), h("thead", {}, h("tr", {}, head)), body),
  );
  let shown = new Map(); // key -> {text, line}
  element.renew = (newer) => {
    const lines = new Map();
    newer.forEach((row, at) => {
      const name = key ? key(row) : at;
      const text = said(row);
      const old = shown.get(name);
      if (old?.text === text) lines.set(name, old);
      else {
        const made = h("tr", { class: rowClass?.(row) }, columns.map((column) => cellOf(column, row)));
        lines.set(name, { text, line: old ? likened(old.line, made) : made });
      }
    });
    shown = lines;
    ordered(body, [...lines.values()].map(({ line }) => line));
  };
  element.renew(rows);
  return element;
}

/** A row made like another one, cell by cell. */
function likened(line, made) {
  line.className = made.className;
  const fresh = [...made.cells];
  [...line.cells].forEach((cell, at) => {
    if (cell.isEqualNode(fresh[at])) return;
    const focused = cell.contains(document.activeElement);
    cell.replaceWith(fresh[at]);
    if (focused) fresh[at].querySelector("a, button")?.focus();
  });
  return line;
}

function classes(column) {
  return [column.number && "n", column.long && "long", column.tight && "tight"].filter(Boolean).join(" ") || null;
}

function cellOf(column, row) {
  const cell = h("td", { class: classes(column), "data-name": column.name }, column.cell(row));
  if (["", "–"].includes(cell.textContent)) cell.classList.add("unknown"); // a stack leaves it out
  return cell;
}

/** A big number with its name. Returns the tile; `tile.say(value, note)` changes it. */
export function tile(name, value = "…", note = "", kind = "") {
  const big = h("dd", { class: "big" }, value);
  const small = h("dd", { class: "small" }, note);
  const element = h("div", { class: `tile ${kind}` }, h("dt", {}, name), big, small);
  element.say = (newValue, newNote = "") => {
    say(big, newValue);
    say(small, newNote);
  };
  return element;
}

/** What stands where there is nothing yet: what is missing, and the command that makes some. */
export function empty(text, command) {
  return h("div", { class: "empty" }, h("p", {}, text), command && typed(command));
}

/** A command to type, with a button that copies it. `what`: its name for those who do not see it. */
export function typed(command, what = "the command") {
  const code = h("code", {}, command);
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what}: ${command}` }, "Copy");
  button.addEventListener("click", async () => {
    const done = await copied(command, code);
    say(button, done ? "Copied" : "Selected");
    setTimeout(() => say(button, "Copy"), 2000);
  });
  return h("div", { class: "typed" }, h("pre", {}, code), button);
}

/** Into the clipboard. Where the browser allows that to nobody (plain HTTP from afar), it is selected for the reader. */
async function copied(text, element) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(element);
    return false;
  }
}

/** A titled part of a page. */
export function part(title, ...children) {
  return h("section", {}, h("h2", {}, title), ...children);
}

/** What colours mean: [[classes of the swatch, words], …]. Those who do not see them hear it elsewhere. */
export function key(...items) {
  const shown = items.map(([kind, words]) => h("span", { class: "item" }, h("i", { class: `swatch ${kind}` }), words));
  return h("p", { class: "key", "aria-hidden": "true" }, shown);
}

/** What whoever looks should know, a sentence each; null where there is nothing. */
export function troubled(troubles) {
  return troubles?.length ? h("ul", { class: "troubles", "aria-label": "Troubles" }, troubles.map((each) => h("li", {}, each))) : null;
}

/** Show a dialog, until it is closed. */
export function modal(dialog) {
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A path of ours with names in it: `to("runs", name)` is "#/runs/…". */
export function to(...words) {
  return `#/${words.map(encodeURIComponent).join("/")}`;
}

/** A word with a colour and, for those who do not see colours, the word. */
export function chip(text, kind = "") {
  return h("span", { class: `chip ${kind}` }, text);
}
