// What a run tried, and the proof of what it saved; or why there is none.

import { empty, h, key, part } from "../dom.js";
import { change, count, duration, energy, known, percent, setting } from "../format.js";
import { tuneCommand } from "../next.js";
import { scatter } from "../scatter.js";

/** `run` as `/api/runs/{name}` has it. */
export function provenPart(run) {
  const tried = run.frontier?.tried ?? [];
  return [h("div", { class: "two" }, tried.length > 1 && frontier(run), run.proof && proof(run)), tried.length <= 1 && !run.proof && run.summary.state !== "running" && untuned(run)];
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
