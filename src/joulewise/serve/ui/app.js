// The frame around the pages: which one is shown, the keys, light and dark, and the news that pages live by.

import { askAgain, redeem } from "./api.js";
import { fill, h, say, to } from "./dom.js";
import { listen } from "./keys.js";
import cluster from "./pages/cluster.js";
import clusters from "./pages/clusters.js";
import gpus from "./pages/gpus.js";
import job from "./pages/job.js";
import overview from "./pages/overview.js";
import plan from "./pages/plan.js";
import plans from "./pages/plans.js";
import run from "./pages/run.js";
import runs from "./pages/runs.js";
import search from "./pages/search.js";
import series from "./pages/series.js";
import { present } from "./presence.js";
import { hideTip } from "./tip.js";

// [words of the path, a name for the page, what draws it]. ":name" stands for any one word. All are loaded at once: a
// server that has gone away must not take the pages along that say so.
const PAGES = [
  ["", "overview", overview],
  ["gpus", "gpus", gpus],
  ["runs", "runs", runs],
  ["runs/:name", "runs", run],
  ["series", "series", series],
  ["series/:name", "series", job],
  ["plans", "plans", plans],
  ["plans/:name", "plans", plan],
  ["clusters", "clusters", clusters],
  ["clusters/:name", "clusters", cluster],
  ["search", "search", search],
];
const NAV = [
  ["overview", "Overview", "#/", "o"],
  ["gpus", "GPUs", "#/gpus", "g"],
  ["runs", "Runs", "#/runs", "r"],
  ["series", "Recurring", "#/series", "j"],
  ["plans", "Plans", "#/plans", "p"],
  ["clusters", "Cluster", "#/clusters", "c"],
];
const main = document.getElementById("main");
let shown = null; // the page on the screen: {controller, heard: Map, undo: [], address, failed}

// Which page.

function wanted() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let words;
  try {
    words = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    words = ["", ""]; // no page has that address
  }
  for (const [pattern, name, draw] of PAGES) {
    const parts = pattern.split("/").filter(Boolean);
    if (parts.length === words.length && parts.every((part, at) => part === ":name" || part === words[at])) {
      return { name, draw, of: words[parts.indexOf(":name")], query: new URLSearchParams(search) };
    }
  }
  return null;
}

/** `calmly`: nobody asked for it, so that nothing is asked of the reader, and nothing is taken away from where they are. */
async function show({ calmly = false } = {}) {
  leave();
  if (!calmly) askAgain();
  const page = wanted();
  const own = { controller: new AbortController(), heard: new Map(), undo: [], address: location.hash || to() };
  const first = shown === null;
  shown = own;
  mark(page?.name);
  if (page?.name !== "search") document.getElementById("q").value = "";
  const root = h("div", { class: "page" });
  const waiting = setTimeout(() => own === shown && fill(main, h("p", { class: "empty", role: "status" }, "Loading …")), 250);
  try {
    if (page === null) throw new Error(`There is no page ${location.hash}.`);
    const context = contextOf(own, root, page);
    await page.draw(context);
  } catch (error) {
    if (own.controller.signal.aborted) return;
    if (error.name === "AbortError") return;
    own.failed = true;
    title("Trouble");
    fill(root, h("h1", {}, error.status === 404 ? "Not found" : "That did not work"), h("p", {}, error.message),
      h("div", { class: "row" }, h("button", { type: "button", class: "main", onclick: () => show() }, "Try again"), h("a", { href: "#/" }, "Overview")));
  } finally {
    clearTimeout(waiting);
  }
  if (own !== shown) return;
  fill(main, root);
  for (const ready of own.ready ?? []) ready();
  main.dataset.page = page?.name ?? "none"; // drawn
  if (!first && !calmly) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
}

function leave() {
  hideTip();
  delete main.dataset.page;
  shown?.controller.abort();
  for (const undo of shown?.undo ?? []) undo();
}

