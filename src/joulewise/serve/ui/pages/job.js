// One job that returns: what is believed of each batch size, what learning has cost, and every trial.

import { api, get, query } from "../api.js";
import { chip, empty, h, part, put, s, say, table, tile, to } from "../dom.js";
import { change, count, duration, energy, known, moment, quoted, setting, significant, UNKNOWN } from "../format.js";
import { redrawn } from "../redraw.js";
import { drawnWidth, scale, scatter } from "../scatter.js";
import { tipped } from "../tip.js";

const TRIALS = 200; // of the latest
const HALF = 520; // pixels of a picture that has another beside it
const STATES = { best: "done", works: "", open: "busy", hopeless: "bad", "too large": "bad", crashes: "bad" };

export default async function (context) {
  const { root, signal, of: name } = context;
  context.title(name);
  const about = h("p", { class: "lead-note" });
  const nothing = empty("Nobody has asked for a trial yet.");
  const parts = Array.from({ length: 6 }, () => h("div", {}));
  const [numbers, believed, learnt, sizes, whole, tried] = parts;
  const showNumbers = redrawn(context, numbers, ({ summary, beliefs }) => tiles(summary, beliefs));
  const showBelieved = redrawn(context, believed, ({ beliefs, job }) => belief(beliefs, job));
  const showLearnt = redrawn(context, learnt, ({ trials, summary }) => learning(trials, summary));
  const showWhole = redrawn(context, whole, (points) => (points.length ? frontierPart(points) : null));
  const sizesList = sizesTable();
  const trialsList = trialsTable();
  const earlier = h("p", { class: "small" });
  put(sizes, part("Batch sizes", sizesList));
  put(tried, part("Trials", trialsList, earlier));
  put(root, h("p", { class: "crumbs" }, h("a", { href: to("series") }, "Recurring jobs"), " /"), h("h1", {}, name), about, nothing, numbers, h("div", { class: "two" }, believed, learnt), sizes, whole, tried);

  const show = async () => {
    const [{ job, platform, summary, beliefs }, { trials }, { points }] = await Promise.all([
      get(api("series", name), signal),
      get(query(api("series", name, "history"), { latest: true, most: TRIALS }), signal),
      get(api("series", name, "frontier"), signal),
    ]);
    say(about, [job.target && `until ${job.target}`, `batch sizes ${job.batch_sizes.join(", ")} (default ${job.default})`, `at most ${count(job.max_epochs, "epoch")}`, platform && `on ${platform.gpus} × ${platform.gpu_name}`].filter(Boolean).join(" · "));
    nothing.hidden = Boolean(summary);
    for (const each of parts) each.hidden = !summary;
    if (!summary) return;
    showNumbers({ summary, beliefs });
    showBelieved({ beliefs, job });
    showLearnt({ trials, summary });
    sizesList.renew(beliefs);
    showWhole(points);
    trialsList.renew([...trials].reverse());
    earlier.hidden = !trials[0]?.asked.trial; // they are counted from 0
    say(earlier, `The latest ${count(trials.length, "trial")}; 'joulewise recur history ${quoted(name)} -n 0' has them all.`);
  };
  await show();
  context.again(show, { on: "run", calm: 5 });
}

function tiles(summary, beliefs) {
  const best = beliefs.find((each) => each.batch_size === summary.best);
  const half = known(summary.saved_error) ? 1.96 * summary.saved_error : null;
  return h(
    "dl",
    { class: "tiles three" },
    tile("Best known", known(summary.best) ? String(summary.best) : UNKNOWN, best?.epoch ? setting(best.epoch.setting) : "batch size", "lead"),
    tile("Cost so far", known(summary.saved) ? change(-summary.saved, half) : UNKNOWN, costWords(summary, half), summary.saved > half ? "good" : ""),
    tile("Learning cost", known(summary.learning_cost) ? `${significant(summary.learning_cost, 2)} runs` : UNKNOWN, "more than the best size would have taken, in runs of it"),
    tile("A run at default", energy(summary.default_energy_j), duration(summary.default_duration_s)),
    tile("A run at the best", energy(summary.best_energy_j), duration(summary.best_duration_s)),
    tile("Spent in all", energy(summary.energy_j), `${count(summary.recurrences, "run")}, ${count(summary.trials, "trial")}, ${duration(summary.duration_s)}`),
  );
}

function costWords({ saved }, half) {
  if (!known(saved)) return "The default was not seen yet.";
  const words = "against the default every time, learning included";
  return known(half) && Math.abs(saved) <= half ? `${words}; not told from nothing yet, each run narrows it` : words;
}

