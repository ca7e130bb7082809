// One cluster: watts against the cap, the budget, who has which GPUs when, and why.

import { api, get } from "../api.js";
import { chart, clockTicks } from "../chart.js";
import { chip, empty, fill, h, part, put, s, say, table, tile } from "../dom.js";
import { count, duration, energy, kilowattHours, known, moment, percent, power, significant, UNKNOWN } from "../format.js";
import { drawnWidth } from "../scatter.js";
import { tipped } from "../tip.js";

const STATES = { running: "busy", ended: "done", finished: "done", completed: "done", failed: "bad", cancelled: "bad" };
const ROW = 30;

export default async function (context) {
  const { root, signal, of: name } = context;
  context.title(`Cluster ${name}`);
  const read = () => get(api("clusters", name), signal);
  let now = await read();

  const drawn = tile("Drawn", UNKNOWN, "", "lead");
  const cap = tile("Cap");
  const budget = tile("Budget");
  const jobsTile = tile("Jobs");
  const troubles = h("div", {});
  const curve = chart(context, {
    label: "Power of the cluster and its cap",
    height: 240,
    scales: { w: { unit: "W" } },
    curves: [
      { name: "power", colour: "accent", scale: "w", show: power },
      { name: "cap", colour: "limit", scale: "w", show: power, dash: true, step: true },
    ],
  });
  const gantt = h("div", {});
  const jobs = h("div", {});
  const nodes = h("div", {});
  const clockNote = h("p", { class: "lead-note" });
  put(
    root,
    h("h1", {}, `Cluster ${name}`),
    clockNote,
    troubles,
    h("dl", { class: "tiles four" }, drawn, cap, budget, jobsTile),
    part("Watts over time", now.power.time_s.length > 1 ? curve.element : empty("Nothing has been measured yet.")),
    part("GPUs over time", gantt),
    part("Jobs", jobs),
    part("Nodes", nodes),
  );

  function show() {
    say(clockNote, known(now.time_s) ? `As of ${moment(now.time_s)}, by the cluster's own clock.` : "Nothing has happened yet.");
    drawn.say(power(now.power_w), known(now.energy_j) ? `${kilowattHours(now.energy_j)} since it began` : "");
    cap.say(known(now.cap_w) ? power(now.cap_w) : "none", known(now.cap_w) && known(now.power_w) ? (now.power_w <= now.cap_w * 1.005 ? `kept, ${power(now.cap_w - now.power_w)} left` : `${power(now.power_w - now.cap_w)} above it`) : "");
    budget.say(...budgetOf(now.budget));
    const states = now.jobs.reduce((found, job) => found.set(job.state, (found.get(job.state) ?? 0) + 1), new Map());
    jobsTile.say(String(now.jobs.length + (now.more_jobs ?? 0)), [...states].map(([state, number]) => `${number} ${state}`).join(", "));
    fill(troubles, now.troubles?.length ? h("ul", { class: "troubles", "aria-label": "Troubles" }, now.troubles.map((each) => h("li", {}, each))) : null);
    if (now.power.time_s.length > 1) curve.update([now.power.time_s, now.power.power_w, now.power.cap_w]);
    if (!gantt.contains(document.activeElement)) fill(gantt, now.jobs.some((job) => job.spans?.length) ? spans(now) : empty("No job has run yet."));
    if (!jobs.contains(document.activeElement)) fill(jobs, now.jobs.length ? jobsTable(name, now, signal) : empty("No job yet:", "joulewise cluster submit --gpus 8 -- python train.py"));
    fill(nodes, now.nodes.length ? nodesTable(now.nodes) : empty("No node has reported yet."));
  }
  show();
  const again = async () => {
    now = await read();
    show();
  };
  context.on("cluster", again, { calm: 1, only: (news) => news.name === name });
  context.on("missed", again);
  context.every(30, again);
}

function budgetOf(budget) {
  if (!budget) return ["none", "joulewise cluster budget 400kWh/day"];
  const period = budget.period_s === 86400 ? "a day" : `in ${duration(budget.period_s)}`;
  const all = `${kilowattHours(budget.energy_j)} ${period}`;
  return known(budget.spent_j) ? [percent(budget.spent_j / budget.energy_j), `${kilowattHours(budget.spent_j)} of ${all} spent`] : [kilowattHours(budget.energy_j), period];
}

