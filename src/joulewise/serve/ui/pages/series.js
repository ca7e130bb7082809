// The jobs that return.

import { api, get } from "../api.js";
import { empty, h, put, table, to } from "../dom.js";
import { change, count, energy, known, UNKNOWN } from "../format.js";

export default async function (context) {
  const { root, signal } = context;
  context.title("Recurring jobs");
  const nothing = empty("No job yet. This one learns with every night:", "joulewise recur run --job nightly --batch-sizes 8..256 --default 32 --target 'val_acc>=0.84' --max-epochs 10 \\\n    -- python train.py --batch-size {batch_size}");
  const list = table(
    "Recurring jobs",
    [
      { name: "Job", long: true, cell: ({ name, found, trouble }) => [h("a", { href: to("series", name) }, name), h("span", { class: "under" }, trouble ?? platformOf(found))] },
      { name: "Target", cell: ({ found }) => found?.job.target || UNKNOWN },
      { name: "Runs", number: true, cell: ({ found }) => (found ? count(found.summary?.recurrences ?? 0, "run") : UNKNOWN) },
      { name: "Best batch size", number: true, cell: ({ found }) => found?.summary?.best ?? UNKNOWN },
      { name: "Spent", number: true, cell: ({ found }) => energy(found?.summary?.energy_j) },
      { name: "Cost against default", number: true, cell: ({ found }) => costOf(found?.summary) },
    ],
    [],
    { stacked: true, key: ({ name }) => name },
  );
  put(root, h("h1", {}, "Recurring jobs"), h("p", { class: "lead-note" }, "Trainings that return: which batch size and setting cost least, learnt run by run."), nothing, list);

  let rows = [];
  const names = async () => {
    const { series } = await get(api("series"), signal);
    rows = series.map((name) => rows.find((row) => row.name === name) ?? { name });
    nothing.hidden = rows.length > 0;
    list.hidden = !nothing.hidden;
    list.renew(rows);
  };
  /** One by one, a crowd of them is not urgent; each is shown as it comes, and one that cannot be read says why. */
  const each = async () => {
    for (const { name } of [...rows]) {
      const row = await get(api("series", name), signal).then((found) => ({ name, found }), (error) => ({ name, trouble: error.message }));
      if (signal.aborted) return;
      rows = rows.map((old) => (old.name === name ? row : old));
      list.renew(rows);
    }
  };
  await names();
  const first = each(); // the names are worth a look already
  context.again(() => first.then(names).then(each), { on: "run", calm: 5 });
}

function platformOf(found) {
  if (!found) return "…";
  return found.platform ? `${found.platform.gpus} × ${found.platform.gpu_name}` : "never asked for";
}

function costOf(summary) {
  if (!known(summary?.saved)) return UNKNOWN;
  return change(-summary.saved, known(summary.saved_error) ? 1.96 * summary.saved_error : null);
}
