// The jobs that return.

import { api, get } from "../api.js";
import { empty, h, put, table, to } from "../dom.js";
import { change, count, energy, known, UNKNOWN } from "../format.js";

export default async function (context) {
  const { root, signal } = context;
  context.title("Recurring jobs");
  const { series: names } = await get(api("series"), signal);
  put(root, h("h1", {}, "Recurring jobs"), h("p", { class: "lead-note" }, "Trainings that return: which batch size and setting cost least, learnt run by run."));
  if (!names.length) {
    put(root, empty("No job yet. This one learns with every night:", "joulewise recur run --job nightly --batch-sizes 8..256 --default 32 --target 'val_acc>=0.84' --max-epochs 10 \\\n    -- python train.py --batch-size {batch_size}"));
    return;
  }
  const jobs = [];
  for (const name of names) jobs.push(await get(api("series", name), signal)); // one by one: a crowd of them is not urgent
  put(
    root,
    table(
      "Recurring jobs",
      [
        { name: "Job", long: true, cell: ({ job, platform }) => [h("a", { href: to("series", job.name) }, job.name), h("span", { class: "under" }, platform ? `${platform.gpus} × ${platform.gpu_name}` : "never asked for")] },
        { name: "Target", cell: ({ job }) => job.target || UNKNOWN },
        { name: "Runs", number: true, cell: ({ summary }) => (summary ? count(summary.recurrences, "run") : "0 runs") },
        { name: "Best batch size", number: true, cell: ({ summary }) => summary?.best ?? UNKNOWN },
        { name: "Spent", number: true, cell: ({ summary }) => energy(summary?.energy_j) },
        { name: "Cost against default", number: true, cell: ({ summary }) => (known(summary?.saved) ? change(-summary.saved, known(summary.saved_error) ? 1.96 * summary.saved_error : null) : UNKNOWN) },
      ],
      jobs,
      { stacked: true },
    ),
  );
}