/** Intervals side by side: cost of a run where it is known, else epochs. */
function belief(beliefs, job) {
  const costs = beliefs.some((each) => known(each.cost));
  const low = (each) => (costs ? each.cost_low : each.epochs_low);
  const high = (each) => (costs ? each.cost_high : each.epochs_high);
  const middle = (each) => (costs ? each.cost : each.epochs);
  const shown = beliefs.filter((each) => known(middle(each)));
  const best = Math.min(...shown.map(middle));
  const least = Math.min(...shown.map(low));
  const most = Math.min(Math.max(...shown.map(high)), best * 12); // what reaches further is cut: it says "far more"
  const step = 44;
  const [left, right, top] = [74, 16, 10];
  const width = drawnWidth(HALF);
  const place = (value) => left + (Math.log(Math.min(value, most) / least) / Math.log(most / least || 2)) * (width - left - right);
  const relative = (value) => `${significant(value / best, 2)}×`;
  const ticks = [0.5, 1, 2, 4, 8].filter((each) => each * best >= least && each * best <= most);
  const height = top + step * shown.length + 44;
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "intervals", role: "group", "aria-label": "What is believed of each batch size" },
    ticks.map((tick) => [
      s("line", { class: "grid", x1: place(tick * best), x2: place(tick * best), y1: top, y2: height - 40 }),
      s("text", { class: "middle", x: place(tick * best), y: height - 24, "aria-hidden": "true" }, `${tick}×`),
    ]),
    s("text", { class: "middle", x: (left + width - right) / 2, y: height - 6 }, costs ? "cost of a run, against the best (95 %)" : "epochs to the target, against the fewest (95 %)"),
  );
  shown.forEach((each, row) => {
    const y = top + step * row + step / 2;
    const beyond = high(each) > most;
    const lines = [
      `batch size ${each.batch_size}: ${each.state}`,
      costs && `a run costs ${relative(each.cost)} the best, 95 %: ${relative(each.cost_low)} to ${relative(each.cost_high)}`,
      epochsOf(each, job),
      each.says,
    ];
    picture.append(
      tipped(
        s(
          "g",
          { class: `belief ${each.state === "best" ? "chosen" : ""}`, tabindex: 0, role: "img", "aria-label": lines.filter(Boolean).join("; ") },
          s("rect", { class: "touch", x: 0, y: y - step / 2, width, height: step }),
          s("text", { class: "end name", x: left - 12, y: y + 4 }, each.batch_size),
          s("line", { class: "span", x1: place(low(each)), x2: place(high(each)), y1: y, y2: y, "stroke-dasharray": each.successes ? null : "5 4" }),
          beyond && s("text", { class: "end", x: width - right, y: y - 8 }, "and more"),
          s("circle", { class: "dot", cx: place(middle(each)), cy: y, r: each.state === "best" ? 6.5 : 5 }),
        ),
        () => lines,
      ),
    );
  });
  return part("What is believed of each batch size", h("figure", { class: "figure" }, shown.length ? picture : empty("Nothing is known yet.")), h("p", { class: "small" }, "Dashed: it never got there yet; what it takes is known only from the sizes beside it."));
}

function epochsOf(each, job) {
  const open = !each.successes && each.epochs_high >= job.max_epochs;
  return open ? `at least ${significant(each.epochs_low, 2)} epochs` : `${significant(each.epochs, 2)} epochs, 95 %: ${significant(each.epochs_low, 2)} to ${significant(each.epochs_high, 2)}`;
}

/** What whole runs took: those that are over and whose first trial is among these. */
function wholeRuns(trials) {
  const runs = new Map(); // by their names: [trial, …]
  for (const trial of trials) runs.set(trial.asked.recurrence, [...(runs.get(trial.asked.recurrence) ?? []), trial]);
  const list = [...runs.values()];
  if (trials[0]?.asked.trial > 0) list.shift(); // it may have begun before
  return list
    .filter((tried) => tried.some(({ told }) => told) && tried.every(({ told, expired }) => told || expired))
    .map((tried) => ({ tried, energy_j: tried.reduce((sum, { told }) => sum + (told?.energy_j ?? 0), 0) }));
}

