// One cluster: watts against the cap, the budget, who has which GPUs when, and why.

import { api, get } from "../api.js";
import { chart } from "../chart.js";
import { chip, empty, fill, h, modal, part, put, say, table, tile, troubled } from "../dom.js";
import { count, duration, energy, kilowattHours, known, moment, percent, power, significant, UNKNOWN } from "../format.js";
import { gantt } from "../gantt.js";
import { redrawn } from "../redraw.js";

const STATES = { running: "busy", ended: "done", finished: "done", completed: "done", failed: "bad", cancelled: "bad" };
const NEARLY = 1.005; // up to this share of it a cap is kept: meters err by as much

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
  const showTroubles = redrawn(context, troubles, troubled);
  const curve = chart(context, {
    label: "Power of the cluster and its cap",
    height: 240,
    scales: { w: { unit: "W" } },
    curves: [
      { name: "power", colour: "accent", scale: "w", show: power },
      { name: "cap", colour: "limit", scale: "w", show: power, dash: true, step: true },
    ],
  });
  const spans = gantt();
  const jobs = jobsTable(context, name);
  const more = h("p", { class: "small" });
  const nodes = nodesTable();
  const clockNote = h("p", { class: "lead-note" });
  const watts = either(curve.element, empty("Nothing has been measured yet."));
  const whoHadWhat = either(spans.element, empty("No job has run yet."));
  const allJobs = either(h("div", {}, jobs, more), empty("No job yet:", "joulewise cluster submit --gpus 8 -- python train.py"));
  const allNodes = either(nodes, empty("No node has reported yet."));
  put(
    root,
    h("h1", {}, `Cluster ${name}`),
    clockNote,
    troubles,
    h("dl", { class: "tiles" }, drawn, cap, budget, jobsTile),
    part("Watts over time", watts.element),
    part("GPUs over time", whoHadWhat.element),
    part("Jobs", allJobs.element),
    part("Nodes", allNodes.element),
  );

  function show() {
    say(clockNote, known(now.time_s) ? `As of ${moment(now.time_s)}, by the cluster's own clock.` : "Nothing has happened yet.");
    drawn.say(power(now.power_w), known(now.energy_j) ? `${kilowattHours(now.energy_j)} since it began` : "");
    cap.say(known(now.cap_w) ? power(now.cap_w) : "none", capWords(now));
    budget.say(...budgetOf(now.budget));
    const states = now.jobs.reduce((found, job) => found.set(job.state, (found.get(job.state) ?? 0) + 1), new Map());
    jobsTile.say(String(now.jobs.length + (now.more_jobs ?? 0)), [...states].map(([state, number]) => `${number} ${state}`).join(", "));
    showTroubles(now.troubles ?? []);
    const measured = now.power.time_s.length > 1;
    watts.choose(measured);
    if (measured) curve.update([now.power.time_s, now.power.power_w, now.power.cap_w]);
    const ran = now.jobs.some((job) => job.spans?.length);
    whoHadWhat.choose(ran);
    if (ran) spans.show(now);
    allJobs.choose(now.jobs.length > 0);
    jobs.renew(now.jobs.map((job) => rowOf(job, now.time_s)));
    more.hidden = !(now.more_jobs > 0);
    say(more, `… and ${count(now.more_jobs ?? 0, "more job")} that are over.`);
    allNodes.choose(now.nodes.length > 0);
    nodes.renew(now.nodes);
  }
  show();
  context.again(
    async () => {
      now = await read();
      show();
    },
    { on: "cluster", calm: 1, only: (news) => news.name === name },
  );
}

/** One of two things in one place: what there is to see, or what stands there as long as there is nothing. */
function either(something, nothing) {
  const element = h("div", {}, nothing);
  return {
    element,
    choose(there) {
      const wanted = there ? something : nothing;
      if (element.firstChild !== wanted) fill(element, wanted);
    },
  };
}

