// Curves over time by uPlot, with our colours, a line of text that says what is under the cursor, and the keyboard.
//
// Colours are the style sheet's, so light and dark need no second list of them.

import uPlot from "./vendor/uPlot.esm.js";
import { h, key, say } from "./dom.js";
import { duration, known, moment, tick, UNKNOWN } from "./format.js";

// Seconds between two ticks.
const STEPS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 2592000];
const HINTED = 240; // pixels from which a chart is worth a word on how it is read
const FONT = '12px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif';

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/**
 * A chart. `curves`: [{name, colour, scale, dash, show(value) -> text, step, low, high}], where low and high are places
 * in the data of a band around this curve. `scales`: {name: {unit, side}}. `began_s`: times are shown as since then.
 * `marks()`: times at which a line is drawn. `also(time_s)`: more words on what is under the cursor. Give it data by `update([times, …])`; `context` says when the page ends.
 */
export function chart(context, { label, curves, scales, height = 240, began_s = null, marks = null, below = null, onMove = null, also = null }) {
  const stage = h("div", { class: "stage" });
  const hint = height >= HINTED ? "Point at it, or use ← and →; drag to look closer, double-click to see all." : "";
  const readout = h("p", { class: "readout" }, hint);
  const spoken = h("p", { class: "unseen", "aria-live": "polite" }); // the same after a key: what comes in by itself is not read out
  const frame = h("div", { class: "chart", tabindex: 0, role: "group", "aria-roledescription": "chart", "aria-label": `${label}. Left and right keys read it out.` }, stage);
  const element = h("figure", { class: "figure" }, key(...curves.filter((each) => each.name).map((each) => [`${each.colour} ${each.dash ? "dashed" : ""}`, `${each.name}, ${scales[each.scale].unit}`])), frame, below, readout, spoken);
  let plot = null;
  let data = null;
  let drawn = []; // its first and last time

  function when(time_s) {
    return began_s === null ? moment(time_s) : `${duration(time_s - began_s)} in`;
  }

  function told(at) {
    if (at === null || at === undefined || !data?.[0].length) {
      say(readout, hint);
      return;
    }
    const values = curves.map((curve, number) => curve.name && `${curve.name} ${known(data[number + 1][at]) ? curve.show(data[number + 1][at]) : UNKNOWN}`);
    say(readout, [when(data[0][at]), ...values, also?.(data[0][at])].filter(Boolean).join("  ·  "));
  }

  function make() {
    const width = stage.clientWidth || 600;
    const narrow = width < 520;
    plot?.destroy();
    plot = new uPlot(options(width, narrow), data, stage);
    moved();
  }

  function options(width, narrow) {
    const quiet = colour("quiet");
    const grid = { stroke: colour("grid"), width: 1 };
    const axis = { stroke: quiet, grid, ticks: { show: false }, font: FONT, labelFont: FONT };
    return {
      width,
      height: narrow ? Math.round(height * 0.85) : height,
      legend: { show: false },
      padding: [12, 8, 0, 0],
      cursor: { points: { size: 7 }, drag: { x: true, y: false, setScale: true }, y: false },
      scales: { x: { time: began_s === null }, ...Object.fromEntries(Object.keys(scales).map((name) => [name, { range: fromZero }])) },
      axes: [
        { ...axis, incrs: STEPS_S, values: began_s === null ? clockTimes : (_, ticks) => ticks.map((at) => tick(at - began_s)), splits: began_s === null ? undefined : since, space: narrow ? 70 : 90, size: 34 },
        ...Object.entries(scales).map(([name, scale], number) => ({
          ...axis,
          scale: name,
          side: number ? 1 : 3,
          grid: number ? { show: false } : grid,
          size: narrow ? 44 : 52,
          space: 26,
          label: narrow ? undefined : scale.unit,
          labelSize: 16,
          labelGap: 0,
        })),
      ],
      series: [
        {},
        ...curves.map((curve) => ({
          scale: curve.scale,
          stroke: curve.name ? colour(curve.colour) : "transparent",
          width: curve.name ? 1.75 : 0,
          dash: curve.dash ? [6, 4] : undefined,
          points: { show: false },
          spanGaps: false,
          paths: curve.step ? uPlot.paths.stepped({ align: 1 }) : undefined,
        })),
      ],
      bands: curves.filter((curve) => curve.low).map((curve) => ({ series: [curve.high, curve.low], fill: `${colour(curve.colour)}33` })),
      hooks: {
        setCursor: [(u) => told(u.cursor.idx)],
        draw: [lines],
        setScale: [(u, scale) => scale === "x" && moved(u)],
        setSize: [moved],
      },
    };
  }

  /** Ticks at round times since the beginning. */
  function since(u, axis, low, high, step) {
    const found = [];
    for (let at = Math.ceil((low - began_s) / step) * step; began_s + at <= high + step / 1000; at += step) found.push(began_s + at);
    return found;
  }

  function lines(u) {
    const times = marks?.() ?? [];
    u.ctx.save();
    u.ctx.strokeStyle = colour("rule-strong");
    u.ctx.lineWidth = devicePixelRatio;
    u.ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const time_s of times) {
      if (time_s < u.scales.x.min || time_s > u.scales.x.max) continue;
      const x = Math.round(u.valToPos(time_s, "x", true));
      u.ctx.beginPath();
      u.ctx.moveTo(x, u.bbox.top);
      u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
      u.ctx.stroke();
    }
    u.ctx.restore();
  }

  /** Tell what lies under the chart where its left and right end are now. */
  function moved(u = plot) {
    if (!u || !onMove || !known(u.scales.x.min)) return;
    onMove({ left: u.bbox.left / devicePixelRatio, width: u.bbox.width / devicePixelRatio, from_s: u.scales.x.min, to_s: u.scales.x.max });
  }

  /** The first and the last point that can be seen. */
  function inView() {
    const { min, max } = plot.scales.x;
    const first = data[0].findIndex((at) => at >= min);
    const last = data[0].findLastIndex((at) => at <= max);
    return first < 0 || last < first ? [0, data[0].length - 1] : [first, last];
  }

  frame.addEventListener("keydown", (event) => {
    if (!plot || !data[0].length) return;
    const [first, last] = inView();
    const at = plot.cursor.idx ?? first;
    const page = Math.max(1, Math.round((last - first) / 20));
    const next = { ArrowLeft: at - 1, ArrowRight: at + 1, PageDown: at + page, PageUp: at - page, Home: first, End: last }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const place = Math.min(last, Math.max(first, next));
    plot.setCursor({ left: plot.valToPos(data[0][place], "x"), top: 10 });
    say(spoken, readout.textContent);
  });
  // Who has left it reads it no longer: else every new point would move what is under the cursor.
  frame.addEventListener("blur", () => {
    plot?.setCursor({ left: -10, top: -10 });
    say(spoken, "");
  });
  const again = () => data && stage.isConnected && make();
  addEventListener("joulewise-theme", again);
  // Also where it comes into the document only now.
  const watcher = new ResizeObserver(() => data && stage.clientWidth && (!plot || Math.abs(plot.width - stage.clientWidth) > 1) && make());
  watcher.observe(stage);
  context.undo(() => {
    removeEventListener("joulewise-theme", again);
    watcher.disconnect();
    plot?.destroy();
    plot = null;
  });
  context.ready(() => data && !plot && make());

  return {
    element,
    /** Draw other data; where the reader has zoomed in, stay there. */
    update(newData) {
      // Against what was drawn last, and not what the lists hold now: they may be the same ones, and have grown.
      const zoomed = plot && drawn.length === 2 && (plot.scales.x.min > drawn[0] || plot.scales.x.max < drawn[1]);
      data = newData;
      drawn = data[0].length > 1 ? [data[0][0], data[0].at(-1)] : [];
      if (plot) {
        plot.setData(data, !zoomed);
        if (zoomed) plot.redraw(); // which the library leaves to us where the scale stays: else the old curve stands there
      } else if (stage.isConnected) make();
    },
    /** Put the cursor at a time. */
    point(time_s) {
      if (plot) plot.setCursor({ left: plot.valToPos(time_s, "x"), top: 10 });
    },
  };
}

