// A part of a page that is drawn anew as its data change, but never under the hands of whoever is in it.

import { fill } from "./dom.js";
import { tipIn } from "./tip.js";

const LEFT = ["focusout", "pointerout", "selectionchange", "close"]; // after one of these nobody may be in it any more

/**
 * Returns `show(data)`, which fills the element with what `draw(data)` makes of it: not if the data are what they were,
 * and later, with the latest, while somebody reads there with the keyboard, has marked something or looks at a tip.
 */
export function redrawn(context, element, draw) {
  let shown = null; // as text
  let next = null; // what waits: {text, data}
  const act = () => {
    if (!next || inUse(element)) return;
    shown = next.text;
    const { data } = next;
    next = null;
    fill(element, draw(data));
  };
  for (const kind of LEFT) document.addEventListener(kind, () => next && setTimeout(act), { capture: true, signal: context.signal }); // by then it is known where the focus went
  return (data) => {
    const text = JSON.stringify(data);
    next = text === shown ? null : { text, data };
    act();
  };
}

function inUse(element) {
  const marked = getSelection();
  const focused = document.activeElement; // a click leaves the focus behind, too, and nobody need be there any more
  return (element.contains(focused) && focused.matches(":focus-visible")) || document.querySelector("dialog[open]") !== null || tipIn(element) || (!marked.isCollapsed && marked.containsNode(element, true));
}
