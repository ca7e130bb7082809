// What was found.

import { api, get, query } from "../api.js";
import { chip, empty, h, put } from "../dom.js";
import { count } from "../format.js";

const KINDS = { run: "run", series: "recurring job", plan: "plan", job: "cluster job", gpu: "GPU" };

export default async function (context) {
  const { root, signal } = context;
  const q = context.query.get("q") ?? "";
  context.title(`Search: ${q}`);
  document.getElementById("q").value = q;
  put(root, h("h1", {}, "Search"));
  if (!q) {
    put(root, empty("Type a part of a run's command, a job's or a plan's name, or a GPU."));
    return;
  }
  const { hits, runs, more } = await get(query(api("search"), { q }), signal);
  if (!hits.length) {
    put(root, empty(`Nothing here is called “${q}”.`));
    return;
  }
  put(
    root,
    h("ul", { class: "hits" }, hits.map((hit) => h("li", {}, chip(KINDS[hit.kind] ?? hit.kind), " ", h("a", { href: local(hit.href) }, hit.name), h("span", { class: "under" }, hit.words)))),
    runs > hits.filter((hit) => hit.kind === "run").length && h("p", {}, h("a", { href: query("#/runs", { query: q }) }, `All ${count(runs, "run")} like this`)),
    more > 0 && h("p", { class: "small" }, `… and ${more} more that are no runs; more letters find fewer.`),
  );
}

/** An address of ours, whether it was given with its "#" or without. */
function local(href) {
  return href.replace(/^\/(?=#)/, "");
}
