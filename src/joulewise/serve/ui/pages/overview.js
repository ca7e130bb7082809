// What is drawn now, what was spent and saved in all, and the latest runs.

import { get } from "../api.js";
import { sparkline } from "../chart.js";
import { empty, fill, h, part, put, tile } from "../dom.js";
import { carbon, count, energy, kilowattHours, known, money, power, UNKNOWN } from "../format.js";
import { runsTable } from "../runs_table.js";

const KEPT = 300; // seconds of the small curve

export default async function (context) {
  const { root, signal } = context;
  context.title("Overview");
  const [first, gpus] = await Promise.all([get("/api/overview", signal), get("/api/gpus", signal).catch(() => ({ gpus: [] }))]);

  const now = tile("Drawn now", UNKNOWN, "", "lead");
  const spent = tile("Spent in runs");
  const saved = tile("Saved", UNKNOWN, "", "good");
  const worth = tile("Worth");
  const curve = sparkline("Power of all GPUs over the last five minutes");
  put(now, h("dd", { class: "curve" }, curve));
  const troubles = h("div", {});
  const recent = h("div", {});
  put(
    root,
    h("h1", { class: "unseen" }, "Overview"),
    troubles,
    h("dl", { class: "tiles four" }, now, spent, saved, worth),
    part("Latest runs", recent),
  );

  const drawn = past(gpus.gpus);
  const show = (said) => {
    now.say(said.gpus ? power(said.power_w) : UNKNOWN, said.gpus ? count(said.gpus, "GPU") : "This server reads no GPU.");
    spent.say(energy(said.energy_j), spentWords(said));
    saved.say(energy(said.saved_j, said.saved_half_j), known(said.saved_j) ? "proven, 95 % interval, against default" : "Nothing is proven yet: joulewise run --tune");
    worth.say(...worthOf(said));
    fill(troubles, said.troubles?.length ? h("ul", { class: "troubles", "aria-label": "Troubles" }, said.troubles.map((each) => h("li", {}, each))) : null);
    fill(
      recent,
      said.recent.length
        ? [runsTable("Latest runs", said.recent), said.runs > said.recent.length && h("p", {}, h("a", { href: "#/runs" }, `All ${count(said.runs, "run")}`))]
        : empty("No run yet. This one tunes a training and proves what it saved:", "joulewise run --tune -- python train.py"),
    );
  };
  show(first);
  const draw = () => curve.draw(drawn);
  context.ready(draw);
  addEventListener("joulewise-theme", draw);
  context.undo(() => removeEventListener("joulewise-theme", draw));

  const again = async () => show(await get("/api/overview", signal));
  context.on("run", again, { calm: 2 });
  context.on("missed", again, { calm: 2 });
  context.every(30, again);
  context.on("gpus", (said) => {
    const total = sum(said.gpus);
    now.say(said.gpus.length ? power(total) : UNKNOWN, said.gpus.length ? count(said.gpus.length, "GPU") : "This server reads no GPU.");
    drawn.push(total);
    if (drawn.length > KEPT) drawn.shift();
    draw();
  });
}

function spentWords(said) {
  const counted = said.simulated ? said.runs : said.runs - (said.virtual ?? 0);
  const parts = [`${kilowattHours(said.energy_j)} in ${count(counted, "run")}`];
  if (said.simulated && said.runs) parts.push("all on virtual GPUs: nothing was really spent");
  else if (said.virtual) parts.push(`${count(said.virtual, "run")} on virtual GPUs left out`);
  if (said.running) parts.push(`${said.running} running`);
  return parts.join("; ");
}

/** Watts of all together; null where none tells. */
function sum(gpus) {
  const values = gpus.map((gpu) => gpu.power_w).filter(known);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
}

/** The same, over what the server still remembers. */
function past(gpus) {
  const length = Math.max(0, ...gpus.map((gpu) => gpu.history?.power_w.length ?? 0));
  const all = Array.from({ length }, (_, back) => sum(gpus.map((gpu) => ({ power_w: gpu.history?.power_w.at(-1 - back) }))));
  return all.reverse().slice(-KEPT);
}

function worthOf(said) {
  const parts = [];
  if (known(said.saved_money)) parts.push([money(said.saved_money, said.currency), `at ${money(said.kwh_price, said.currency)} a kWh`]);
  if (known(said.saved_carbon_g)) parts.push([carbon(said.saved_carbon_g), `at ${said.carbon_g_per_kwh} g a kWh${said.carbon_source ? `, ${said.carbon_source}` : ""}`]);
  if (!parts.length) return [UNKNOWN, known(said.saved_j) ? "Say what a kWh costs: joulewise serve --kwh-price 0.30" : "Once something is saved."];
  const [first, second] = parts;
  return [first[0], [first[1], second && `${second[0]} ${second[1]}`].filter(Boolean).join("; ")];
}
