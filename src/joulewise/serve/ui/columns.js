// Columns of equal length, the first of them times, as charts have them.

/**
 * `newer` in place of what the columns have between its first time and its last. What lies more than `gap_s` before it
 * is parted from it by a point of which nothing is known: nobody looked meanwhile.
 */
export function spliced(columns, newer, gap_s = Infinity) {
  if (!newer[0].length) return columns;
  const [times] = columns;
  const before = times.findLastIndex((at_s) => at_s < newer[0][0]) + 1;
  const after = times.findIndex((at_s) => at_s > newer[0].at(-1));
  const parted = before > 0 && newer[0][0] - times[before - 1] > gap_s;
  return columns.map((values, at) => [
    ...values.slice(0, before),
    ...(parted ? [at ? null : times[before - 1] + 1] : []),
    ...newer[at],
    ...(after < 0 ? [] : values.slice(after)),
  ]);
}
