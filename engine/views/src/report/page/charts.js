// Formats of numbers, and charts that can be read with the keyboard and with screen readers. Used by page.js.
"use strict";

// A space at which no line breaks.
const SPACE = "\u00a0";
const MISSING = "–";
const SCALES = [
  [1e12, "T"],
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** Returns the value if it is a number that can be shown, else null. */
function finite(value) {
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

/** Makes a function of finite numbers one of anything. */
function orMissing(format) {
  return (value) => (finite(value) === null ? MISSING : format(value));
}

/** The value with three significant digits and a prefix of SI; numbers below 10,000 stay as they are. */
const compact = orMissing((value) => {
  const size = Math.abs(value);
  if (size < 1e4) return value.toLocaleString("en-US", { maximumFractionDigits: size < 100 ? 2 : 0 });
  const [scale, prefix] = SCALES.find(([scale]) => size >= scale * 0.9995);
  return significant(value / scale, 3) + SPACE + prefix;
});

const bytes = orMissing((value) => {
  const found = SCALES.find(([scale]) => value >= scale * 0.9995);
  return found ? `${significant(value / found[0], 3)}${SPACE}${found[1]}B` : `${value}${SPACE}bytes`;
});
const rate = orMissing((value) => `${compact(value)}${SPACE}samples/s`);
const whole = orMissing((value) => Math.round(value).toLocaleString("en-US"));
const percent = orMissing((value) => `${(100 * value).toFixed(Math.abs(value) < 0.0995 ? 2 : 1)}%`);
const five = orMissing((value) => value.toFixed(5));
const small = orMissing((value) => String(Number(value.toPrecision(4))));

/** A label of an axis. */
const tick = orMissing((value) => (Math.abs(value) < 1e3 ? small(value) : compact(value)));

function significant(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

/** A duration, with its two largest units. */
const duration = orMissing((value) => {
  if (value > 0 && value < 0.9995e-3) return `${significant(value * 1e6, 3)}${SPACE}µs`;
  if (value < 0.0995) return `${significant(value * 1e3, 3)}${SPACE}ms`;
  if (value < 59.95) return `${value.toFixed(value < 9.95 ? 2 : 1)}${SPACE}s`;
  const units = [
    [86400, "d"],
    [3600, "h"],
    [60, "min"],
    [1, "s"],
  ];
  const seconds = Math.round(value);
  const first = units.findIndex(([size]) => seconds >= size);
  const [size, name] = units[first];
  const [below, belowName] = units[first + 1];
  const rest = Math.floor((seconds % size) / below);
  return `${Math.floor(seconds / size)}${SPACE}${name}${rest ? ` ${rest}${SPACE}${belowName}` : ""}`;
});

/** Creates an element. Properties are attributes, except for `text` and for functions, which listen to events. */
function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets the text if it differs: an unchanged text keeps the reader's selection. */
function setText(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

function setAttribute(target, name, value) {
  if (value === null || value === undefined) target.removeAttribute(name);
  else if (target.getAttribute(name) !== String(value)) target.setAttribute(name, value);
}

/** Makes the children of a container those of the items, in their order, and keeps those that exist. */
function reconcile(container, items, keyOf, create, update) {
  const old = new Map(Array.from(container.children, (child) => [child.dataset.key, child]));
  let next = container.firstElementChild;
  items.forEach((item, index) => {
    const key = String(keyOf(item, index));
    let child = old.get(key);
    if (!child) {
      child = create(item, index);
      child.dataset.key = key;
    }
    old.delete(key);
    update(child, item, index);
    if (child === next) next = next.nextElementSibling;
    else container.insertBefore(child, next);
  });
  for (const child of old.values()) child.remove();
}

/** Has a screen reader say a text. */
function announce(text) {
  setText(document.getElementById("announcement"), text);
}

// ---- Colours ----

const colors = new Map();

/** Returns the value of a CSS variable. */
function color(name) {
  if (!colors.has(name)) {
    colors.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return colors.get(name);
}

/** The colour of a line or part among several. */
function nthColor(index) {
  return `--series-${(index % 8) + 1}`;
}

/** A square of a colour in a legend. */
function swatch(index, dashed) {
  const style = dashed ? " dashed" : "";
  return element("span", { class: `swatch color-${(index % 8) + 1}${style}`, "aria-hidden": "true" });
}

const charts = new Set();
for (const query of ["(prefers-color-scheme: dark)", "print"]) {
  matchMedia(query).addEventListener("change", () => {
    colors.clear();
    charts.forEach((chart) => chart.plot?.redraw(true));
  });
}

// ---- Charts ----

// A course: its title says enough about the axis, and its last point is the present one.
const STEP = { name: "step", format: whole, course: true };
const PLOT_HEIGHT = 220;
const TABLE_ROWS_MAX = 200;

/** Returns the bounds, wider if they are equal. */
function apart(min, max) {
  if (min === null || min < max) return [min, max];
  const margin = Math.abs(min) * 0.05 || 1;
  return [min - margin, max + margin];
}

/**
 * A chart of lines with a summary in words, a cursor that arrow keys move, and its data as a table.
 *
 * Options: `title`; `x` and `y` with `name`, `format`, and optionally `range`, a function of the bounds; `reference`,
 * a function that returns the two ends of a dashed line; `steps`, which draws steps and fills them; `level` of the
 * heading; `named`, which names a line also if it is the only one. The readout shows the last point of a course.
 */
class Chart {
  constructor(options) {
    this.options = options;
    this.lines = [];
    this.index = null;
    this.readout = element("span", { class: "readout" });
    this.legend = element("ul", { class: "legend", hidden: true });
    this.area = element("div", {
      class: "plot",
      tabindex: "0",
      role: "img",
      keydown: (event) => this.key(event),
      blur: () => this.leave(),
    });
    this.body = element("tbody");
    this.head = element("tr");
    this.note = element("p", { class: "note", hidden: true });
    this.details = element(
      "details",
      { class: "data", toggle: () => this.fillTable() },
      element(
        "summary",
        {},
        "Data as table",
        element("span", { class: "visually-hidden", text: `: ${options.title}` }),
      ),
      scrolling(`Data of ${options.title}`, element("table", {}, element("thead", {}, this.head), this.body)),
      this.note,
    );
    this.root = element(
      "figure",
      { class: "chart", "data-chart": options.title },
      element("figcaption", {}, element(`h${options.level}`, { text: options.title }), this.readout),
      this.area,
      this.legend,
      this.details,
    );
    charts.add(this);
    new ResizeObserver(() => this.resize()).observe(this.area);
  }

  /** Shows lines with `label`, `x` and `y`; hides the chart if there is none with data. Returns whether it has data. */
  update(lines) {
    lines = lines
      .map((line) => {
        const there = Array.from(line.x ?? [], (_, at) => at).filter((at) => finite(line.y[at]) !== null);
        return {
          label: line.label,
          nth: line.nth ?? 0,
          dashed: Boolean(line.dashed),
          x: there.map((at) => line.x[at]),
          y: there.map((at) => line.y[at]),
        };
      })
      .filter((line) => line.x.length > 0);
    this.root.hidden = lines.length === 0;
    if (this.root.hidden) return false;
    const ends = lines.map(({ label, x, y }) => [label, x.length, x.at(0), x.at(-1), y.at(-1)]);
    const state = [this.options.x.range?.(0, 0), ...ends].join();
    if (state === this.state) return true;
    const sameLines = lines.map(({ label }) => label).join("\n") === this.lines.map(({ label }) => label).join("\n");
    this.state = state;
    this.lines = lines;
    this.data = lines.length === 1 ? [lines[0].x, lines[0].y] : uPlot.join(lines.map(({ x, y }) => [x, y]));
    this.root.dataset.points = this.data[0].length;
    if (!sameLines) {
      this.plot?.destroy();
      this.plot = null;
    }
    this.names = lines.length > 1 || Boolean(this.options.named);
    this.legend.hidden = !this.names;
    reconcile(
      this.legend,
      lines,
      (line) => line.label,
      (line) => element("li", {}, swatch(line.nth, line.dashed), line.label),
      () => {},
    );
    setAttribute(this.area, "aria-label", this.summary());
    if (this.plot) {
      this.plot.setData(this.data);
    } else {
      this.resize();
    }
    this.show(this.index);
    this.fillTable();
    return true;
  }

  resize() {
    const width = this.area.clientWidth;
    if (!width || !this.data) return;
    if (!this.plot) this.plot = new uPlot(this.settings(width), this.data, this.area);
    else if (this.plot.width !== width) this.plot.setSize({ width, height: PLOT_HEIGHT });
  }

  settings(width) {
    const { x, y, steps } = this.options;
    const axis = (of, size) => ({
      scale: of === x ? "x" : "y",
      stroke: () => color("--muted"),
      font: "12px system-ui, sans-serif",
      size,
      gap: 6,
      space: of === x ? 70 : 36,
      values: (_, splits) => splits.map((split) => tick(split)),
      grid: { stroke: () => color("--line"), width: 1 },
      ticks: { show: false },
      // The titles of curves over steps say enough.
      ...(x.course ? {} : { label: of.name, labelSize: 20, labelFont: "12px system-ui, sans-serif" }),
    });
    const few = Math.max(...this.lines.map((line) => line.x.length)) <= 40;
    return {
      width,
      height: PLOT_HEIGHT,
      padding: [12, 24, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: {
        x: { time: false, range: (_, min, max) => (x.range ?? apart)(min, max) },
        y: {
          // One value, too, is in the middle of an axis near it.
          range: (_, min, max) =>
            y.range?.(min, max) ?? (min < max ? uPlot.rangeNum(min, max, 0.1, true) : apart(min, max)),
        },
      },
      axes: [axis(x, 32), axis(y, 58)],
      series: [
        {},
        ...this.lines.map((line) => ({
          label: line.label,
          stroke: () => color(nthColor(line.nth)),
          width: 2,
          spanGaps: true,
          points: { show: few && !steps, size: 6 },
          paths: steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
          dash: line.dashed ? [8, 3] : undefined,
        })),
      ],
      hooks: {
        drawAxes: [(plot) => this.drawReference(plot)],
        setCursor: [(plot) => this.show(plot.cursor.idx)],
      },
    };
  }

  drawReference(plot) {
    const ends = this.options.reference?.(plot);
    if (!ends) return;
    const { ctx } = plot;
    ctx.save();
    ctx.strokeStyle = color("--muted");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ends.forEach(([x, y]) => ctx.lineTo(plot.valToPos(x, "x", true), plot.valToPos(y, "y", true)));
    ctx.stroke();
    ctx.restore();
  }

  /** Returns the values at an index in words. */
  at(index) {
    const { x, y } = this.options;
    const values = this.lines.map((line, nth) => {
      const value = finite(this.data[nth + 1][index]);
      return value === null ? null : (this.names ? `${line.label} ` : "") + y.format(value);
    });
    return `${values.filter((text) => text !== null).join(", ")} at ${x.name} ${x.format(this.data[0][index])}`;
  }

  summary() {
    const { title, x, y } = this.options;
    const parts = this.lines.map((line) => {
      const lowest = line.y.reduce((best, value, at) => (value < line.y[best] ? at : best), 0);
      const highest = line.y.reduce((best, value, at) => (value > line.y[best] ? at : best), 0);
      const at = (index) => `${y.format(line.y[index])} at ${x.name} ${x.format(line.x[index])}`;
      const name = this.names ? `${line.label}: ` : "";
      return `${name}last ${at(line.x.length - 1)}, lowest ${at(lowest)}, highest ${at(highest)}`;
    });
    return `${title}. ${parts.join(". ")}.`;
  }

  show(index) {
    // The last point says something of a course over steps only, and of several lines it belongs to one only.
    const idle = this.lines.length > 1 || !this.options.x.course ? "" : this.at(this.data[0].length - 1);
    setText(
      this.readout,
      index === null || index === undefined || index >= this.data[0].length ? idle : this.at(index),
    );
  }

  key(event) {
    if (!this.plot || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.data[0].length - 1;
    const stride = event.shiftKey ? 10 : 1;
    const now = this.index ?? (event.key === "ArrowLeft" ? last + stride : -stride);
    const to = { ArrowRight: now + stride, ArrowLeft: now - stride, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.leave();
    if (to === undefined) return;
    event.preventDefault();
    this.index = Math.min(Math.max(to, 0), last);
    this.plot.setCursor({ left: this.plot.valToPos(this.data[0][this.index], "x"), top: 10 });
    // Points may share an x; the cursor finds one of them.
    this.show(this.index);
    announce(this.at(this.index));
  }

  leave() {
    this.index = null;
    this.plot?.setCursor({ left: -10, top: -10 });
  }

  fillTable() {
    if (!this.details.open || !this.data) return;
    const { x, y } = this.options;
    const all = this.data[0].length;
    const shown = Math.min(all, TABLE_ROWS_MAX);
    // Evenly, with the first and the last one.
    const rows = Array.from({ length: shown }, (_, at) => Math.round((at * (all - 1)) / Math.max(shown - 1, 1)));
    const titles = [x.name, ...this.lines.map((line) => (this.names ? line.label : y.name))];
    reconcile(
      this.head,
      titles,
      (title) => title,
      () => element("th", { scope: "col" }),
      (cell, title) => setText(cell, title),
    );
    reconcile(
      this.body,
      rows,
      (row) => this.data[0][row] + "/" + row,
      () => element("tr"),
      (line, row) => {
        const texts = [x.format(this.data[0][row]), ...this.lines.map((_, nth) => y.format(this.data[nth + 1][row]))];
        reconcile(
          line,
          texts,
          (_, at) => at,
          (_, at) => element(at ? "td" : "th", at ? { class: "number" } : { scope: "row" }),
          (cell, text) => setText(cell, text),
        );
      },
    );
    this.note.hidden = shown === all;
    setText(this.note, `${shown} of ${whole(all)} points.`);
  }
}

/** A container that scrolls sideways, also by keyboard. */
function scrolling(label, ...children) {
  return element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": label }, ...children);
}

// ---- Curves of scores ----

const FIRST_LOGIT = -16;
const LOGIT_WIDTH = 1 / 16;
const RELIABILITY_BINS = 15;

function probability(logit) {
  return 1 / (1 + Math.exp(-logit));
}

/** Returns the corrected logit in the middle of a bin; `logit_offset` is absent if there is no correction. */
function logitOf(bin, { logit_offset }) {
  return FIRST_LOGIT + (bin + 0.5) * LOGIT_WIDTH + (logit_offset ?? 0);
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

/** Returns ROC and precision-recall curves of a histogram of scores: thresholds go down from the highest bin. */
function thresholdCurves({ negatives, positives }) {
  const [allNegatives, allPositives] = [sum(negatives), sum(positives)];
  const roc = { x: [0], y: [0] };
  const precision = { x: [], y: [] };
  let [falsely, truly] = [0, 0];
  for (let bin = negatives.length - 1; bin >= 0; bin--) {
    if (!negatives[bin] && !positives[bin]) continue;
    falsely += negatives[bin];
    truly += positives[bin];
    roc.x.push(falsely / allNegatives);
    roc.y.push(truly / allPositives);
    if (truly === 0) continue;
    precision.x.push(truly / allPositives);
    precision.y.push(truly / (truly + falsely));
  }
  return { roc, precision };
}

/** Returns mean predicted and observed rates in bins of about equal weight. */
function reliability(head) {
  const { negatives, positives } = head;
  const total = sum(negatives) + sum(positives);
  const curve = { x: [], y: [] };
  let [weight, predicted, observed, before] = [0, 0, 0, 0];
  for (let bin = 0; bin < negatives.length; bin++) {
    const here = negatives[bin] + positives[bin];
    weight += here;
    predicted += here * probability(logitOf(bin, head));
    observed += positives[bin];
    const due = ((curve.x.length + 1) * total) / RELIABILITY_BINS;
    if (weight > 0 && (before + weight >= due * (1 - 1e-9) || bin === negatives.length - 1)) {
      curve.x.push(predicted / weight);
      curve.y.push(observed / weight);
      before += weight;
      [weight, predicted, observed] = [0, 0, 0];
    }
  }
  return curve;
}

/** Returns the share of each class per bin of scores, without the empty ends, in at most 80 bins. */
function densities({ negatives, positives, logit_offset }) {
  const used = negatives.map((count, bin) => (count + positives[bin] > 0 ? bin : -1)).filter((bin) => bin >= 0);
  const [first, last] = [used[0], used.at(-1)];
  const stride = Math.max(1, Math.ceil((last - first + 1) / 80));
  const starts = [];
  for (let bin = first; bin <= last + stride; bin += stride) starts.push(bin);
  const shares = (counts) => {
    const total = sum(counts) || 1;
    return starts.map((start) => sum(counts.slice(start, start + stride)) / total);
  };
  return {
    x: starts.map((bin) => FIRST_LOGIT + bin * LOGIT_WIDTH + (logit_offset ?? 0)),
    negatives: shares(negatives),
    positives: shares(positives),
  };
}
