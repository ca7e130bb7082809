// What came of a run, in a few numbers, and its report. Changed in place: somebody may be reading it.

import { api, getBlob } from "../api.js";
import { h, put, say, tile, to, typed } from "../dom.js";
import { change, duration, energy, known, moment, percent, shortCommand } from "../format.js";
import { redrawn } from "../redraw.js";
import { gpusOf, stateOf } from "../runs_table.js";
import { savingOf } from "../saving.js";

/** Give it the run, as `/api/runs/{name}` has it, by `show`. */
export function runHead(context, name) {
  const title = h("h1", {});
  const command = h("p", { class: "command" });
  const state = h("span", {});
  const about = h("span", { class: "small" });
  const spent = tile("Energy", "", "", "lead");
  const took = tile("Took");
  const saved = tile("Saved");
  const lessEnergy = tile("Energy against default");
  const moreTime = tile("Time against default");
  const tiles = h("dl", { class: "tiles" }, spent, took);
  const check = h("span", { class: "row" });
  const element = h(
    "div",
    {},
    h("p", { class: "crumbs" }, h("a", { href: to("runs") }, "Runs"), " / ", h("code", {}, name)),
    title,
    command,
    h("p", { class: "chips" }, state, " ", about),
    tiles,
    h("div", { class: "row" }, reportButton(context, name), check),
  );
  const showState = redrawn(context, state, stateOf);
  const showCheck = redrawn(context, check, (verify) => verify && [h("span", { class: "small" }, "Check it yourself:"), typed(verify)]);

  function show(run) {
    const { summary, facts, proof } = run;
    const running = summary.state === "running";
    // Its own clock may be a virtual one, ahead of ours: what it has decided is known to have passed.
    const took_s = running ? Math.max(summary.duration_s ?? 0, ...run.decisions.map((each) => (each.until_s ?? each.at_s) - summary.began_s)) : summary.duration_s;
    say(title, titleOf(run, name));
    say(command, summary.command);
    showState({ state: summary.state, exit_code: summary.exit_code });
    say(about, [gpusOf(summary), facts?.wanted, `began ${moment(summary.began_s)}`].filter(Boolean).join(" · "));
    spent.say(energy(summary.energy_j, summary.energy_error_j), known(summary.energy_j) ? "measured, ± one standard error" : running ? "known when it has ended" : "nobody measured it to its end");
    took.say(duration(took_s), running ? "so far" : "");
    showCheck(run.verify);
    if (!proof) return;
    if (!tiles.contains(saved)) {
      tiles.classList.add("five");
      put(tiles, saved, lessEnergy, moreTime);
    }
    saved.say(energy(proof.saved_j, proof.saved_half_j), savedWords(proof, running));
    saved.classList.toggle("good", savingOf(proof) === "saved");
    lessEnergy.say(change(proof.energy_change, proof.energy_half), "95 % interval");
    moreTime.say(change(proof.time_change, proof.time_half), known(summary.bound) ? `allowed: +${percent(summary.bound)}` : "95 % interval");
  }
  return { element, show };
}

/** The result where there is one; while there is none, which run this is. */
function titleOf({ summary, claim_words }, name) {
  const own = shortCommand(summary.command).split(" ")[0] || name;
  if (summary.state === "running") return `${own} is running`;
  if (summary.headline === "killed") return `${own} was killed`;
  const said = summary.headline || claim_words || own;
  return said.charAt(0).toUpperCase() + said.slice(1);
}

function savedWords(proof, running) {
  const first = { open: "not told from nothing; ", lost: "more was used; " }[savingOf(proof)] ?? "";
  return `${first}against default in the ${duration(proof.judged_s)} that were judged, probing included${running ? ", so far" : ""}`;
}

/** The report holds its own style and so cannot be a page under our rules; it is a file of the reader's. */
function reportButton({ signal }, name) {
  const said = h("span", { class: "small", role: "status" });
  const save = async () => {
    say(said, "");
    try {
      const link = h("a", { download: `${name.replace(/[^\w.-]+/g, "_")}.html` });
      link.href = URL.createObjectURL(await getBlob(api("runs", name, "report"), signal));
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    } catch (error) {
      if (!signal.aborted) say(said, `There is no report: ${error.message}`);
    }
  };
  return [h("button", { type: "button", onclick: save }, "Report as a file"), said];
}
