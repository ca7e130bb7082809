// Who had which GPUs when, in SVG: a row a job, as high as it has GPUs.
//
// Changed in place: there may be thousands of spans, and somebody may stand on one of them.

import { clockTicks } from "./chart.js";
import { fill, h, mark, ordered, s, say } from "./dom.js";
import { count, duration, known, moment } from "./format.js";
import { drawnWidth } from "./scatter.js";
import { tipped } from "./tip.js";

const ROW = 30;
const MOST = 60; // rows

/** Give it a cluster, as `/api/clusters/{name}` has it, by `show`. */
export function gantt() {
  const grid = s("g", {});
  const body = s("g", {});
  const picture = s("svg", { class: "gantt", role: "group", "aria-label": "Which job had how many GPUs when" }, grid, body);
  const key = h("span", {});
  const more = h("p", { class: "small" });
  const element = h("div", {}, h("figure", { class: "figure wide", tabindex: 0, role: "region", "aria-label": "GPUs over time" }, picture, h("p", { class: "key" }, key)), more);
  const rows = new Map(); // a job's name -> its row

  function show({ jobs, time_s, more_jobs = 0 }) {
    const ran = jobs.filter((job) => job.spans?.length);
    // The first are those that are not over, then the latest: they are what is looked for.
    const shown = ran.slice(0, MOST).sort((a, b) => a.spans[0].from_s - b.spans[0].from_s);
    const place = placed(shown, time_s);
    mark(picture, { viewBox: `0 0 ${place.width} ${place.height}` });
    fill(grid, place.ticks.map(([x, words]) => [s("line", { class: "grid", x1: x, x2: x, y1: 0, y2: place.height - 26 }), s("text", { class: "middle", x, y: place.height - 8, "aria-hidden": "true" }, words)]));
    const names = new Set(shown.map((job) => job.name));
    for (const name of rows.keys()) if (!names.has(name)) rows.delete(name);
    const lines = shown.map((job, number) => {
      if (!rows.has(job.name)) rows.set(job.name, row(job.name));
      rows.get(job.name).show(job, number, place);
      return rows.get(job.name).element;
    });
    ordered(body, lines);
    say(key, `As high as it has GPUs, ${place.most} at most; a dashed line: it waited.`);
    const hidden = ran.length - shown.length + more_jobs;
    more.hidden = hidden <= 0;
    say(more, `… and ${count(hidden, "more job")}.`);
  }
  return { element, show };
}

/** Where everything lies: what all rows have in common. */
function placed(shown, time_s) {
  const from_s = Math.min(...shown.map((job) => Math.min(job.spans[0].from_s, job.submitted_s ?? Infinity)));
  const now_s = Math.max(time_s ?? 0, ...shown.flatMap((job) => job.spans.map((span) => span.to_s ?? 0)), from_s + 1);
  // A little further than now, so that time can pass without everything moving each second.
  const step_s = 2 ** Math.floor(Math.log2((now_s - from_s) / 50));
  const to_s = from_s + Math.ceil((now_s - from_s) / step_s) * step_s;
  const width = drawnWidth(1000);
  const [left, letters] = width < 600 ? [84, 10] : [130, 16];
  // To a tenth of a pixel: what moves by less is left where it is, too.
  const x = (at_s) => Math.round((left + ((at_s - from_s) / (to_s - from_s)) * (width - left - 10)) * 10) / 10;
  return {
    ...{ now_s, width, left, letters, x },
    most: Math.max(1, ...shown.flatMap((job) => job.spans.map((span) => span.gpus))),
    height: shown.length * ROW + 30,
    ticks: clockTicks(from_s, to_s, width < 600 ? 3 : 8).map(([at_s, words]) => [x(at_s), words]),
  };
}

function row(name) {
  const label = s("text", { class: "end" });
  const ground = s("line", { class: "grid" });
  const waited = s("line", { class: "wait" });
  const spans = s("g", {});
  const bars = [];
  return {
    element: s("g", {}, label, ground, waited, spans),
    show(job, number, { now_s, width, left, letters, most, x }) {
      const base = (number + 1) * ROW;
      say(label, name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
      mark(label, { x: left - 12, y: base - ROW / 2 + 7 });
      mark(ground, { x1: left, x2: width - 10, y1: base, y2: base });
      const since_s = known(job.submitted_s) ? job.submitted_s : job.spans[0].from_s;
      const began_s = known(job.started_s) ? job.started_s : job.spans[0].from_s; // its first spans may not be kept
      mark(waited, { x1: x(since_s), x2: x(began_s), y1: base - 4, y2: base - 4 });
      job.spans.forEach((span, at) => {
        bars[at] ??= bar(name);
        bars[at].show(span, span.to_s ?? now_s, base, most, x);
      });
      bars.length = job.spans.length;
      ordered(spans, bars.map(({ element }) => element));
    },
  };
}

function bar(name) {
  let lines = [];
  let told = "";
  const element = tipped(s("rect", { class: "span", rx: 2, tabindex: 0, role: "img" }), () => lines);
  return {
    element,
    show(span, end_s, base, most, x) {
      const tall = Math.max(5, (span.gpus / most) * (ROW - 6));
      mark(element, { x: x(span.from_s), y: base - tall, width: Math.max(2, Math.round((x(end_s) - x(span.from_s) - 1) * 10) / 10), height: tall });
      const text = [span.from_s, end_s, span.gpus, span.words].join(" ");
      if (text === told) return;
      told = text;
      lines = [`${name}: ${count(span.gpus, "GPU")}`, span.words, `${duration(end_s - span.from_s)} from ${moment(span.from_s)}`];
      mark(element, { "aria-label": lines.join("; ") });
    },
  };
}
