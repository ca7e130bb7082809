// What a newcomer sees: a store without any run, and the few commands that fill it.

import { h, typed } from "../dom.js";
import { power } from "../format.js";

const STEPS = [
  ["See what this machine allows", "Which GPUs can be read, which can be set, and what to do about each “no”.", "joulewise doctor"],
  ["Measure a training as it is", "Joules with error bars. No root, and no change to the script.", "joulewise run -- python train.py"],
  ["Let it save, and prove it", "At most 2 % slower unless you say otherwise. Setting clocks needs root, or the daemon; without either, --dry-run says what it would set.", "joulewise run --tune -- python train.py"],
];
const VIRTUAL = ["No GPU at hand?", "A virtual one behaves like an H200; this takes a minute, in the folder of joulewise.", "joulewise run --tune --gpu sim:h200 --speed 20 -- python examples/train_virtual.py --workload recommender --step-seconds 0.15 --steps 2700"];

/** `overview` as the API has it. */
export function welcome(overview) {
  const now = overview.gpus ? `This server reads ${overview.gpus === 1 ? "one GPU" : `${overview.gpus} GPUs`}, ${power(overview.power_w)} now.` : "This server reads no GPU of its own; runs of other machines appear here if they share its store.";
  return [
    h("h1", {}, "Nothing was measured yet"),
    h("p", { class: "lead-note" }, "What is spent, what is saved and why each decision was taken will stand here as soon as the first run begins. Nothing needs to be reloaded. ", now),
    h("ol", { class: "steps" }, STEPS.map(step)),
    h("div", { class: "steps" }, step(VIRTUAL, "div")),
    h("p", { class: "small" }, "Runs and this server must use the same store: set ", h("code", {}, "JOULEWISE_DATABASE"), " for both, or for neither. More: ", h("a", { href: "/docs" }, "the API"), ", and ", h("code", {}, "joulewise --help"), "."),
  ];
}

function step([title, words, command], name) {
  return h(typeof name === "string" ? name : "li", { class: "step" }, h("h2", {}, title), h("p", {}, words), typed(command, title.toLowerCase()));
}
