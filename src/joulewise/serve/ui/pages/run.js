// One run: what it saved and how that is known, power and clocks over time with every decision, what was tried.

import { api, get, getBlob, query } from "../api.js";
import { chart } from "../chart.js";
import { empty, fill, h, key, part, put, table, tile, to, typed } from "../dom.js";
import { change, clock, count, duration, energy, known, moment, percent, power, setting, shortCommand } from "../format.js";
import { tuneCommand } from "../next.js";
import { kindOf, kindWords, ribbon } from "../ribbon.js";
import { gpusOf, stateOf } from "../runs_table.js";
import { scatter } from "../scatter.js";

const POINTS = 600;
const ROWS = 60;
const PIECES = [
  ["piece baseline", "measured at default"],
  ["piece probe", "tried"],
  ["piece verify", "compared"],
  ["piece hold", "held"],
  ["piece left", "left at default"],
  ["piece shift", "the job changed, or we stopped"],
];

export default async function (context) {
  const { root, signal, of: name } = context;
  const [run, readings] = await Promise.all([
    get(api("runs", name), signal),
    get(query(api("runs", name, "readings"), { points: POINTS }), signal).catch(() => ({ gpus: [] })),
  ]);
  context.title(shortCommand(run.summary.command) || name);
  const head = h("div", {});
  const curves = h("div", {});
  const rest = h("div", {});
  put(root, head, curves, rest);

  let now = run;
  showHead(head, now, name, signal);
  let power_ = powerPart(context, curves, now, readings);
  showRest(rest, now);

  const again = async () => {
    now = await get(api("runs", name), signal);
    if (!head.contains(document.activeElement)) showHead(head, now, name, signal);
    power_.decided(now.decisions);
    if (!rest.contains(document.activeElement)) showRest(rest, now);
  };
  context.on("run", again, { calm: 2, only: (news) => news.name === name });
  context.on("missed", again);
  context.every(3, async () => {
    if (now.summary.state !== "running") return;
    const newer = await get(query(api("runs", name, "readings"), { points: POINTS }), signal);
    if (power_.waits && newer.gpus.some((gpu) => gpu.time_s.length)) {
      fill(curves);
      power_ = powerPart(context, curves, now, newer);
    } else power_.read(newer);
    await again();
  });
}

// The head.

function showHead(head, run, name, signal) {
  const { summary, facts } = run;
  const gpus = gpusOf(summary);
  const report = h(
    "button",
    {
      type: "button",
      onclick: async () => {
        // The report holds its own style and so cannot be a page under our rules; it is a file of the reader's.
        const link = h("a", { download: `${name.replace(/[^\w.-]+/g, "_")}.html` });
        link.href = URL.createObjectURL(await getBlob(api("runs", name, "report"), signal));
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
      },
    },
    "Report as a file",
  );
  const proven = run.proof;
  const running = summary.state === "running";
  // Its own clock may be a virtual one, ahead of ours: what it has decided is known to have passed.
  const took_s = running ? Math.max(summary.duration_s ?? 0, ...run.decisions.map((each) => (each.until_s ?? each.at_s) - summary.began_s)) : summary.duration_s;
  fill(
    head,
    h("p", { class: "crumbs" }, h("a", { href: to("runs") }, "Runs"), " / ", h("code", {}, name)),
    h("h1", {}, titleOf(run, name)),
    h("p", { class: "command" }, summary.command),
    h("p", { class: "chips" }, stateOf(summary), " ", h("span", { class: "small" }, [gpus, facts?.wanted, `began ${moment(summary.began_s)}`].filter(Boolean).join(" · "))),
    h(
      "dl",
      { class: proven ? "tiles five" : "tiles" },
      tile("Energy", energy(summary.energy_j, summary.energy_error_j), known(summary.energy_j) ? "measured, ± one standard error" : running ? "known when it has ended" : "nobody measured it to its end", "lead"),
      tile("Took", duration(took_s), running ? "so far" : ""),
      proven && tile("Saved", energy(proven.saved_j, proven.saved_half_j), `against default in the ${duration(proven.judged_s)} that were judged, probing included${running ? ", so far" : ""}`, "good"),
      proven && tile("Energy against default", change(proven.energy_change, proven.energy_half), "95 % interval"),
      proven && tile("Time against default", change(proven.time_change, proven.time_half), known(summary.bound) ? `allowed: +${percent(summary.bound)}` : "95 % interval"),
    ),
    h("div", { class: "row" }, report, run.verify && [h("span", { class: "small" }, "Check it yourself:"), typed(run.verify)]),
  );
}

