// Points in the plane with their errors, in SVG: frontiers. Every point can be reached by Tab and says what it is.

import { h, s } from "./dom.js";
import { known } from "./format.js";
import { tipped } from "./tip.js";

const LEFT = 88;
const RIGHT = 18;
const TOP = 16;
const BOTTOM = 46;

/** How wide a picture is drawn, so that its letters are as large on a phone as elsewhere. */
export function drawnWidth(usual) {
  return Math.min(usual, Math.max(320, innerWidth - 50));
}

/**
 * `points`: [{x, y, xError, yError, kind, lines: [text…]}]; kind: "chosen", "default", "tried", "best". `axes`: {x, y}, each
 * {name, show(value)}. `line`: whether points are joined in their order. `limits`: [{x, words}], drawn as upright lines.
 * `usual`: pixels that it is wide where there is room, so that its letters have their size.
 */
export function scatter(label, { points, axes, line = false, limits = [], onPick = null, usual = 640 }) {
  const width = drawnWidth(usual);
  const height = width < 500 ? 280 : 340;
  const drawn = points.filter((point) => known(point.x) && known(point.y));
  const x = scale(drawn.flatMap((p) => around(p.x, p.xError)).concat(limits.map((limit) => limit.x)), LEFT, width - RIGHT, { most: width < 500 ? 4 : 6 });
  const y = scale(drawn.flatMap((p) => around(p.y, p.yError)), height - BOTTOM, TOP);
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "scatter", role: "group", "aria-label": label },
    y.ticks.map((tick) => [
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      s("text", { x: LEFT - 8, y: y(tick) + 4, class: "end", "aria-hidden": "true" }, axes.y.show(tick)),
    ]),
    x.ticks.map((tick) => [
      s("line", { class: "grid", x1: x(tick), x2: x(tick), y1: TOP, y2: height - BOTTOM }),
      s("text", { x: x(tick), y: height - BOTTOM + 18, class: "middle", "aria-hidden": "true" }, axes.x.show(tick)),
    ]),
    s("text", { x: (LEFT + width - RIGHT) / 2, y: height - 6, class: "middle" }, axes.x.name),
    s("text", { x: 14, y: (TOP + height - BOTTOM) / 2, class: "middle", transform: `rotate(-90 14 ${(TOP + height - BOTTOM) / 2})` }, axes.y.name),
    limits.map((limit) => [
      s("line", { class: "limit", x1: x(limit.x), x2: x(limit.x), y1: TOP, y2: height - BOTTOM }),
      x(limit.x) - LEFT < 70 ? s("text", { x: x(limit.x) + 6, y: TOP + 12 }, limit.words) : s("text", { class: "end", x: x(limit.x) - 6, y: TOP + 12 }, limit.words),
    ]),
    line && s("polyline", { class: "joined", points: drawn.filter((p) => p.kind !== "default").map((p) => `${x(p.x)},${y(p.y)}`).join(" ") }),
  );
  picture.style.maxWidth = `${Math.round(width * 1.2)}px`; // larger, its letters would shout
  for (const point of drawn) {
    const spot = s(
      "g",
      { class: `spot ${point.kind ?? "tried"}`, tabindex: 0, role: onPick ? "button" : "img", "aria-label": point.lines.filter(Boolean).join("; ") },
      known(point.xError) && point.xError > 0 && s("line", { class: "bar", x1: x(point.x - point.xError), x2: x(point.x + point.xError), y1: y(point.y), y2: y(point.y) }),
      known(point.yError) && point.yError > 0 && s("line", { class: "bar", x1: x(point.x), x2: x(point.x), y1: y(point.y - point.yError), y2: y(point.y + point.yError) }),
      s("circle", { class: "touch", cx: x(point.x), cy: y(point.y), r: 12 }),
      s("circle", { class: "dot", cx: x(point.x), cy: y(point.y), r: point.kind === "chosen" ? 6.5 : line ? 3.5 : 5 }),
    );
    tipped(spot, () => point.lines);
    if (onPick) {
      spot.addEventListener("click", () => onPick(point));
      spot.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), onPick(point)));
    }
    picture.append(spot);
  }
  const figure = h("figure", { class: "figure" }, picture);
  /** Mark the point nearest to an x as the chosen one. */
  figure.choose = (value) => {
    const spots = picture.querySelectorAll(".spot");
    const distances = drawn.map((point) => Math.abs(point.x - value));
    const nearest = distances.indexOf(Math.min(...distances));
    spots.forEach((spot, at) => {
      spot.classList.toggle("chosen", at === nearest);
      spot.querySelector(".dot").setAttribute("r", at === nearest ? 6.5 : 3.5);
    });
  };
  return figure;
}

function around(value, error) {
  return known(error) ? [value - error, value + error] : [value];
}

/** From values to pixels, with round ticks. */
export function scale(values, from, until, { room: share = 0.06, most = 6 } = {}) {
  let low = Math.min(...values);
  let high = Math.max(...values);
  if (!known(low)) [low, high] = [0, 1];
  const room = share && ((high - low) * share || Math.abs(high) * 0.1 || 1);
  low -= room;
  high += room;
  const rough = (high - low) / (most - 1);
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((each) => each * unit).find((each) => each >= rough);
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push(Math.abs(tick) < step / 1e6 ? 0 : tick);
  const place = (value) => from + ((value - low) / (high - low)) * (until - from);
  place.ticks = ticks;
  return place;
}
