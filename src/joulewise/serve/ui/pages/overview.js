// What is drawn now, what was spent and saved in all, and the latest runs.

import { get } from "../api.js";
import { sparkline } from "../chart.js";
import { fill, h, part, put, say, tile, typed } from "../dom.js";
import { carbon, count, duration, energy, kilowattHours, known, money, power, UNKNOWN } from "../format.js";
import { nextSteps } from "../next.js";
import { runsTable } from "../runs_table.js";
import { welcome } from "./welcome.js";

const KEPT_S = 300; // of the small curve

export default async function (context) {
  const { root, signal } = context;
  context.title("Overview");
  const [first, gpus] = await Promise.all([get("/api/overview", signal), get("/api/gpus", signal).catch(() => ({ gpus: [] }))]);

  const now = tile("Drawn now", UNKNOWN, "", "lead");
  const spent = tile("Spent in runs");
  const saved = tile("Saved", UNKNOWN, "", "good");
  const worth = tile("Worth");
  const since = h("span", {});
  const curve = sparkline("Power of all GPUs over the last five minutes");
  const lately = h("dd", { class: "curve" }, curve, h("span", { class: "ends", "aria-hidden": "true" }, since, h("span", {}, "now")));
  put(now, lately);
  const troubles = h("div", {});
  const headline = h("h1", {});
  const note = h("p", { class: "lead-note" });
  const steps = h("div", {});
  const recent = h("div", {});
  const filled = [headline, note, h("dl", { class: "tiles" }, now, spent, saved, worth), steps, part("Latest runs", recent)];
  const body = h("div", {});
  put(root, troubles, body);

  const drawn = past(gpus.gpus);
  let cards = gpus.gpus; // as last heard, for what to do next
  let suggested = "";
  const show = (said) => {
    fill(troubles, said.troubles?.length ? h("ul", { class: "troubles", "aria-label": "Troubles" }, said.troubles.map((each) => h("li", {}, each))) : null);
    if (!said.runs) {
      if (!body.querySelector(".steps")) fill(body, welcome(said));
      return;
    }
    if (!body.contains(headline)) fill(body, filled);
    say(headline, headlineOf(said));
    say(note, noteOf(said));
    const todo = nextSteps(said, cards);
    // Somebody may be about to copy one: only other steps are drawn again.
    if (JSON.stringify(todo) !== suggested) fill(steps, todo.length ? nextPart(todo) : null);
    suggested = JSON.stringify(todo);
    now.say(said.gpus ? power(said.power_w) : UNKNOWN, said.gpus ? count(said.gpus, "GPU") : "This server reads no GPU.");
    spent.say(energy(said.energy_j), spentWords(said));
    saved.say(energy(said.saved_j, said.saved_half_j), known(said.saved_j) ? "proven, 95 % interval, against default" : "Nothing is proven yet: joulewise run --tune");
    worth.say(...worthOf(said));
    // Whoever is reading a row with the keyboard must not lose it.
    if (recent.contains(document.activeElement)) return;
    fill(recent, runsTable("Latest runs", said.recent), said.runs > said.recent.length && h("p", {}, h("a", { href: "#/runs" }, `All ${count(said.runs, "run")}`)));
  };
  show(first);
  const draw = () => {
    lately.hidden = !drawn.values.some(known);
    curve.draw(drawn.times, drawn.values);
    say(since, drawn.times.length > 1 ? `${duration(Math.round(drawn.times.at(-1) - drawn.times[0]))} ago` : "");
  };
  context.ready(draw);
  addEventListener("joulewise-theme", draw);
  context.undo(() => removeEventListener("joulewise-theme", draw));

  const again = async () => show(await get("/api/overview", signal));
  context.on("run", again, { calm: 2 });
  context.on("missed", again, { calm: 2 });
  context.every(30, again);
  context.on("gpus", (said) => {
    cards = said.gpus;
    const total = sum(said.gpus);
    now.say(said.gpus.length ? power(total) : UNKNOWN, said.gpus.length ? count(said.gpus.length, "GPU") : "This server reads no GPU.");
    drawn.times.push(said.time_s);
    drawn.values.push(total);
    while (drawn.times[0] < said.time_s - KEPT_S) [drawn.times, drawn.values].forEach((list) => list.shift());
    draw();
  });
}

/** The first thing that is read: what was saved, else what was spent. */
function headlineOf(said) {
  const where = said.simulated ? " on virtual GPUs" : "";
  const spent = said.energy_j > 0 ? `${energy(said.energy_j)} spent` : "";
  if (!known(said.saved_j)) return spent ? `${spent}${where}, no saving proven yet` : `${count(said.runs, "run")}${where}, none measured to its end yet`;
  const certain = !known(said.saved_half_j) || said.saved_j > said.saved_half_j;
  const saved = certain ? `${energy(said.saved_j, said.saved_half_j)} saved` : "No saving that can be told from nothing";
  return [saved, spent].filter(Boolean).join(", ") + where;
}

function noteOf(said) {
  const runs = count(said.runs, "run");
  return said.running ? `${runs}, ${said.running} of them under way.` : `${runs}, none under way.`;
}

function nextPart(todo) {
  const steps = todo.map(({ words, command, href, link }) => h("li", { class: "step" }, h("p", {}, words, " ", href && h("a", { href }, link)), command && typed(command)));
  return part("What to do next", h("ul", { class: "steps card" }, steps));
}

function spentWords(said) {
  const counted = said.simulated ? said.runs : said.runs - (said.virtual ?? 0);
  const parts = [`${kilowattHours(said.energy_j)} in ${count(counted, "run")}`];
  if (said.simulated && said.runs) parts.push("all on virtual GPUs: nothing was really spent");
  else if (said.virtual) parts.push(`${count(said.virtual, "run")} on virtual GPUs left out`);
  return parts.join("; ");
}

/** Watts of all together; null where none tells. */
function sum(gpus) {
  const values = gpus.map((gpu) => gpu.power_w).filter(known);
  return values.length ? values.reduce((a, b) => a + b, 0) : null;
}

/** The same, over what the server still remembers. */
function past(gpus) {
  const longest = gpus.reduce((most, gpu) => ((gpu.history?.time_s.length ?? 0) > most.length ? gpu.history.time_s : most), []);
  const from = longest.findIndex((time_s) => time_s >= longest.at(-1) - KEPT_S);
  const times = from < 0 ? [] : longest.slice(from);
  // They are read together: the last of one belongs to the last of all.
  const values = times.map((_, at) => sum(gpus.map((gpu) => ({ power_w: gpu.history?.power_w.at(at - times.length) }))));
  return { times, values };
}

function worthOf(said) {
  const parts = [];
  if (known(said.saved_money)) parts.push([money(said.saved_money, said.currency), `at ${money(said.kwh_price, said.currency)} a kWh`]);
  if (known(said.saved_carbon_g)) parts.push([carbon(said.saved_carbon_g), `at ${said.carbon_g_per_kwh} g a kWh${said.carbon_source ? `, ${said.carbon_source}` : ""}`]);
  if (!parts.length) return [UNKNOWN, known(said.saved_j) ? "Say what a kWh costs: joulewise serve --kwh-price 0.30" : "Once something is saved."];
  const [first, second] = parts;
  return [first[0], [first[1], second && `${second[0]} ${second[1]}`].filter(Boolean).join("; ")];
}
