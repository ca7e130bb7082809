// What was changed in a run, when and why: every decision, as a table.

import { h, say, table } from "../dom.js";
import { count, duration, setting } from "../format.js";
import { kindOf, kindWords } from "../ribbon.js";

const ROWS = 60; // the latest, until all are asked for

/** Give it the run, as `/api/runs/{name}` has it, by `show`. */
export function decisionsPart() {
  let run = null;
  let all = false; // the reader has asked for them
  const since = (row) => duration(row.at_s - run.summary.began_s);
  const list = table(
    "What was changed, when and why",
    [
      { name: "At", number: true, cell: since },
      { name: "What", tight: true, cell: (row) => [h("i", { class: `swatch piece ${kindOf(row)}`, "aria-hidden": "true" }), kindWords(row), row.phase && ` (${row.phase})`] },
      { name: "Setting", cell: (row) => row.words || (Object.keys(row.setting ?? {}).length ? setting(row.setting) : "") },
      { name: "Why", long: true, cell: (row) => row.reason },
      { name: "Lasted", number: true, cell: (row) => (row.until_s > row.at_s ? duration(row.until_s - row.at_s) : "") },
    ],
    [],
    { stacked: true, key: (row) => JSON.stringify([row.at_s, row.kind, row.phase, row.words, row.reason]) },
  );
  const rest = h("button", { type: "button", onclick: () => show(run, true) });
  const more = h("p", {}, rest);
  const beyond = h("p", { class: "small" });
  const element = h("section", { hidden: true }, h("h2", {}, "What was changed, when and why"), beyond, more, list);

  function show(newer, every = all) {
    run = newer;
    all = every;
    const shown = all ? run.decisions : run.decisions.slice(-ROWS);
    element.hidden = !shown.length;
    list.renew(shown);
    more.hidden = shown.length === run.decisions.length;
    say(rest, count(run.decisions.length - shown.length, "earlier decision"));
    beyond.hidden = !(run.more_decisions > 0);
    say(beyond, `${count(run.more_decisions, "first one")} not listed; the journal has them all.`);
  }
  return { element, show };
}