/** What a page is given: where to draw, what it is of, and the ways to stay alive until it is left. */
function contextOf(own, root, page) {
  return {
    root,
    of: page.of,
    query: page.query,
    signal: own.controller.signal,
    title,
    /** Call when such news come. `only`: news that count. `calm`: so many seconds between two calls, the last word not lost; `late`: so many before each. */
    on(kind, heard, { calm = 0, late = 0, only = () => true } = {}) {
      let timer = 0;
      let last_ms = -Infinity;
      const act = (news) => Promise.resolve(heard(news)).catch(() => {}); // the next news may be luckier
      const calmly = (news) => {
        if (!only(news)) return;
        if (!calm) act(news);
        else if (!timer) {
          timer = setTimeout(() => {
            timer = 0;
            last_ms = performance.now();
            act(news);
          }, Math.max(late * 1000, last_ms + calm * 1000 - performance.now()));
        }
      };
      own.undo.push(() => clearTimeout(timer));
      own.heard.set(kind, [...(own.heard.get(kind) ?? []), calmly]);
    },
    /** Call every so many seconds, one after the other; what fails is tried again next time. */
    every(seconds, act) {
      let timer = 0;
      const next = async () => {
        if (!document.hidden) await Promise.resolve(act()).catch(() => {});
        if (!own.controller.signal.aborted) timer = setTimeout(next, seconds * 1000);
      };
      timer = setTimeout(next, seconds * 1000);
      own.undo.push(() => clearTimeout(timer));
    },
    /**
     * Read again when such news come, when some were missed, and every so many seconds if `wanted()`; never twice at the
     * same time.
     */
    again(act, { on = null, only, calm = 2, late = 0, every = 30, wanted = () => true } = {}) {
      const read = inTurn(act);
      if (on) this.on(on, read, { calm, late, only });
      this.on("missed", read, { calm, late });
      this.every(every, () => wanted() && read());
    },
    /** Call once the page stands in the document: charts need to know how wide they are. */
    ready(act) {
      (own.ready ??= []).push(act);
    },
    /** Call when the page is left. */
    undo(act) {
      own.undo.push(act);
    },
  };
}

/** A function that is never under way twice: called meanwhile it is done once more, so that the last word is the latest. */
function inTurn(act) {
  let underWay = null;
  let wanted = false;
  const work = async () => {
    try {
      while (wanted) {
        wanted = false;
        try {
          await act();
        } catch (error) {
          if (!wanted) throw error; // else it is tried once more at once
        }
      }
    } finally {
      underWay = null;
    }
  };
  return () => {
    wanted = true;
    underWay ??= work();
    return underWay;
  };
}

function title(text) {
  document.title = text ? `${text} · joulewise` : "joulewise";
}

// The frame.

function mark(name) {
  fill(
    document.getElementById("nav"),
    NAV.map(([page, words, href]) => h("a", { href, "aria-current": page === name ? "page" : null }, words)),
  );
  const nav = document.getElementById("nav");
  const here = nav.querySelector("[aria-current]");
  if (here) nav.scrollLeft = here.offsetLeft - nav.clientWidth / 2 + here.offsetWidth / 2; // on a phone it may be outside
}

function themed() {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const tell = () => {
    say(button, dark() ? "☀" : "☾");
    button.setAttribute("aria-label", dark() ? "Light colours" : "Dark colours");
    button.title = `${button.getAttribute("aria-label")} (t)`;
    dispatchEvent(new Event("joulewise-theme"));
  };
  const turn = () => {
    root.dataset.theme = dark() ? "light" : "dark";
    try {
      localStorage.setItem("joulewise-theme", root.dataset.theme);
    } catch {
      // then it is chosen again next time
    }
    tell();
  };
  button.addEventListener("click", turn);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tell);
  tell();
  return turn;
}

function searched() {
  const form = document.getElementById("search");
  const input = document.getElementById("q");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = `#/search?${new URLSearchParams({ q: input.value.trim() })}`;
  });
  return () => {
    input.focus();
    input.select();
  };
}

const turn = themed();
listen({
  pages: NAV.map(([, words, href, key]) => ({ words, key, go: () => (location.hash = href) })),
  search: searched(),
  theme: turn,
  button: document.getElementById("keys"),
});
addEventListener("hashchange", () => {
  // The skip link points to the content of this page, not to another.
  if (location.hash === "#main") {
    history.replaceState(null, "", shown?.address ?? "#/");
    main.focus();
    return;
  }
  redeem().then(() => show()); // a link may be opened where the dashboard is already
});
await redeem();
show();
present({
  tell,
  /** Whatever happened while nobody listened was not told: a page that failed is drawn again, the others read again. */
  back: () => (shown?.failed ? show({ calmly: true }) : tell("missed", {})),
});

function tell(kind, data) {
  for (const heard of shown?.heard.get(kind) ?? []) heard(data);
}
