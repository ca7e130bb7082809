// What is drawn now, what was spent and saved in all, and the latest runs.

import { get } from "../api.js";
import { sparkline } from "../chart.js";
import { spliced } from "../columns.js";
import { fill, h, part, put, say, tile, troubled, typed } from "../dom.js";
import { carbon, count, duration, energy, kilowattHours, known, money, power, UNKNOWN } from "../format.js";
import { nextSteps } from "../next.js";
import { redrawn } from "../redraw.js";
import { LISTED_S, runsTable } from "../runs_table.js";
import { savingOf } from "../saving.js";
import { welcome } from "./welcome.js";

const KEPT_S = 300; // of the small curve
const GAP_S = 6; // so long without a reading is a gap in it
const SAVED = {
  saved: "proven, 95 % interval, against default",
  lost: "more was used than by default, 95 % interval",
  open: "not told from nothing yet, 95 % interval",
  none: "Nothing is proven yet: joulewise run --tune",
};

export default async function (context) {
  const { root, signal } = context;
  context.title("Overview");
  const [first, gpus] = await Promise.all([get("/api/overview", signal), get("/api/gpus", signal).catch(() => ({ gpus: [] }))]);

  const now = tile("Drawn now", UNKNOWN, "", "lead");
  const spent = tile("Spent in runs");
  const saved = tile("Saved");
  const worth = tile("Worth");
  const since = h("span", {});
  const curve = sparkline("Power of all GPUs over the last five minutes");
  const lately = h("dd", { class: "curve" }, curve, h("span", { class: "ends", "aria-hidden": "true" }, since, h("span", {}, "now")));
  put(now, lately);
  const troubles = h("div", {});
  const showTroubles = redrawn(context, troubles, troubled);
  const headline = h("h1", {});
  const note = h("p", { class: "lead-note" });
  const steps = h("div", {});
  const suggest = redrawn(context, steps, (todo) => (todo.length ? nextPart(todo) : null));
  const recent = runsTable("Latest runs", []);
  const all = h("a", { href: "#/runs" });
  const rest = h("p", {}, all);
  const filled = [headline, note, h("dl", { class: "tiles" }, now, spent, saved, worth), steps, part("Latest runs", recent, rest)];
  const body = h("div", {});
  put(root, troubles, body);

  let drawn = past(gpus.gpus);
  let cards = gpus.gpus; // as last heard, for what to do next
  const show = (said) => {
    showTroubles(said.troubles ?? []);
    if (!said.runs) {
      if (!body.querySelector(".steps")) fill(body, welcome(said));
      return;
    }
    if (!body.contains(headline)) fill(body, filled);
    say(headline, headlineOf(said));
    say(note, noteOf(said));
    suggest(nextSteps(said, cards));
    now.say(said.gpus ? power(said.power_w) : UNKNOWN, said.gpus ? count(said.gpus, "GPU") : "This server reads no GPU.");
    spent.say(said.energy_j > 0 ? energy(said.energy_j) : UNKNOWN, said.energy_j > 0 ? spentWords(said) : "No run was measured to its end yet.");
    saved.say(energy(said.saved_j, said.saved_half_j), SAVED[savingOf(said)]);
    saved.classList.toggle("good", savingOf(said) === "saved");
    worth.say(...worthOf(said));
    recent.renew(said.recent);
    rest.hidden = said.runs <= said.recent.length;
    say(all, `All ${count(said.runs, "run")}`);
  };
  show(first);
  const draw = () => {
    const [times, values] = drawn;
    lately.hidden = !values.some(known);
    curve.draw(times, values);
    say(since, times.length > 1 ? `${duration(Math.round(times.at(-1) - times[0]))} ago` : "");
  };
  context.ready(draw);
  addEventListener("joulewise-theme", draw);
  context.undo(() => removeEventListener("joulewise-theme", draw));

  context.again(async () => show(await get("/api/overview", signal)), { on: "run", late: LISTED_S });
  // While nobody listened the server has read on: what it remembers is the curve without a gap.
  context.on("missed", async () => {
    drawn = spliced(drawn, past((await get("/api/gpus", signal)).gpus), GAP_S);
    draw();
  });
  context.on("gpus", (said) => {
    cards = said.gpus;
    const total = sum(said.gpus);
    now.say(said.gpus.length ? power(total) : UNKNOWN, said.gpus.length ? count(said.gpus.length, "GPU") : "This server reads no GPU.");
    drawn = spliced(drawn, [[said.time_s], [total]], GAP_S);
    while (drawn[0][0] < said.time_s - KEPT_S) drawn.forEach((list) => list.shift());
    draw();
  });
}

/** The first thing that is read: what was saved, else what was spent. */
function headlineOf(said) {
  const where = said.simulated ? " on virtual GPUs" : "";
  const spent = said.energy_j > 0 ? `${energy(said.energy_j)} spent` : "";
  const saving = savingOf(said);
  if (saving === "none") return spent ? `${spent}${where}, no saving proven yet` : `${count(said.runs, "run")}${where}, none measured to its end yet`;
  const words = {
    saved: `${energy(said.saved_j, said.saved_half_j)} saved`,
    lost: `${energy(-said.saved_j, said.saved_half_j)} more used than by default`,
    open: "No saving that can be told from nothing",
  };
  return [words[saving], spent].filter(Boolean).join(", ") + where;
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

/** The same, over what the server still remembers: [times, watts]. */
function past(gpus) {
  const longest = gpus.reduce((most, gpu) => ((gpu.history?.time_s.length ?? 0) > most.length ? gpu.history.time_s : most), []);
  const from = longest.findIndex((time_s) => time_s >= longest.at(-1) - KEPT_S);
  const times = from < 0 ? [] : longest.slice(from);
  // They are read together: the last of one belongs to the last of all.
  const values = times.map((_, at) => sum(gpus.map((gpu) => ({ power_w: gpu.history?.power_w.at(at - times.length) }))));
  return [times, values];
}

function worthOf(said) {
  if (savingOf(said) !== "saved") return [UNKNOWN, "Once something is proven to be saved."];
  const parts = [];
  if (known(said.saved_money)) parts.push([money(said.saved_money, said.currency), `at ${money(said.kwh_price, said.currency)} a kWh`]);
  if (known(said.saved_carbon_g)) parts.push([carbon(said.saved_carbon_g), `at ${said.carbon_g_per_kwh} g a kWh${said.carbon_source ? `, ${said.carbon_source}` : ""}`]);
  if (!parts.length) return [UNKNOWN, "Say what a kWh costs: joulewise serve --kwh-price 0.30"];
  const [first, second] = parts;
  return [first[0], [first[1], second && `${second[0]} ${second[1]}`].filter(Boolean).join("; ")];
}
