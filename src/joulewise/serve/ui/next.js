// What the reader could do next, judged from what the overview already knows. Pure: data in, sentences and commands out.
//
// Not advice for its own sake: each step stands for something that was seen, and the first few are enough.

import { to } from "./dom.js";
import { ago, count, energy, known, quoted, shortCommand } from "./format.js";
import { savingOf } from "./saving.js";

const MOST = 3;
const BUSY = 0.5; // a GPU that works at least half of the time
const SHORT_S = 30; // a run below this cannot be tuned, and nobody minds
const OFTEN = 3; // so many runs of one script are a habit

/**
 * `overview` as `/api/overview` has it, `gpus` as `/api/gpus` has them. Returns [{words, command, href, link}], the most
 * urgent first; a step has a command to type, a page to look at, or both.
 */
export function nextSteps(overview, gpus = []) {
  const runs = overview.recent ?? [];
  const real = runs.filter((run) => !run.virtual);
  return [killed(real), busy(gpus), untuned(runs), unsaved(runs), shared(runs, overview.flag ?? ""), habit(runs), price(overview)].filter(Boolean).slice(0, MOST);
}

/** What is typed to tune a run's command the next time; on a virtual GPU if it ran on one: any will do. */
export function tuneCommand(run) {
  return `joulewise run ${run.virtual ? "--gpu sim:h200 " : ""}--tune -- ${run.command}`;
}

function named(run) {
  const words = shortCommand(run.command) || run.name;
  return words.length > 60 ? `${words.slice(0, 59)}…` : words;
}

function script(run) {
  return shortCommand(run.command).split(" ")[0];
}

/** Clocks that it had set are put back by the daemon; without one they may still be set. */
function killed(runs) {
  const found = runs.find((run) => run.state === "killed" && run.tuned);
  return found && { words: `“${named(found)}” was killed, ${ago(found.began_s)}. See whether anything is still set on its GPUs:`, command: "joulewise leases", href: to("runs", found.name), link: "The run" };
}

function busy(gpus) {
  const found = gpus.filter((gpu) => !gpu.virtual && !gpu.held_by && known(gpu.utilization) && gpu.utilization >= BUSY);
  if (!found.length) return null;
  const which = found.length === gpus.length && found.length > 1 ? "All GPUs" : `GPU ${found.map((gpu) => gpu.index).join(", ")}`;
  return { words: `${which} ${found.length > 1 ? "work" : "works"}, and nobody tunes ${found.length > 1 ? "them" : "it"}. Start the next training so:`, command: "joulewise run --tune -- python train.py", href: "#/gpus", link: "GPUs" };
}

function untuned(runs) {
  const found = runs.filter((run) => !run.tuned && run.state === "finished" && known(run.energy_j)).sort((a, b) => b.energy_j - a.energy_j)[0];
  return found && { words: `“${named(found)}” was measured, not tuned: ${energy(found.energy_j)}. Tuned the next time, it says what that saves:`, command: tuneCommand(found), href: to("runs", found.name), link: "The run" };
}

function unsaved(runs) {
  const found = runs.find((run) => run.tuned && run.state === "finished" && !known(run.saved_j) && run.headline && run.duration_s >= SHORT_S);
  return found && { words: `“${named(found)}”: ${found.headline}.`, href: to("runs", found.name), link: "What was tried" };
}

function habit(runs) {
  const times = new Map();
  for (const run of runs) times.set(script(run), (times.get(script(run)) ?? 0) + 1);
  const [often, number] = [...times].sort((a, b) => b[1] - a[1])[0] ?? [];
  return number >= OFTEN && often ? { words: `${often} has run ${count(number, "time")} of late. A job that returns can have its batch size learnt, too.`, href: "#/series", link: "Recurring jobs" } : null;
}

function shared(runs, flag) {
  const found = runs.filter((run) => known(run.saved_half_j) && savingOf(run) === "saved").sort((a, b) => b.saved_j - a.saved_j)[0];
  return found && { words: `“${named(found)}” saved ${energy(found.saved_j, found.saved_half_j)}. To show it to others, with the proof:`, command: `joulewise report ${quoted(found.name)}${flag} --out report.html`, href: to("runs", found.name), link: "The run" };
}

function price(overview) {
  return savingOf(overview) === "saved" && !known(overview.kwh_price) ? { words: "What the saving is worth is shown once the server knows what a kWh costs:", command: `joulewise serve${overview.flag ?? ""} --kwh-price 0.30 --currency EUR` } : null;
}
