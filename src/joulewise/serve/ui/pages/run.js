// One run: what came of it, power and clocks with every decision marked, what was tried, and the proof.

import { api, get } from "../api.js";
import { h, put } from "../dom.js";
import { shortCommand } from "../format.js";
import { redrawn } from "../redraw.js";
import { runHead } from "./run_head.js";
import { runPower } from "./run_power.js";
import { provenPart } from "./run_proof.js";

export default async function (context) {
  const { root, signal, of: name } = context;
  const head = runHead(context, name);
  const power = runPower(context, name);
  const rest = h("div", {});
  const showRest = redrawn(context, rest, provenPart);
  put(root, head.element, power.element, rest);

  let run = null;
  let stale = false; // the last look failed
  const read = async () => {
    stale = true;
    [run] = await Promise.all([get(api("runs", name), signal), power.read()]);
    head.show(run);
    power.show(run);
    const { summary, frontier, proof, claim_words } = run;
    showRest({ summary: { ...summary, duration_s: null }, frontier, proof, claim_words }); // it grows all the time, and is not shown there
    stale = false;
  };
  await read();
  context.title(shortCommand(run.summary.command) || name);
  // The last readings are written before the last news of a run: whatever is told of it, they are read again.
  context.again(read, { on: "run", only: (news) => news.name === name, every: 3, wanted: () => stale || run.summary.state === "running" || power.failed() });
}
