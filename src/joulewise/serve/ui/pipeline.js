// One iteration of a pipeline, a row a rank: what runs when, coloured by clock. Drawn on a canvas: there may be thousands.

import { colour } from "./chart.js";
import { h, say } from "./dom.js";
import { clock, duration, known, setting } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const ROW = 34;
const GAP = 6;
const LEFT = 58;
const BOTTOM = 26;

/** Give it what `/api/plans/{name}/at` says, by `update`. */
export function pipeline(context, { low_mhz, high_mhz }) {
  const canvas = h("canvas", { class: "pipeline", tabindex: 0, role: "img", "aria-label": "The pipeline, a row a rank. Left and right keys go through it." });
  const readout = h("p", { class: "readout", "aria-live": "polite" });
  const key = h("p", { class: "key" });
  const element = h("figure", { class: "figure" }, key, h("div", { class: "stage" }, canvas), readout);
  let shown = null;
  let boxes = [];
  let at = -1;

  const rows = () => Math.max(1, shown.ranks ?? 1 + Math.max(0, ...shown.steps.map((step) => step.rank ?? step.stage)));
  const clockOf = (step) => step.setting?.sm_mhz ?? null;
  const range = () => {
    const clocks = shown.steps.map(clockOf).filter(known);
    return [low_mhz ?? Math.min(...clocks), high_mhz ?? Math.max(...clocks)];
  };
  /** 0 for the lowest clock, 1 for the highest; 1 as well where none is set. */
  const shade = (step, [low, high]) => (known(clockOf(step)) && high > low ? (clockOf(step) - low) / (high - low) : 1);

  function draw() {
    const width = canvas.parentElement?.clientWidth;
    if (!shown || !width) return;
    const scale = devicePixelRatio;
    const height = rows() * (ROW + GAP) + BOTTOM;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = '12px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';
    const [cold, hot, ink, quiet, track, ground] = ["cold", "hot", "ink", "quiet", "grid", "card"].map(colour);
    const x = (time_s) => LEFT + (time_s / shown.time_s) * (width - LEFT - 8);
    const limits = range();
    pen.textBaseline = "middle";
    for (let row = 0; row < rows(); row++) {
      const top = row * (ROW + GAP);
      pen.fillStyle = track;
      pen.fillRect(LEFT, top, width - LEFT - 8, ROW);
      pen.fillStyle = quiet;
      pen.textAlign = "right";
      pen.fillText(`rank ${row}`, LEFT - 8, top + ROW / 2);
    }
    pen.textAlign = "center";
    boxes = shown.steps.map((step) => {
      const box = { x: x(step.start_s), y: (step.rank ?? step.stage) * (ROW + GAP), width: Math.max(1, x(step.end_s) - x(step.start_s) - 1), height: ROW };
      const share = shade(step, limits);
      pen.fillStyle = mixed(cold, hot, share);
      pen.fillRect(box.x, box.y, box.width, box.height);
      if (box.width > 4) {
        // The lowest clocks are hardly another colour than the ground, and yet something runs.
        pen.strokeStyle = quiet;
        pen.lineWidth = 1;
        pen.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
      }
      if (step.kind.startsWith("forward")) {
        pen.fillStyle = ground;
        pen.globalAlpha = 0.35;
        pen.fillRect(box.x, box.y, box.width, 5);
        pen.globalAlpha = 1;
      }
      if (box.width > 22) {
        pen.fillStyle = light(mixed(cold, hot, share)) ? "#10201d" : "#ffffff";
        pen.fillText(String(step.microbatch), box.x + box.width / 2, box.y + ROW / 2 + 1);
      }
      return box;
    });
    if (at >= 0 && boxes[at]) {
      pen.strokeStyle = ink;
      pen.lineWidth = 2;
      pen.strokeRect(boxes[at].x - 1, boxes[at].y - 1, boxes[at].width + 2, ROW + 2);
    }
    pen.fillStyle = quiet;
    const below = rows() * (ROW + GAP) + 10;
    for (const [share, align] of [[0, "left"], [0.5, "center"], [1, "right"]]) {
      pen.textAlign = align;
      pen.fillText(share ? duration(shown.time_s * share) : "0 s", x(shown.time_s * share), below);
    }
    const [low, high] = limits;
    key.replaceChildren(
      h("span", {}, known(low) ? clock(low) : ""), h("i", { class: "swatch ramp", "aria-hidden": "true" }), h("span", {}, known(high) ? clock(high) : ""),
      h("span", {}, "light edge: forward; numbers: microbatches"),
    );
  }

  function lines(step) {
    return [`${step.kind.replace("_", " ")} of microbatch ${step.microbatch}, stage ${step.stage}`, step.words || setting(step.setting), `${duration(step.start_s)} to ${duration(step.end_s)}`];
  }
  function look(place) {
    at = place;
    draw();
    if (at < 0) say(readout, "");
    else say(readout, lines(shown.steps[at]).join("  ·  "));
  }

  canvas.addEventListener("pointermove", (event) => {
    const found = boxes.findIndex((box) => event.offsetX >= box.x && event.offsetX <= box.x + box.width && event.offsetY >= box.y && event.offsetY <= box.y + box.height);
    if (found !== at) look(found);
    if (found < 0) hideTip();
    else showTip({ x: event.clientX, y: event.clientY - 4 }, ...lines(shown.steps[found]));
  });
  canvas.addEventListener("pointerleave", () => {
    hideTip();
    look(-1);
  });
  canvas.addEventListener("keydown", (event) => {
    if (!shown) return;
    const order = shown.steps.map((_, number) => number).sort((a, b) => rowOf(a) - rowOf(b) || shown.steps[a].start_s - shown.steps[b].start_s);
    const here = order.indexOf(at);
    const next = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: order.length - 1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    look(order[Math.min(order.length - 1, Math.max(0, next))]);
  });
  const rowOf = (number) => shown.steps[number].rank ?? shown.steps[number].stage;
  addEventListener("joulewise-theme", draw);
  const watcher = new ResizeObserver(draw);
  watcher.observe(element);
  context.undo(() => {
    removeEventListener("joulewise-theme", draw);
    watcher.disconnect();
  });
  context.ready(draw);
  return {
    element,
    update(said) {
      shown = said;
      if (at >= said.steps.length) at = -1;
      draw();
    },
  };
}

function channels(hex) {
  return [1, 3, 5].map((from) => Number.parseInt(hex.slice(from, from + 2), 16));
}

/** Between two colours of the style sheet. */
function mixed(one, other, share) {
  const [a, b] = [channels(one), channels(other)];
  return `#${a.map((value, at) => Math.round(value + (b[at] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

function light(hex) {
  const [red, green, blue] = channels(hex);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 140;
}
