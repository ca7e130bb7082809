// A list of runs, as the overview, the history and a search show it.

import { chip, h, table, to } from "./dom.js";
import { ago, change, duration, energy, known, moment, shortCommand, UNKNOWN } from "./format.js";

/** The server looks for new runs once a second: so long after their news they are in its lists. */
export const LISTED_S = 1.2;
const STATES = { running: "busy", finished: "done", killed: "bad" };

/** A run's state in a word; a command that failed is not just finished. */
export function stateOf(run) {
  if (run.state === "finished" && known(run.exit_code) && run.exit_code !== 0) return chip(`exit code ${run.exit_code}`, "bad");
  return chip(run.state, STATES[run.state] ?? "");
}

/** What a run saved: joules with their interval where something is claimed, else in a word why not. */
function savedOf(run) {
  if (known(run.saved_j)) return energy(run.saved_j, run.saved_half_j);
  if (run.state === "running") return UNKNOWN;
  return h("span", { class: "small", title: run.headline }, run.tuned ? "not proven" : "not tuned");
}

/** What it ran on: "2 × NVIDIA H200 (virtual)". */
export function gpusOf(run) {
  const models = new Map();
  for (const name of run.gpus ?? []) models.set(name, (models.get(name) ?? 0) + 1);
  const words = [...models].map(([name, number]) => (number > 1 ? `${number} × ${name}` : name)).join(", ");
  return words + (run.virtual ? " (virtual)" : "");
}

/** The table. */
export function runsTable(caption, runs) {
  return table(
    caption,
    [
      { name: "Run", long: true, cell: named },
      { name: "State", cell: stateOf },
      { name: "Began", cell: (run) => h("time", { title: moment(run.began_s) }, ago(run.began_s)) },
      { name: "Took", number: true, cell: (run) => duration(run.duration_s) },
      { name: "Energy", number: true, cell: (run) => energy(run.energy_j) },
      { name: "Energy against default", number: true, cell: (run) => change(run.energy_change, run.energy_half) },
      { name: "Time against default", number: true, cell: (run) => change(run.time_change, run.time_half) },
      { name: "Saved", number: true, cell: savedOf },
    ],
    runs,
    { stacked: true, key: (run) => run.name, said: (run) => JSON.stringify([run, ago(run.began_s)]) },
  );
}

function named(run) {
  const gpus = gpusOf(run);
  return [h("a", { href: to("runs", run.name), title: run.command, class: "clamped" }, shortCommand(run.command) || run.name), h("span", { class: "under" }, gpus)];
}
