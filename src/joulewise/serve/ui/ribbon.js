// What was decided when, as a ribbon of pieces below a curve: each says on hover or focus what it was and why.

import { h } from "./dom.js";
import { duration } from "./format.js";
import { showTip, hideTip } from "./tip.js";

export const KINDS = {
  baseline: "measured at default",
  probe: "tried",
  verify: "compared",
  hold: "held",
};
export const MOST = 400; // pieces on the screen, the latest; the table has more

/** `decisions` as the API has them. `onPoint(time_s)`: one was looked at. Place it by `fit({left, width, from_s, to_s})`. */
export function ribbon(decisions, began_s, onPoint) {
  const bar = h("div", { class: "ribbon", role: "toolbar", "aria-label": "Decisions; left and right keys go through them" });
  const shown = decisions.slice(-MOST);
  const pieces = shown.map((decision, number) => {
    const lines = told(decision, began_s);
    const piece = h("button", { type: "button", class: `piece ${kindOf(decision)}`, tabindex: number ? -1 : 0, "aria-label": lines.filter(Boolean).join("; ") });
    const look = () => {
      showTip(piece, ...lines);
      onPoint?.(decision.at_s);
    };
    piece.addEventListener("pointerenter", look);
    piece.addEventListener("focus", look);
    piece.addEventListener("pointerleave", hideTip);
    piece.addEventListener("blur", hideTip);
    return piece;
  });
  bar.append(...pieces);
  let entry = pieces[0]; // where Tab leads
  const enterAt = (piece) => {
    entry.tabIndex = -1;
    piece.tabIndex = 0;
    entry = piece;
  };
  bar.addEventListener("keydown", (event) => {
    const seen = pieces.filter((piece) => !piece.hidden);
    const at = seen.indexOf(document.activeElement);
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: seen.length - 1 }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    enterAt(seen[Math.min(seen.length - 1, Math.max(0, next))]);
    entry.focus();
  });
  return {
    element: bar,
    fit({ left, width, from_s, to_s }) {
      const scale = width / Math.max(1e-9, to_s - from_s);
      bar.style.marginLeft = `${left}px`;
      bar.style.width = `${width}px`;
      pieces.forEach((piece, number) => {
        const { at_s, until_s } = shown[number];
        const start = Math.max(0, (at_s - from_s) * scale);
        const end = Math.min(width, ((until_s ?? at_s) - from_s) * scale);
        piece.hidden = end < 0 || start > width;
        piece.style.left = `${start}px`;
        piece.style.width = `${Math.max(3, end - start - 1)}px`;
      });
      if (entry.hidden) enterAt(pieces.find((piece) => !piece.hidden) ?? entry);
    },
  };
}

/** What it is coloured as: holding default is leaving the job alone. */
export function kindOf({ kind, setting }) {
  if (kind === "hold" && !Object.keys(setting ?? {}).length) return "left";
  return KINDS[kind] ? kind : "shift";
}

/** The same in words. */
export function kindWords(decision) {
  return kindOf(decision) === "left" ? "left alone" : (decision.kind_words ?? KINDS[decision.kind] ?? decision.kind);
}

/** A decision in lines of text. */
export function told(decision, began_s) {
  const what = kindWords(decision);
  const lasted = decision.until_s > decision.at_s ? ` for ${duration(decision.until_s - decision.at_s)}` : "";
  return [
    [decision.words, what].filter(Boolean).join(": "),
    `${duration(decision.at_s - began_s)} in${lasted}${decision.phase ? `, ${decision.phase}` : ""}`,
    decision.reason,
  ];
}
