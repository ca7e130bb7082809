// All runs, latest first, a page at a time.

import { api, get, query } from "../api.js";
import { empty, fill, h, put } from "../dom.js";
import { count } from "../format.js";
import { runsTable } from "../runs_table.js";

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
  state.addEventListener("change", () => form.requestSubmit());
  const list = h("div", {});
  put(root, h("h1", {}, "Runs"), form, list);

  const show = (said) => {
    if (!said.runs.length) {
      const nothing = asked.query || asked.state;
      fill(list, nothing ? empty("No run is like that.") : empty("No run yet. This one measures a command; with --tune it also saves:", "joulewise run -- python train.py"));
      return;
    }
    const last = asked.first + said.runs.length;
    fill(
      list,
      runsTable("Runs", said.runs),
      h(
        "nav",
        { class: "pager", "aria-label": "Pages of runs" },
        asked.first > 0 && h("a", { href: address({ first: Math.max(0, asked.first - PAGE) }) }, "← later"),
        h("span", {}, `${asked.first + 1}–${last} of ${count(said.total, "run")}`),
        said.next !== null && h("a", { href: address({ first: said.next }) }, "earlier →"),
      ),
    );
  };
  show(await get(path, signal));
  const again = async () => {
    // Whoever is reading a row with the keyboard must not lose it.
    if (!list.contains(document.activeElement)) show(await get(path, signal));
  };
  context.on("run", again, { calm: 2 });
  context.on("missed", again, { calm: 2 });
}