/** Ticks of an axis of moments: hours and minutes, seconds where they differ by them, days where they differ by those. */
function clockTimes(u, ticks, axis, space, step_s) {
  const part = step_s >= 86400 ? { day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit", ...(step_s < 60 ? { second: "2-digit" } : {}) };
  return ticks.map((at) => new Date(at * 1000).toLocaleString("en-GB", part));
}

/** Round moments between two, at most so many: [[time_s, words], …]. */
export function clockTicks(from_s, to_s, most) {
  const step_s = STEPS_S.find((each) => (to_s - from_s) / each <= most) ?? STEPS_S.at(-1);
  const zone_s = new Date(from_s * 1000).getTimezoneOffset() * 60; // days and hours are the reader's
  const ticks = [];
  for (let at = Math.ceil((from_s - zone_s) / step_s) * step_s + zone_s; at <= to_s; at += step_s) ticks.push(at);
  return ticks.map((at, number) => [at, clockTimes(null, ticks, 0, 0, step_s)[number]]);
}

function fromZero(_, low, high) {
  return [0, known(high) && high > 0 ? high * 1.08 : 1];
}

/** Where values are known one after the other: the places of the first and the last of each such stretch. */
function stretches(values) {
  const found = [];
  values.forEach((value, at) => {
    if (!known(value)) return;
    if (found.at(-1)?.last === at - 1) found.at(-1).last = at;
    else found.push({ first: at, last: at });
  });
  return found;
}

/** A small curve without axes, for a tile. `draw(times, values)`: unknown values leave a gap. */
export function sparkline(label, height = 56) {
  const canvas = h("canvas", { class: "spark", role: "img", "aria-label": label, height });
  canvas.draw = (times, values) => {
    const width = canvas.clientWidth;
    if (!width) return;
    const scale = devicePixelRatio;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const top = Math.max(0, ...values.filter(known)) * 1.05 || 1;
    const span_s = times.at(-1) - times[0] || 1;
    const x = (at) => (values.length < 2 ? width : ((times[at] - times[0]) / span_s) * width);
    const y = (value) => height - 2 - (value / top) * (height - 6);
    pen.strokeStyle = colour("accent");
    pen.lineWidth = 1.75;
    pen.lineJoin = "round";
    pen.fillStyle = colour("accent");
    for (const { first, last } of stretches(values)) {
      pen.beginPath();
      for (let at = first; at <= last; at++) pen.lineTo(x(at), y(values[at]));
      pen.globalAlpha = 1;
      pen.stroke();
      pen.lineTo(x(last), height);
      pen.lineTo(x(first), height);
      pen.globalAlpha = 0.12;
      pen.fill();
    }
  };
  return canvas;
}
