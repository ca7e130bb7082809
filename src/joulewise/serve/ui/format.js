// Numbers as people read them, with units. What is unknown is a dash, never 0 and never NaN.

export const UNKNOWN = "–";
const STEPS = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
  [1, ""],
];

// Made once: to make one for each number of a long table takes longer than all the rest of it.
const NUMBERS = Array.from({ length: 7 }, (_, decimals) => new Intl.NumberFormat("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals }));
const TIME = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric" });

/** Whether it is a number that can be shown. */
export function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

function grouped(value, decimals) {
  return NUMBERS[decimals].format(value).replace(/^-(?=[0.,]*$)/, "").replace("-", "−");
}

/** So many digits that count: 1234.5 -> "1,235", 0.01234 -> "0.0123". */
export function significant(value, digits = 3) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0";
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return grouped(value, Math.min(decimals, 6));
}

function prefixed(value, unit, digits, step = null) {
  const [factor, prefix] = step ?? STEPS.find(([size]) => Math.abs(value) >= size) ?? STEPS.at(-1);
  return `${significant(value / factor, digits)} ${prefix}${unit}`;
}

/** Joules, with what they are uncertain by in the same unit: "2.561 ± 0.031 kJ". */
export function energy(value, error = null, digits = 4) {
  if (!known(value)) return UNKNOWN;
  if (!known(error) || error <= 0) return prefixed(value, "J", digits);
  const scale = Math.max(Math.abs(value), error);
  const [factor, prefix] = STEPS.find(([size]) => scale >= size) ?? STEPS.at(-1);
  const wanted = Math.max(0, 1 - Math.floor(Math.log10(error / factor)));
  // Nobody reads more than five digits; an error below the last of them is rounded up to it.
  const most = Math.max(0, 4 - Math.floor(Math.log10(scale / factor)));
  const decimals = Math.min(6, wanted, most);
  const shown = wanted > most ? Math.ceil((error / factor) * 10 ** decimals) / 10 ** decimals : error / factor;
  return `${grouped(value / factor, decimals)} ± ${grouped(shown, decimals)} ${prefix}J`;
}

/** Joules once more, as the bill has them. */
export function kilowattHours(value) {
  return known(value) ? `${significant(value / 3.6e6, 3)} kWh` : UNKNOWN;
}

/** Watts. */
export function power(value) {
  if (!known(value)) return UNKNOWN;
  return Math.abs(value) >= 10_000 ? prefixed(value, "W", 4) : `${significant(value, Math.abs(value) < 10 ? 2 : 3)} W`;
}

/** Megahertz. */
export function clock(value) {
  return known(value) ? `${grouped(value, 0)} MHz` : UNKNOWN;
}

/** Seconds: "412 ms", "8.20 s", "3 min 20 s", "2 h 05 min", "3 d 4 h". */
export function duration(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 0) return `−${duration(-value)}`;
  if (value === 0) return "0 s";
  if (value < 1) return `${significant(value * 1000, 3)} ms`;
  if (value < 59.95) return `${significant(value, 3)} s`;
  const seconds = Math.round(value);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  const minutes = Math.round(value / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${two(minutes % 60)} min`;
  return `${Math.floor(minutes / 1440)} d ${Math.floor((minutes % 1440) / 60)} h`;
}

function two(value) {
  return String(value).padStart(2, "0");
}

/** A ratio as percent: 0.0123 -> "1.2 %". */
export function percent(value, digits = 2) {
  return known(value) ? `${significant(value * 100, digits)} %` : UNKNOWN;
}

/** A change against default with its half width: "−18.1 ± 0.9 %". */
export function change(value, half = null) {
  if (!known(value)) return UNKNOWN;
  const certain = !known(half) || half <= 0;
  const decimals = certain ? (Math.abs(value) < 0.1 ? 1 : 0) : half < 0.001 ? 2 : half < 0.1 ? 1 : 0;
  const shown = grouped(Math.abs(value * 100), decimals);
  const sign = !/[1-9]/.test(shown) ? "" : value > 0 ? "+" : "−";
  return certain ? `${sign}${shown} %` : `${sign}${shown} ± ${grouped(half * 100, decimals)} %`;
}

/** Money, in the currency that was said. */
export function money(value, currency) {
  if (!known(value)) return UNKNOWN;
  const small = Math.abs(value) < 0.01 && value !== 0;
  return `${small ? significant(value, 2) : grouped(value, 2)} ${currency ?? ""}`.trim();
}

/** Grams of carbon dioxide. */
export function carbon(value) {
  if (!known(value)) return UNKNOWN;
  return Math.abs(value) >= 1000 ? `${significant(value / 1000, 3)} kg CO₂e` : `${significant(value, 3)} g CO₂e`;
}

/** Bytes. */
export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const power2 = Math.min(4, Math.floor(Math.log2(Math.max(1, value)) / 10));
  return `${significant(value / 1024 ** power2, 3)} ${["B", "KiB", "MiB", "GiB", "TiB"][power2]}`;
}

/** When: "14:03:22" today, "12 Mar 14:03" otherwise. */
export function moment(time_s) {
  if (!known(time_s)) return UNKNOWN;
  const then = new Date(time_s * 1000);
  const time = TIME.format(then);
  return then.toDateString() === new Date().toDateString() ? time : `${DAY.format(then)} ${time.slice(0, 5)}`;
}

/** How long ago. */
export function ago(time_s, now_s = Date.now() / 1000) {
  if (!known(time_s)) return UNKNOWN;
  const since = now_s - time_s;
  if (since < 5) return "just now";
  if (since < 90) return `${Math.round(since)} s ago`;
  if (since < 5400) return `${Math.round(since / 60)} min ago`;
  if (since < 129600) return `${Math.round(since / 3600)} h ago`;
  return `${Math.round(since / 86400)} d ago`;
}

/** So much of so much, in one unit: "689 of 700 W". */
export function share(value, whole, show) {
  if (!known(value) || !known(whole)) return show(value);
  const [number, unit] = parted(show(value));
  return parted(show(whole))[1] === unit ? `${number} of ${show(whole)}` : `${show(value)} of ${show(whole)}`;
}

function parted(text) {
  const at = text.lastIndexOf(" ");
  return [text.slice(0, at), text.slice(at + 1)];
}

/** A command as one recognises it: without the interpreter and without folders. */
export function shortCommand(command) {
  const words = (command ?? "").split(" ").map((word) => (word.startsWith("/") ? word.slice(word.lastIndexOf("/") + 1) || word : word));
  return (words.length > 1 && /^python[\d.]*$/.test(words[0]) ? words.slice(1) : words).join(" ");
}

/** A word as a shell takes it, whatever is in it. */
export function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

/** Seconds as ticks of an axis have them: "50 s", "1 min 30 s", "2 h". */
export function tick(value) {
  const seconds = Math.round(value);
  if (Math.abs(value - seconds) > 1e-6) return `${significant(value, 3)} s`;
  const parts = [[Math.floor(seconds / 3600), "h"], [Math.floor((seconds % 3600) / 60), "min"], [seconds % 60, "s"]];
  return parts.filter(([number]) => number).map((part) => part.join(" ")).join(" ") || "0 s";
}

/** One thing or several: `count(3, "run")` is "3 runs". */
export function count(number, noun, plural = `${noun}s`) {
  return `${known(number) ? grouped(number, 0) : UNKNOWN} ${number === 1 ? noun : plural}`;
}

/** A setting in words: {"sm_mhz": 1500} -> "1,500 MHz SM". The server's own words are better where there are any. */
export function setting(values) {
  const words = Object.entries(values ?? {}).map(([knob, value]) => {
    if (knob === "sm_mhz") return `SM ≤ ${clock(value)}`;
    if (knob === "memory_mhz") return `memory ≤ ${clock(value)}`;
    if (knob === "power_limit_w") return `limit ${power(value)}`;
    return `${knob} ${value}`;
  });
  return words.length ? words.join(", ") : "default";
}