/** The result where there is one; while there is none, which run this is. */
function titleOf({ summary, claim_words }, name) {
  const own = shortCommand(summary.command).split(" ")[0] || name;
  if (summary.state === "running") return `${own} is running`;
  if (summary.headline === "killed") return `${own} was killed`;
  const said = summary.headline || claim_words || own;
  return said.charAt(0).toUpperCase() + said.slice(1);
}

// Power, clocks, decisions.

function powerPart(context, root, run, readings) {
  const began_s = run.summary.began_s;
  let decisions = run.decisions;
  if (!readings.gpus.some((gpu) => gpu.time_s.length)) {
    const running = run.summary.state === "running";
    put(root, part("Power and clocks", empty(running ? "The first readings are on their way." : "No readings of this run were kept.")));
    if (decisions.length) root.append(decided(decisions, began_s, run.more_decisions));
    return { waits: true, read() {}, decided() {} };
  }
  const several = readings.gpus.length > 1;
  const tabs = h("div", { class: "row" });
  const below = h("div", {});
  const holder = h("div", {});
  const under = h("div", {});
  root.append(part("Power and clocks", tabs, holder));
  root.append(under);
  let at = 0;
  let data = readings;
  let place = null;
  let strip = null;

  const curve = chart(context, {
    label: "Power and SM clock over the run",
    height: 300,
    began_s,
    scales: { w: { unit: "W" }, mhz: { unit: "MHz" } },
    curves: [
      { name: "power", colour: "accent", scale: "w", show: power, low: 2, high: 3 },
      { colour: "accent", scale: "w" },
      { colour: "accent", scale: "w" },
      { name: "SM clock", colour: "second", scale: "mhz", show: clock },
      { name: "limit", colour: "limit", scale: "w", show: power, dash: true, step: true },
    ],
    marks: () => decisions.map((each) => each.at_s),
    also: (time_s) => {
      const now = decisions.findLast((each) => each.at_s <= time_s && time_s <= (each.until_s ?? each.at_s));
      return now && [kindWords(now), now.words].filter(Boolean).join(": ");
    },
    below,
    onMove: (where) => {
      place = where;
      strip?.fit(where);
    },
  });
  holder.append(curve.element);

  function strips() {
    strip = decisions.length ? ribbon(decisions, began_s, curve.point) : null;
    fill(below, strip?.element, strip && key(...PIECES));
    fill(under, decisions.length ? decided(decisions, began_s, run.more_decisions) : null);
    if (place) strip?.fit(place);
  }
  function draw() {
    const gpu = data.gpus[Math.min(at, data.gpus.length - 1)];
    if (gpu) curve.update([gpu.time_s, gpu.power_w, gpu.low_w, gpu.high_w, gpu.sm_mhz, gpu.limit_w]);
  }
  if (several) {
    put(tabs, h("span", { class: "small" }, "GPU"), readings.gpus.map((gpu, number) =>
      h("button", { type: "button", "aria-pressed": number === 0 ? "true" : "false", title: gpu.uuid, onclick: (event) => {
        at = number;
        tabs.querySelectorAll("button").forEach((each) => each.setAttribute("aria-pressed", each === event.currentTarget));
        draw();
      } }, String(number)),
    ));
  }
  draw();
  strips();
  return {
    read(newer) {
      if (newer.gpus.length) data = newer;
      draw();
    },
    decided(newer) {
      if (newer.length === decisions.length && newer.at(-1)?.until_s === decisions.at(-1)?.until_s) return;
      decisions = newer;
      if (!below.contains(document.activeElement) && !under.contains(document.activeElement)) strips();
    },
  };
}

function decided(decisions, began_s, more) {
  const shown = decisions.slice(0, ROWS);
  const hidden = decisions.length - shown.length;
  const holder = h("div", {});
  const draw = (rows) =>
    fill(
      holder,
      table(
        "What was changed, when and why",
        [
          { name: "At", number: true, cell: (row) => duration(row.at_s - began_s) },
          { name: "What", tight: true, cell: (row) => [h("i", { class: `swatch piece ${kindOf(row)}`, "aria-hidden": "true" }), kindWords(row), row.phase && ` (${row.phase})`] },
          { name: "Setting", cell: (row) => row.words || (Object.keys(row.setting ?? {}).length ? setting(row.setting) : "") },
          { name: "Why", long: true, cell: (row) => row.reason },
          { name: "Lasted", number: true, cell: (row) => (row.until_s > row.at_s ? duration(row.until_s - row.at_s) : "") },
        ],
        rows,
        { stacked: true },
      ),
      rows.length < decisions.length && h("p", {}, h("button", { type: "button", onclick: () => draw(decisions) }, `${count(hidden, "more decision")}`)),
      more > 0 && h("p", { class: "small" }, `… and ${more} more; the journal has them all.`),
    );
  draw(shown);
  return part("What was changed, when and why", holder);
}

