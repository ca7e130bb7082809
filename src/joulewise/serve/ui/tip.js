// One small box that says more about what the pointer is on, or what has the focus.

import { fill, h } from "./dom.js";

let box = null;
let anchor = null; // the element that it belongs to, or a point

/** Show lines of text beside an element, or beside a point of the window. */
export function showTip(at, ...lines) {
  box ??= document.body.appendChild(h("div", { class: "tip", role: "tooltip", id: "tip" }));
  fill(box, lines.filter(Boolean).map((line, number) => h("p", { class: number ? null : "first" }, line)));
  box.hidden = false;
  anchor = at;
  place();
}

function place() {
  const at = anchor;
  const { x, y, height = 0, width = 0 } = at instanceof Element ? at.getBoundingClientRect() : at;
  const own = box.getBoundingClientRect();
  const left = Math.min(Math.max(8, x + width / 2 - own.width / 2), innerWidth - own.width - 8);
  const above = y - own.height - 10;
  box.style.left = `${left}px`;
  box.style.top = `${above > 8 ? above : y + height + 10}px`;
}

/** Away with it. */
export function hideTip() {
  if (box) box.hidden = true;
  anchor = null;
}

/** Whether it tells of something in an element. */
export function tipIn(element) {
  return anchor instanceof Element && element.contains(anchor);
}

/** What is scrolled takes its box along: the focus itself may have scrolled it into sight. */
function moved() {
  if (!anchor) return;
  const { top, bottom } = anchor instanceof Element ? anchor.getBoundingClientRect() : { top: -1, bottom: -1 };
  if (bottom < 0 || top > innerHeight) hideTip();
  else place();
}

/** Show it while the pointer or the focus is on an element. */
export function tipped(element, lines) {
  const show = () => showTip(element, ...lines());
  element.addEventListener("pointerenter", show);
  element.addEventListener("focus", show);
  element.addEventListener("pointerleave", hideTip);
  element.addEventListener("blur", hideTip);
  return element;
}

addEventListener("keydown", (event) => event.key === "Escape" && hideTip());
addEventListener("pointermove", () => anchor instanceof Element && !anchor.isConnected && hideTip(), { passive: true }); // what it told of is gone
addEventListener("scroll", moved, { passive: true, capture: true });