function capWords({ cap_w, power_w, cap_by }) {
  if (!known(cap_w)) return "";
  const by = cap_by ? `by ${cap_by}` : "";
  if (!known(power_w)) return by;
  const kept = power_w <= cap_w ? `kept, ${power(cap_w - power_w)} left` : power_w <= cap_w * NEARLY ? "kept, nothing left" : `${power(power_w - cap_w)} above it`;
  return by ? `${kept}; ${by}` : kept;
}

function budgetOf(budget) {
  if (!budget) return ["none", "joulewise cluster budget 400kWh/day"];
  const period = budget.period_s === 86400 ? "a day" : `in ${duration(budget.period_s)}`;
  const all = `${kilowattHours(budget.energy_j)} ${period}`;
  const by = budget.by ? `; by ${budget.by}` : "";
  return known(budget.spent_j)
    ? [percent(budget.spent_j / budget.energy_j), `${kilowattHours(budget.spent_j)} of ${all} spent${by}`]
    : [kilowattHours(budget.energy_j), `${period}${by}`];
}

/** What a row of the table is made of: without the spans, which are drawn elsewhere, and with how long it has run by now. */
function rowOf({ name, words, state, aim, gpus, gpus_asked, done, work, energy_j, submitted_s, started_s, ended_s }, time_s) {
  return { name, words, state, aim, gpus, gpus_asked, done, work, energy_j, submitted_s, ended_s, ran_s: known(started_s) ? (ended_s ?? time_s) - started_s : null };
}

function jobsTable(context, cluster) {
  return table(
    "Jobs",
    [
      { name: "Job", long: true, cell: (job) => [job.name, h("span", { class: "under" }, job.words)] },
      { name: "State", cell: (job) => [chip(job.state, STATES[job.state] ?? ""), job.aim && ` → ${job.aim}`] },
      { name: "GPUs", number: true, cell: (job) => (known(job.ended_s) || !job.gpus_asked || job.gpus_asked === job.gpus ? job.gpus_asked || job.gpus : job.gpus > job.gpus_asked ? `${job.gpus} (${job.gpus_asked} asked for)` : `${job.gpus} of ${job.gpus_asked}`) },
      { name: "Done", number: true, cell: (job) => (known(job.work) && job.work > 0 ? percent(Math.min(1, job.done / job.work)) : known(job.done) ? significant(job.done) : UNKNOWN) },
      { name: "Energy", number: true, cell: (job) => energy(job.energy_j) },
      { name: "Submitted", cell: (job) => moment(job.submitted_s) },
      { name: "Ran", number: true, cell: (job) => duration(job.ran_s) },
      { name: "Why", cell: (job) => h("button", { type: "button", "aria-label": `Why ${job.name}?`, onclick: () => explain(context, cluster, job.name) }, "Why?") },
    ],
    [],
    { stacked: true, key: (job) => job.name },
  );
}

/** Why a job is as it is, in a dialog that goes with the page. */
async function explain(context, cluster, job) {
  const { signal } = context;
  const { why } = await get(api("clusters", cluster, "jobs", job, "why"), signal).catch((error) => ({ why: error.message }));
  if (signal.aborted) return; // the reader is elsewhere by now
  const dialog = modal(
    h(
      "dialog",
      { "aria-labelledby": "why-title" },
      h("h2", { id: "why-title" }, `Why is ${job} as it is?`),
      h("p", { class: "why" }, typeof why === "string" ? why : (why ?? []).join("\n")),
      h("form", { method: "dialog", class: "row" }, h("button", { class: "main" }, "Close")),
    ),
  );
  context.undo(() => dialog.close());
}

function nodesTable() {
  return table(
    "Nodes",
    [
      { name: "Node", long: true, cell: (node) => node.name },
      { name: "GPUs in use", number: true, cell: (node) => node.used_gpus },
      { name: "Power", number: true, cell: (node) => power(node.power_w) },
      { name: "Energy", number: true, cell: (node) => energy(node.energy_j) },
      { name: "of it idle", number: true, cell: (node) => energy(node.idle_j) },
    ],
    [],
    { stacked: true, key: (node) => node.name },
  );
}