/** Joules run by run: what learning cost is what stands above the best. */
function learning(trials, summary) {
  const list = wholeRuns(trials);
  if (!list.length) return part("What learning cost", empty("No run has ended yet."));
  const [width, height, left, bottom] = [drawnWidth(HALF), 264, 88, 40];
  const most = Math.max(...list.map((run) => run.energy_j), summary.best_energy_j ?? 0, summary.default_energy_j ?? 0, 1);
  const y = scale([0, most], height - bottom, 10, { room: 0 });
  const wide = (width - left - 10) / list.length;
  const picture = s(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: "bars", role: "group", "aria-label": "What each run cost" },
    y.ticks.map((tick) => s("text", { class: "end", x: left - 8, y: y(tick) + 4, "aria-hidden": "true" }, energy(tick, null, 3))),
    s("line", { class: "grid", x1: left, x2: width - 10, y1: y(0), y2: y(0) }),
    s("text", { class: "middle", x: (left + width) / 2, y: height - 8 }, `energy of ${trials[0].asked.trial > 0 ? "the latest " : ""}${count(list.length, "run")} that are over, in order`),
  );
  list.forEach((run, number) => {
    const [{ asked }] = run.tried;
    const sizes = run.tried.map((trial) => `${trial.asked.batch_size} (${trial.told?.outcome?.replaceAll("_", " ") ?? "lost"})`).join(", then ");
    const lines = [`trial ${run.tried.map((trial) => trial.asked.trial).join(", ")} of ${moment(asked.time_s)}: ${energy(run.energy_j)}`, `batch size ${sizes}`, run.tried.at(-1).asked.reason];
    picture.append(
      tipped(
        s("rect", { class: `bar ${run.tried.length > 1 ? "cut" : ""}`, x: left + number * wide + wide * 0.14, y: Math.min(y(run.energy_j), y(0) - 2), width: wide * 0.72, height: Math.max(2, y(0) - y(run.energy_j)), rx: 2, tabindex: 0, role: "img", "aria-label": lines.join("; ") }),
        () => lines,
      ),
    );
  });
  put(picture, levels(summary, y, left, width - 10));
  return part("What learning cost", h("figure", { class: "figure" }, picture));
}

/** Lines at what a run takes at default and at the best, with their names; one name where they lie too close for two. */
function levels({ default_energy_j: usual, best_energy_j: best }, y, left, right) {
  const line = (value, kind) => known(value) && s("line", { class: kind, x1: left, x2: right, y1: y(value), y2: y(value) });
  const name = (value, words) => known(value) && s("text", { class: "end halo", x: right - 2, y: y(value) - 5 }, words);
  const close = known(usual) && known(best) && Math.abs(y(usual) - y(best)) < 16;
  return [line(usual, "limit"), line(best, "aim"), close ? name(Math.max(usual, best), "a run at default, and at the best") : [name(usual, "a run at default"), name(best, "a run at the best")]];
}

function sizesTable() {
  return table(
    "Batch sizes",
    [
      { name: "Batch size", number: true, cell: (each) => each.batch_size },
      { name: "State", cell: (each) => chip(each.state, STATES[each.state] ?? "") },
      { name: "Got there", number: true, cell: (each) => `${each.successes} of ${each.runs}` },
      { name: "Epochs", number: true, cell: (each) => (known(each.epochs) ? `${significant(each.epochs, 2)} (${significant(each.epochs_low, 2)}–${significant(each.epochs_high, 2)})` : UNKNOWN) },
      { name: "An epoch", number: true, cell: (each) => (each.epoch ? `${energy(each.epoch.energy_j)}, ${duration(each.epoch.duration_s)}` : UNKNOWN) },
      { name: "Setting", cell: (each) => (each.epoch ? setting(each.epoch.setting) : "") },
      { name: "Why", long: true, cell: (each) => each.says },
    ],
    [],
    { stacked: true, key: (each) => each.batch_size, rowClass: (each) => (each.state === "best" ? "chosen" : null) },
  );
}

function frontierPart(points) {
  return part(
    "Whole runs that nothing beats",
    scatter("Time and energy of whole runs", {
      points: points.map((point) => ({ x: point.time_s, y: point.energy_j, xError: 2 * point.time_error_s, yError: 2 * point.energy_error_j, kind: "tried", lines: [`batch size ${point.batch_size}, ${setting(point.setting)}`, `${duration(point.time_s)}, ${energy(point.energy_j, 2 * point.energy_error_j)}`] })),
      axes: { x: { name: "time of a run", show: duration }, y: { name: "energy of a run", show: (value) => energy(value, null, 3) } },
    }),
  );
}

function trialsTable() {
  return table(
    "Trials",
    [
      { name: "Trial", number: true, cell: ({ asked }) => asked.trial },
      { name: "When", cell: ({ asked }) => moment(asked.time_s) },
      { name: "Batch size", number: true, cell: ({ asked }) => asked.batch_size },
      { name: "Ended", cell: ({ told, expired }) => (told ? chip(told.outcome.replaceAll("_", " "), told.outcome === "reached" ? "done" : "bad") : expired ? chip("lost", "bad") : chip("under way", "busy")) },
      { name: "Epochs", number: true, cell: ({ told }) => told?.epochs ?? UNKNOWN },
      { name: "Energy", number: true, cell: ({ told }) => energy(told?.energy_j) },
      { name: "Took", number: true, cell: ({ told }) => duration(told?.duration_s) },
      { name: "Why", long: true, cell: ({ asked }) => asked.reason },
    ],
    [],
    { stacked: true, key: ({ asked }) => asked.trial },
  );
}