/** Who had which GPUs when: a row a job, as high as it has GPUs. */
function spans({ jobs, time_s }) {
  const shown = jobs.filter((job) => job.spans?.length).sort((a, b) => a.spans[0].from_s - b.spans[0].from_s).slice(0, 60);
  const from_s = Math.min(...shown.map((job) => Math.min(job.spans[0].from_s, job.submitted_s ?? Infinity)));
  const to_s = Math.max(time_s ?? 0, ...shown.flatMap((job) => job.spans.map((span) => span.to_s ?? 0)), from_s + 1);
  const most = Math.max(1, ...shown.flatMap((job) => job.spans.map((span) => span.gpus)));
  const width = drawnWidth(1000);
  const [left, letters] = width < 600 ? [84, 10] : [130, 16];
  const x = (at_s) => left + ((at_s - from_s) / (to_s - from_s)) * (width - left - 10);
  const height = shown.length * ROW + 30;
  const picture = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "gantt", role: "group", "aria-label": "Which job had how many GPUs when" });
  for (const [at_s, words] of clockTicks(from_s, to_s, width < 600 ? 3 : 8)) {
    put(picture, s("line", { class: "grid", x1: x(at_s), x2: x(at_s), y1: 0, y2: height - 26 }), s("text", { class: "middle", x: x(at_s), y: height - 8, "aria-hidden": "true" }, words));
  }
  shown.forEach((job, row) => {
    const base = (row + 1) * ROW;
    put(
      picture,
      s("text", { class: "end", x: left - 12, y: base - ROW / 2 + 7 }, job.name.length > letters ? `${job.name.slice(0, letters - 1)}…` : job.name),
      s("line", { class: "grid", x1: left, x2: width - 10, y1: base, y2: base }),
      known(job.submitted_s) && s("line", { class: "wait", x1: x(job.submitted_s), x2: x(job.spans[0].from_s), y1: base - 4, y2: base - 4 }),
    );
    for (const span of job.spans) {
      const end = span.to_s ?? to_s;
      const tall = Math.max(5, (span.gpus / most) * (ROW - 6));
      const lines = [`${job.name}: ${count(span.gpus, "GPU")}`, span.words, `${duration(end - span.from_s)} from ${moment(span.from_s)}`];
      picture.append(tipped(s("rect", { class: "span", x: x(span.from_s), y: base - tall, width: Math.max(2, x(end) - x(span.from_s) - 1), height: tall, rx: 2, tabindex: 0, role: "img", "aria-label": lines.join("; ") }), () => lines));
    }
  });
  return h("figure", { class: "figure wide", tabindex: 0, role: "region", "aria-label": "GPUs over time" }, picture, h("p", { class: "key" }, h("span", {}, `As high as it has GPUs, ${most} at most; a dashed line: it waited.`)));
}

function jobsTable(cluster, now, signal) {
  const dialogFor = async (job) => {
    const { why } = await get(api("clusters", cluster, "jobs", job, "why"), signal).catch((error) => ({ why: error.message }));
    const dialog = h(
      "dialog",
      { "aria-labelledby": "why-title" },
      h("h2", { id: "why-title" }, `Why is ${job} as it is?`),
      h("p", { class: "why" }, typeof why === "string" ? why : (why ?? []).join("\n")),
      h("form", { method: "dialog", class: "row" }, h("button", { class: "main" }, "Close")),
    );
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  };
  return [
    table(
      "Jobs",
      [
        { name: "Job", long: true, cell: (job) => [job.name, h("span", { class: "under" }, job.words)] },
        { name: "State", cell: (job) => [chip(job.state, STATES[job.state] ?? ""), job.aim && ` → ${job.aim}`] },
        { name: "GPUs", number: true, cell: (job) => (known(job.ended_s) || !job.gpus_asked || job.gpus_asked === job.gpus ? job.gpus_asked || job.gpus : `${job.gpus} of ${job.gpus_asked}`) },
        { name: "Done", number: true, cell: (job) => (known(job.work) && job.work > 0 ? percent(Math.min(1, job.done / job.work)) : known(job.done) ? significant(job.done) : UNKNOWN) },
        { name: "Energy", number: true, cell: (job) => energy(job.energy_j) },
        { name: "Submitted", cell: (job) => moment(job.submitted_s) },
        { name: "Ran", number: true, cell: (job) => (known(job.started_s) ? duration((job.ended_s ?? now.time_s) - job.started_s) : UNKNOWN) },
        { name: "Why", cell: (job) => h("button", { type: "button", "aria-label": `Why ${job.name}?`, onclick: () => dialogFor(job.name) }, "Why?") },
      ],
      now.jobs,
      { stacked: true },
    ),
    now.more_jobs > 0 && h("p", { class: "small" }, `… and ${count(now.more_jobs, "more job")} that are over.`),
  ];
}

function nodesTable(nodes) {
  return table(
    "Nodes",
    [
      { name: "Node", cell: (node) => node.name },
      { name: "GPUs in use", number: true, cell: (node) => node.used_gpus },
      { name: "Power", number: true, cell: (node) => power(node.power_w) },
      { name: "Energy", number: true, cell: (node) => energy(node.energy_j) },
      { name: "of it idle", number: true, cell: (node) => energy(node.idle_j) },
    ],
    nodes,
  );
}