// What was tried, and the proof.

function showRest(rest, run) {
  const tried = run.frontier?.tried ?? [];
  fill(rest, h("div", { class: "two" }, tried.length > 1 && frontier(run), run.proof && proof(run)), tried.length <= 1 && !run.proof && run.summary.state !== "running" && untuned(run));
}

function untuned({ summary }) {
  const gpu = summary.virtual ? " (with the same --gpu and --speed)" : "";
  if (!summary.tuned) return part("Saving", empty(`Nothing was tuned in this run, so nothing is claimed. To tune it the next time${gpu}:`, tuneCommand(summary)));
  return part("Saving", empty(...unsavedWords(summary.headline)));
}

/** Why a run that was to be tuned was not, and the way out: its words, and what to type. */
function unsavedWords(why) {
  const first = "It was to be tuned, but nothing was tried, so nothing is claimed.";
  if (/pace|unsteady/.test(why)) return [`${first} Its pace could not be told well enough; one line at the end of each step helps:`, "import joulewise; joulewise.step()"];
  if (/ended before/.test(why)) return [`${first} It ended too soon: tuning pays for runs of minutes and more.`];
  return [`${first} What can be set on this machine, and what to do about each “no”:`, "joulewise doctor"];
}

function frontier(run) {
  const bound = run.summary.bound ?? run.frontier.bound;
  const words = (point) => [point.words || setting(point.setting), `energy ${change(point.energy_ratio - 1, point.energy_error)}, time ${change(point.time_ratio - 1, point.time_error)}`, point.phase, point.chosen && "held last"];
  const changeShort = (ratio) => change(ratio).replace(".0 %", " %");
  return part(
    "What this job can do",
    scatter("What was tried: time and energy against default", {
      points: run.frontier.tried.map((point) => ({
        x: point.time_ratio - 1,
        y: point.energy_ratio - 1,
        xError: point.time_error,
        yError: point.energy_error,
        kind: point.chosen ? "chosen" : Object.keys(point.setting ?? {}).length ? "tried" : "default",
        lines: words(point),
      })),
      axes: { x: { name: "time against default", show: changeShort }, y: { name: "energy against default", show: changeShort } },
      limits: known(bound) ? [{ x: bound, words: "allowed" }] : [],
      usual: 520,
    }),
    key(["round chosen", "held last"], ["round tried", "tried"], ["round default", "default"]),
    h("p", { class: "small" }, "Left of the line is fast enough; the lower the better. Bars: 95 % intervals."),
  );
}

/** Windows at drawn times, and the pairs in a drawn order that count beside them. */
function restsOn({ windows, pairs, baseline_share }) {
  const drawn = windows > 0 && `${count(windows, "drawn window")}${known(baseline_share) ? ` (${percent(baseline_share)} of the held time)` : ""}`;
  return [drawn, pairs > 0 && count(pairs, "pair")].filter(Boolean).join(" + ");
}

function proof({ proof: found, claim_words }) {
  const facts = [
    ["Saved", energy(found.saved_j, found.saved_half_j)],
    ["Energy", change(found.energy_change, found.energy_half)],
    ["Time", change(found.time_change, found.time_half)],
    ["Rests on", restsOn(found)],
    known(found.judged_s) && ["Judged", `${duration(found.judged_s)} of ${duration(found.watched_s)} watched`],
    ["Journal", h("code", { title: found.digest }, `${(found.digest ?? "").slice(0, 16)}…`)],
  ].filter(Boolean);
  return part(
    "The proof",
    h("div", { class: "card" },
      claim_words && h("p", {}, claim_words),
      h("dl", { class: "facts" }, facts.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)))),
      found.unjudged?.length > 0 && [h("h3", {}, "What could not be judged"), h("ul", {}, found.unjudged.map((each) => h("li", {}, each)))],
      h("p", { class: "small" }, "± is half of a 95 % interval, against the same job with nothing set."),
    ),
  );
}
