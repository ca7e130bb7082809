// Power and clocks of a run over time, and below them what was decided when and why.

import { api, get, query } from "../api.js";
import { chart } from "../chart.js";
import { spliced } from "../columns.js";
import { empty, h, key, part, say } from "../dom.js";
import { clock, count, power } from "../format.js";
import { redrawn } from "../redraw.js";
import { kindWords, MOST, ribbon } from "../ribbon.js";
import { decisionsPart } from "./run_decisions.js";

const POINTS = 600;
const SOON_MS = 250; // who zooms may go on zooming
const PIECES = [
  ["piece baseline", "measured at default"],
  ["piece probe", "tried"],
  ["piece verify", "compared"],
  ["piece hold", "held"],
  ["piece left", "left at default"],
  ["piece shift", "the job changed, or we stopped"],
];

/** `read()` fetches the readings, `show(run)` draws them with the run's decisions; `failed()`: the last could not be had. */
export function runPower(context, name) {
  const { signal } = context;
  const instead = h("div", {});
  const tabs = h("div", { class: "row" });
  const holder = h("div", {});
  const trouble = h("p", { class: "troubles", role: "status", hidden: true });
  const below = h("div", {});
  const decided = decisionsPart();
  const element = h("div", {}, part("Power and clocks", instead, tabs, holder, trouble), decided.element);
  let run = null;
  let gpus = []; // as last read, in their order
  let more = 0; // GPUs that are not among them
  let closer = new Map(); // uuid -> the same, only what the reader has zoomed into, and finer
  let range = null; // which that is: {from_s, to_s}
  let chosen = null; // the uuid of the GPU that is shown
  let error = null;
  let curve = null;
  let place = null; // where the curve lies on the screen, and from when to when it is
  let strip = null;
  let timer = 0;
  let asked = 0; // questions for readings so far
  let answered = 0; // the last of them that was
  context.undo(() => clearTimeout(timer));

  const ask = (span) => get(query(api("runs", name, "readings"), { points: POINTS, ...span }), signal);

  async function read() {
    const wanted = range;
    const own = (asked += 1);
    try {
      const [all, fine] = await Promise.all([ask(), wanted && ask(wanted)]);
      if (own < answered) return; // a later question was faster
      answered = own;
      [gpus, more, error] = [all.gpus.filter((gpu) => gpu.time_s.length), all.more_gpus ?? 0, null];
      if (wanted === range) closer = new Map((fine?.gpus ?? []).map((gpu) => [gpu.uuid, gpu]));
    } catch (fault) {
      if (signal.aborted) throw fault;
      error = fault;
    }
  }

  /** Finer readings of what is looked at, where the reader has zoomed in. */
  function looked({ from_s, to_s }) {
    const whole = shownGpu()?.time_s ?? [];
    const zoomed = from_s > whole[0] || to_s < whole.at(-1);
    if (zoomed ? range?.from_s === from_s && range?.to_s === to_s : !range) return;
    range = zoomed ? { from_s, to_s } : null;
    clearTimeout(timer);
    if (!zoomed) {
      closer = new Map();
      return;
    }
    timer = setTimeout(() => read().then(draw, () => {}), SOON_MS);
  }

  function shownGpu() {
    return gpus.find((gpu) => gpu.uuid === chosen) ?? gpus[0];
  }

  function draw() {
    trouble.hidden = error === null || !curve;
    if (error) say(trouble, `These curves are not the latest: ${error.message}`);
    const gpu = shownGpu();
    if (!gpu) {
      showInstead(error ? `The readings cannot be had: ${error.message}` : run.summary.state === "running" ? "The first readings are on their way." : "No readings of this run were kept.");
      return;
    }
    if (!curve) {
      showInstead(null);
      curve = makeCurve();
      holder.append(curve.element);
    }
    const fine = closer.get(gpu.uuid);
    curve.update(fine ? spliced(columns(gpu), columns(fine)) : columns(gpu));
  }
  const showInstead = redrawn(context, instead, (words) => words && empty(words));

  function makeCurve() {
    return chart(context, {
      label: "Power and SM clock over the run",
      height: 300,
      began_s: run.summary.began_s,
      scales: { w: { unit: "W" }, mhz: { unit: "MHz" } },
      curves: [
        { name: "power", colour: "accent", scale: "w", show: power, low: 2, high: 3 },
        { colour: "accent", scale: "w" },
        { colour: "accent", scale: "w" },
        { name: "SM clock", colour: "second", scale: "mhz", show: clock },
        { name: "limit", colour: "limit", scale: "w", show: power, dash: true, step: true },
      ],
      marks: () => run.decisions.map((each) => each.at_s),
      also: (time_s) => {
        const now = run.decisions.findLast((each) => each.at_s <= time_s && time_s <= (each.until_s ?? each.at_s));
        return now && [kindWords(now), now.words].filter(Boolean).join(": ");
      },
      below,
      onMove: (where) => {
        place = where;
        strip?.fit(where);
        looked(where);
      },
    });
  }

  /** The pieces; they are placed by the curve above them. */
  const showStrip = redrawn(context, below, (decisions) => {
    strip = decisions.length ? ribbon(decisions, run.summary.began_s, (time_s) => curve?.point(time_s)) : null;
    if (place) strip?.fit(place);
    const hidden = decisions.length > MOST && h("p", { class: "small" }, `The last ${MOST} of ${count(decisions.length, "decision")}; the list below has more.`);
    return strip && [strip.element, key(...PIECES), hidden];
  });

  /** Which GPU: by its number in the run where the run says it, and by its name for machines. */
  const showTabs = redrawn(context, tabs, ({ listed, hidden }) => {
    const buttons = listed.map(({ uuid, number }) => h("button", { type: "button", "aria-pressed": uuid === chosen ? "true" : "false", title: uuid }, [number, shortUuid(uuid)].filter((each) => each !== null).join(" · ")));
    buttons.forEach((button, at) =>
      button.addEventListener("click", () => {
        chosen = listed[at].uuid;
        buttons.forEach((each) => each.setAttribute("aria-pressed", each === button ? "true" : "false"));
        draw();
      }),
    );
    return [h("span", { class: "small" }, "GPU"), buttons, hidden > 0 && h("span", { class: "small" }, `… and ${count(hidden, "more GPU")}`)];
  });

  function show(newer) {
    run = newer;
    const numbers = Array.isArray(run.facts?.gpus) ? run.facts.gpus : [];
    const number = ({ uuid }) => (numbers.includes(uuid) ? numbers.indexOf(uuid) : null);
    gpus.sort((a, b) => (number(a) ?? Infinity) - (number(b) ?? Infinity) || 0);
    chosen ??= gpus[0]?.uuid ?? null;
    tabs.hidden = gpus.length < 2;
    showTabs({ listed: gpus.map((gpu) => ({ uuid: gpu.uuid, number: number(gpu) })), hidden: more });
    draw();
    showStrip(run.decisions);
    decided.show(run);
  }
  return { element, read, show, failed: () => error !== null };
}

function columns(gpu) {
  return [gpu.time_s, gpu.power_w, gpu.low_w, gpu.high_w, gpu.sm_mhz, gpu.limit_w];
}

/** So much of it as tells GPUs apart: "GPU-6f1c2a9b". */
function shortUuid(uuid) {
  return uuid.length > 14 ? `${uuid.slice(0, 12)}…` : uuid;
}
