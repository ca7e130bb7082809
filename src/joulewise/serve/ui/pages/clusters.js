// The clusters whose journals are in the store. Where there is one it is shown at once.

import { api, get } from "../api.js";
import { empty, fill, h, put, table, to } from "../dom.js";
import { energy, known, power } from "../format.js";
import drawCluster from "./cluster.js";

export default async function (context) {
  const { root, signal } = context;
  context.title("Cluster");
  const nothing = empty("No cluster has been scheduled with this store. A simulated one, to try it:", "joulewise cluster up --engine sim --power-cap 14kW");
  const list = table(
    "Clusters",
    [
      { name: "Cluster", long: true, cell: (each) => h("a", { href: to("clusters", each.name) }, each.name) },
      { name: "Power", number: true, cell: (each) => power(each.power_w) },
      { name: "Cap", number: true, cell: (each) => (known(each.cap_w) ? power(each.cap_w) : "none") },
      { name: "Energy", number: true, cell: (each) => energy(each.energy_j) },
      { name: "Running", number: true, cell: (each) => each.running },
      { name: "Waiting", number: true, cell: (each) => each.waiting },
      { name: "Ended", number: true, cell: (each) => each.ended },
    ],
    [],
    { stacked: true, key: (each) => each.name },
  );
  let only = false; // there was one, and this is its page now
  const show = async () => {
    if (only) return;
    const { clusters } = await get(api("clusters"), signal);
    if (clusters.length === 1) {
      const page = h("div", {});
      await drawCluster({ ...context, root: page, of: clusters[0].name });
      fill(root, page);
      only = true;
      return;
    }
    nothing.hidden = clusters.length > 0;
    list.hidden = !nothing.hidden;
    list.renew(clusters);
  };
  put(root, h("h1", {}, "Clusters"), nothing, list);
  await show();
  context.again(show, { on: "cluster" });
}
