// All runs, latest first, a page at a time.

import { api, get, query } from "../api.js";
import { empty, h, put } from "../dom.js";
import { count } from "../format.js";
import { redrawn } from "../redraw.js";
import { LISTED_S, runsTable } from "../runs_table.js";

const PAGE = 50;

export default async function (context) {
  const { root, signal } = context;
  context.title("Runs");
  const asked = { query: context.query.get("query") ?? "", state: context.query.get("state") ?? "", first: Math.max(0, Number(context.query.get("first")) || 0) };
  const path = query(api("runs"), { ...asked, most: PAGE });
  const address = (changed) => query("#/runs", { ...asked, ...changed, first: changed.first || null });

  const words = h("input", { type: "search", name: "query", id: "runs-query", value: asked.query, autocomplete: "off", spellcheck: "false" });
  const state = h("select", { name: "state", id: "runs-state" }, [["", "all"], ["running", "running"], ["finished", "finished"], ["killed", "killed"]].map(([value, text]) => h("option", { value, selected: value === asked.state }, text)));
  const form = h(
    "form",
    {
      class: "filter",
      onsubmit: (event) => {
        event.preventDefault();
        location.hash = address({ query: words.value.trim(), state: state.value, first: 0 });
      },
    },
    h("span", {}, h("label", { for: "runs-query" }, "Name or command"), words),
    h("span", {}, h("label", { for: "runs-state" }, "State"), state),
    h("button", {}, "Show"),
  );
  const nothing = asked.query || asked.state ? empty("No run is like that.") : empty("No run yet. This one measures a command; with --tune it also saves:", "joulewise run -- python train.py");
  const list = runsTable("Runs", []);
  const pages = h("nav", { class: "pager", "aria-label": "Pages of runs" });
  const showPages = redrawn(context, pages, ({ last, total, next }) => [
    asked.first > 0 && h("a", { href: address({ first: Math.max(0, asked.first - PAGE) }) }, "← later"),
    h("span", {}, `${asked.first + 1}–${last} of ${count(total, "run")}`),
    next !== null && h("a", { href: address({ first: next }) }, "earlier →"),
  ]);
  put(root, h("h1", {}, "Runs"), form, nothing, list, pages);

  const show = async () => {
    const { runs, total, next } = await get(path, signal);
    nothing.hidden = runs.length > 0;
    list.hidden = pages.hidden = !nothing.hidden;
    list.renew(runs);
    showPages({ last: asked.first + runs.length, total, next });
  };
  await show();
  context.again(show, { on: "run", late: LISTED_S }); // in between, too: "12 s ago" is soon a minute, and of a killed run nobody tells
}
