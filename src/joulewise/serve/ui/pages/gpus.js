// The GPUs that this server reads, second by second. Reading only: nothing here sets anything.

import { get } from "../api.js";
import { chart } from "../chart.js";
import { spliced } from "../columns.js";
import { chip, empty, fill, h, put, say } from "../dom.js";
import { bytes, clock, count, energy, known, percent, power, share, UNKNOWN } from "../format.js";

const KEPT_S = 600;
const GAP_S = 6; // so long without a reading is a gap in the curve, not a straight line

export default async function (context) {
  const { root, signal } = context;
  context.title("GPUs");
  const said = await get("/api/gpus", signal);
  const note = h("p", { class: "lead-note" });
  const cards = h("div", { class: "cards" });
  put(root, h("h1", {}, "GPUs"), note, cards);
  if (!said.gpus.length) {
    const why = said.why ? ` (${said.why})` : "";
    fill(cards, empty(`This server reads no GPU${why}. On virtual ones it works everywhere:`, "joulewise serve --gpu 'sim:h200*2'"));
  }
  const shown = new Map();
  const show = (news) => {
    for (const gpu of news.gpus) {
      if (!shown.has(gpu.uuid)) {
        if (!shown.size) fill(cards);
        shown.set(gpu.uuid, card(context, gpu));
        cards.append(shown.get(gpu.uuid).element);
      }
      shown.get(gpu.uuid).update(gpu, news.time_s);
    }
    // What the server no longer reads would only show what was.
    for (const [uuid, old] of news.gpus.length ? shown : []) {
      if (news.gpus.some((gpu) => gpu.uuid === uuid)) continue;
      old.element.remove();
      shown.delete(uuid);
    }
    const watts = news.gpus.map((gpu) => gpu.power_w).filter(known);
    const total = watts.length ? watts.reduce((a, b) => a + b, 0) : null;
    if (news.gpus.length) say(note, `${count(news.gpus.length, "GPU")}, ${power(total)} in all. Energy counts from when this server began to read them.`);
  };
  show(said);
  context.on("gpus", show);
  // While nobody listened the server has read on: what it remembers is the curve without a gap.
  context.on("missed", async () => {
    const missed = await get("/api/gpus", signal);
    for (const gpu of missed.gpus) shown.get(gpu.uuid)?.recall(gpu.history);
    show(missed);
  });
}

function card(context, gpu) {
  let data = remembered(gpu.history);
  const curve = chart(context, {
    label: `Power and SM clock of ${gpu.name} over the last ten minutes`,
    height: 170,
    scales: { w: { unit: "W" }, mhz: { unit: "MHz" } },
    curves: [
      { name: "power", colour: "accent", scale: "w", show: power },
      { name: "SM clock", colour: "second", scale: "mhz", show: clock },
    ],
  });
  const figures = Object.fromEntries(["Power", "SM clock", "Memory clock", "Temperature", "Busy", "Memory", "Energy"].map((name) => [name, h("dd", {})]));
  const meter = h("meter", { min: 0, max: 1, value: 0, "aria-label": "Power of its limit" });
  const words = h("p", { class: "chips" });
  const element = h(
    "article",
    { class: "card" },
    h("header", {}, h("h2", {}, `${gpu.index}  ${gpu.name}`), gpu.virtual && chip("virtual"), h("span", { class: "under" }, [gpu.node, gpu.uuid].filter(Boolean).join(" · "))),
    meter,
    h("dl", { class: "figures" }, Object.entries(figures).map(([name, value]) => h("div", {}, h("dt", {}, name), value))),
    curve.element,
    words,
  );
  curve.update(data);
  // A node may have many: only those on the screen are drawn again each second.
  let onScreen = true;
  const watcher = new IntersectionObserver((entries) => {
    onScreen = entries.at(-1).isIntersecting;
    if (onScreen) curve.update(data);
  });
  watcher.observe(element);
  context.undo(() => watcher.disconnect());
  let last = data[0].at(-1) ?? -Infinity;
  return {
    element,
    /** Take in what the server remembers; one that was started anew remembers less than we do. */
    recall(history) {
      data = spliced(data, remembered(history), GAP_S);
      last = data[0].at(-1) ?? -Infinity;
      if (onScreen) curve.update(data);
    },
    update(now, time_s) {
      meter.hidden = !known(now.power_w) || !known(now.limit_w);
      if (!meter.hidden) meter.value = Math.min(1, now.power_w / now.limit_w);
      say(figures.Power, share(now.power_w, now.limit_w, power));
      say(figures["SM clock"], share(now.sm_mhz, now.sm_max_mhz, clock));
      say(figures["Memory clock"], clock(now.memory_mhz));
      say(figures.Temperature, known(now.temperature_c) ? `${Math.round(now.temperature_c)} °C` : UNKNOWN);
      say(figures.Busy, percent(now.utilization));
      say(figures.Memory, share(now.memory_used_bytes, now.memory_bytes, bytes));
      say(figures.Energy, energy(now.energy_j));
      const said = [
        ...(now.throttle ?? []).map((reason) => ["busy", `slowed: ${reason}`]),
        now.reason && ["bad", now.reason],
        now.held_by && ["busy", `held by ${now.held_by}`],
        ...(now.processes ?? []).map((process) => ["", [process.name, process.pid].filter(Boolean).join(" ")]),
      ].filter(Boolean);
      const key = JSON.stringify(said);
      if (words.dataset.said !== key) {
        words.dataset.said = key;
        fill(words, said.map(([kind, text]) => [chip(text, kind), " "]));
      }
      if (!(time_s > last)) return;
      last = time_s;
      data = spliced(data, [[time_s], [now.power_w], [now.sm_mhz]], GAP_S);
      while (data[0][0] < time_s - KEPT_S) data.forEach((values) => values.shift());
      if (onScreen) curve.update(data);
    },
  };
}

function remembered(history) {
  return [history?.time_s ?? [], history?.power_w ?? [], history?.sm_mhz ?? []].map((values) => [...values]);
}
