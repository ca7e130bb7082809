// One plan: its frontier, a slider over the deadline, and the pipeline at the point that was chosen.

import { api, get, query } from "../api.js";
import { h, key, part, put, say, tile, to } from "../dom.js";
import { change, duration, energy, known } from "../format.js";
import { pipeline } from "../pipeline.js";
import { scatter } from "../scatter.js";

export default async function (context) {
  const { root, signal, of: name } = context;
  context.title(name);
  const plan = await get(api("plans", name), signal);
  const points = plan.frontier;
  const usual = plan.unset ?? plan.fastest;
  const time = tile("An iteration", "…", "", "lead");
  const joules = tile("Energy");
  const saved = tile("Against nothing set", "…", "", "good");
  const note = h("output", { for: "deadline", class: "small" });
  const slider = h("input", { type: "range", id: "deadline", min: 0, max: points.length - 1, step: 1, value: 0 });
  const picture = pipeline(context, { low_mhz: plan.low_mhz, high_mhz: plan.high_mhz });
  const trouble = h("p", { class: "troubles", role: "status", hidden: true });
  const curve = scatter("The plan's frontier: time and energy of an iteration", {
    line: true,
    points: points.map((point) => ({ x: point.time_s, y: point.energy_j, lines: [point.words, `${duration(point.time_s)}, ${energy(point.energy_j)}`] })).concat(known(plan.unset?.energy_j) ? [{ x: plan.unset.time_s, y: plan.unset.energy_j, kind: "default", lines: ["nothing set", `${duration(plan.unset.time_s)}, ${energy(plan.unset.energy_j)}`] }] : []),
    axes: { x: { name: "time of an iteration", show: duration }, y: { name: "energy, all GPUs", show: (value) => energy(value, null, 3) } },
    onPick: (point) => choose(nearest(points, point.x)),
  });
  put(
    root,
    h("p", { class: "crumbs" }, h("a", { href: to("plans") }, "Plans"), " /"),
    h("h1", {}, name),
    h("p", { class: "lead-note" }, plan.headline || ""),
    h("p", { class: "small" }, typeof plan.about === "string" ? plan.about : ""),
    h("dl", { class: "tiles" }, time, joules, saved),
    h("div", { class: "deadline" }, h("label", { for: "deadline" }, "Deadline of an iteration"), slider, note),
    part("The pipeline", trouble, picture.element),
    part("Its frontier", curve, key(["round chosen", "the plan's points"], ["round default", "nothing set"])),
  );

  let asked = 0;
  let timer = 0;
  /** Say what the point is; the pipeline at it is drawn by `draw`. */
  function tell(at) {
    const point = points[at];
    slider.value = at;
    slider.setAttribute("aria-valuetext", `${duration(point.time_s)}, ${energy(point.energy_j)}`);
    time.say(duration(point.time_s), change(point.time_s / usual.time_s - 1) === "0.0 %" ? "as fast as with nothing set" : `${change(point.time_s / usual.time_s - 1)} against nothing set`);
    joules.say(energy(point.energy_j), "of all GPUs, an iteration");
    saved.say(change(point.energy_j / usual.energy_j - 1), "energy of an iteration");
    say(note, `${duration(point.time_s)} · point ${at + 1} of ${points.length}`);
    curve.choose(point.time_s);
  }
  async function draw(at) {
    const own = ++asked;
    // A deadline a hair later, so that rounding does not choose the point before.
    const path = query(api("plans", name, "at"), { time_s: points[at].time_s * (1 + 1e-9) });
    const [found, error] = await get(path, signal).then((said) => [said, null], (fault) => [null, fault]);
    if (signal.aborted || own !== asked) return;
    // The pipeline of another point would belie the numbers above it.
    trouble.hidden = found !== null;
    picture.element.hidden = found === null;
    if (found) picture.update(found);
    else say(trouble, `The pipeline at this point cannot be had: ${error.message}`);
  }
  function choose(at) {
    tell(at);
    clearTimeout(timer);
    timer = setTimeout(() => draw(at), 60); // a slider that is dragged asks for the last place only
  }
  context.undo(() => clearTimeout(timer));
  slider.addEventListener("input", () => choose(Number(slider.value)));
  const start = plan.as_fast ? nearest(points, plan.as_fast.time_s) : 0;
  tell(start);
  await draw(start);
}

function nearest(points, time_s) {
  const far = points.map((point) => Math.abs(point.time_s - time_s));
  return far.indexOf(Math.min(...far));
}
