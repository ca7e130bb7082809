// The plans of the server's folder.

import { api, get } from "../api.js";
import { empty, h, put, table, to } from "../dom.js";
import { known, UNKNOWN } from "../format.js";

export default async function (context) {
  const { root, signal } = context;
  context.title("Plans");
  const number = (value) => (known(value) ? String(value) : UNKNOWN);
  const nothing = empty("No plan in the server's folder. A plan that is written there appears here:", "joulewise plan solve profile.csv --schedule 1f1b --stages 8 --microbatches 96 --blocking-w 84 -o plans/mine.json");
  const list = table(
    "Plans",
    [
      { name: "Plan", long: true, cell: (plan) => [plan.trouble ? plan.name : h("a", { href: to("plans", plan.name) }, plan.name), h("span", { class: "under" }, plan.trouble ?? plan.headline)] },
      { name: "Schedule", cell: (plan) => plan.schedule ?? UNKNOWN },
      { name: "Stages", number: true, cell: (plan) => number(plan.stages) },
      { name: "Microbatches", number: true, cell: (plan) => number(plan.microbatches) },
      { name: "GPUs", number: true, cell: (plan) => number(plan.gpus) },
      { name: "Points", number: true, cell: (plan) => number(plan.points) },
    ],
    [],
    { stacked: true, key: (plan) => plan.name },
  );
  const show = async () => {
    const { plans } = await get(api("plans"), signal);
    nothing.hidden = plans.length > 0;
    list.hidden = !nothing.hidden;
    list.renew(plans);
  };
  put(root, h("h1", {}, "Plans"), h("p", { class: "lead-note" }, "The clocks of one training iteration of a pipeline: less energy at the same speed."), nothing, list);
  await show();
  context.again(show); // nobody tells of a file that was written
}
