// What a saving may be called: the three cases that the server's own words (`report/claim.py`) tell apart.

import { known } from "./format.js";

/** "saved", "lost" (more was used), "open" (it cannot be told from nothing), or "none": nothing is claimed. */
export function savingOf({ saved_j, saved_half_j }) {
  if (!known(saved_j)) return "none";
  if (Math.abs(saved_j) <= (saved_half_j ?? 0)) return "open";
  return saved_j > 0 ? "saved" : "lost";
}
