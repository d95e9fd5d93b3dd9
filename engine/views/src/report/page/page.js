// The page of a training: polls `run.json`, or shows the runs that a report embeds.
"use strict";

const POLL_MS = 2000;
const SLOW_POLL_MS = 10000;
const TIMEOUT_MS = 8000;
const ROWS_MAX = 200;

const STATES = {
  starting: "starting",
  training: "training",
  evaluating: "evaluating",
  finished: "finished",
  unfinished: "unfinished",
};
const BOUNDS = {
  reading: "waiting for the reader",
  computing: "computing steps",
  awaiting: "waiting for outcomes",
};
const CURVES = [
  { key: "loss", title: "Training loss", y: { name: "loss", format: small } },
  { key: "samples_per_second", title: "Samples per second", y: { name: "samples/s", format: rate } },
  { key: "dense_learning_rate", title: "Learning rate (dense)", y: { name: "learning rate", format: small } },
];
// Their lines are named after the samples that were evaluated, also if there is one.
const EVALUATION_CURVES = [
  { key: "auc", title: "AUC", y: { name: "AUC", format: five }, named: true },
  { key: "log_loss", title: "Log loss", y: { name: "log loss", format: five }, named: true },
];
const ENDS = {
  epochs: ["after all epochs"],
  max_steps: ["at train.max_steps"],
  target_auc: ["at eval.target_auc"],
  early_stopping: ["early", "no better evaluation for as long as the patience"],
  program: ["by the program"],
};

// ---- Parts that several sections use ----

/** Sets the text of a value, its exact value as a tooltip, and `data-value`, which checks read. */
function setValue(target, text, exact) {
  setText(target, text);
  const there = exact !== null && exact !== undefined;
  setAttribute(target, "data-value", there ? exact : null);
  setAttribute(target, "title", there && String(exact) !== text ? exact : null);
}

/** Creates a section with a heading, hidden until `show` is true. `fill` updates it from a view. */
function section(title, level, content, show, fill) {
  const root = element("section", { hidden: true }, element(`h${level}`, { text: title }), ...content);
  return {
    root,
    update(view) {
      root.hidden = !show(view);
      if (!root.hidden) fill(view);
    },
  };
}

/** A table of items. Columns have `title`, `text` and `exact` of an item, and `number`; `sortable` adds buttons. */
class ItemTable {
  constructor({ label, columns, keyOf, sortable }) {
    Object.assign(this, { columns, keyOf, sortBy: null, items: [] });
    this.headings = columns.map((column, at) => {
      const cell = element("th", { scope: "col", class: column.number ? "number" : null });
      if (sortable) cell.append(element("button", { type: "button", text: column.title, click: () => this.sort(at) }));
      else cell.textContent = column.title;
      return cell;
    });
    this.body = element("tbody");
    this.note = element("p", { class: "note", hidden: true });
    this.root = element(
      "div",
      {},
      scrolling(label, element("table", {}, element("thead", {}, element("tr", {}, ...this.headings)), this.body)),
      this.note,
    );
  }

  sort(at) {
    const numeric = this.columns[at].number;
    const down = this.sortBy?.at === at ? !this.sortBy.down : Boolean(numeric);
    this.sortBy = { at, down };
    this.headings.forEach((heading, column) => {
      setAttribute(heading, "aria-sort", column === at ? (down ? "descending" : "ascending") : null);
    });
    this.update(this.items);
  }

  update(items) {
    this.items = items;
    const { columns } = this;
    let rows = Array.from(items);
    if (this.sortBy) {
      const { at, down } = this.sortBy;
      const value = (item) => (columns[at].exact ?? columns[at].text)(item);
      const missing = (item) => value(item) === null || value(item) === undefined;
      rows.sort(
        (a, b) => missing(a) - missing(b) || (value(a) < value(b) ? -1 : Number(value(a) > value(b))) * (down ? -1 : 1),
      );
    }
    this.note.hidden = rows.length <= ROWS_MAX;
    setText(this.note, `${ROWS_MAX} of ${whole(rows.length)} rows.`);
    rows = rows.slice(0, ROWS_MAX);
    // Columns without any value are left out.
    const empty = columns.map((column) => column.optional && rows.every((item) => column.text(item) === MISSING));
    this.headings.forEach((heading, at) => {
      heading.hidden = empty[at];
    });
    reconcile(
      this.body,
      rows,
      this.keyOf,
      () => element("tr"),
      (row, item) => {
        reconcile(
          row,
          columns,
          (_, at) => at,
          (column, at) =>
            element(at ? "td" : "th", {
              class: column.number ? "number" : column.wrap ? "wrap" : null,
              scope: at ? null : "row",
            }),
          (cell, column, at) => {
            setText(cell, column.text(item));
            cell.hidden = empty[at];
            if (column.exact) setValue(cell, column.text(item), column.exact(item) ?? null);
            if (column.metric) setAttribute(cell, "data-metric", column.metric(item));
            const mark = column.mark?.(item);
            cell.classList.toggle("best", Boolean(mark));
            // Before the number, so that digits stay in line.
            if (mark) cell.prepend(element("span", { class: "mark", text: "best " }));
          },
        );
      },
    );
  }
}

function some(list) {
  return Array.isArray(list) && list.length > 0;
}

// ---- Sections of a run ----

function header(level) {
  const name = element(`h${level}`);
  const state = element("span", { class: "state", "data-metric": "state" });
  const facts = element("ul", { class: "facts" });
  return {
    root: element("header", { class: "run-header" }, element("div", { class: "title" }, name, state), facts),
    update(view) {
      setText(name, view.name || view.run || "run");
      setValue(state, STATES[view.state] ?? String(view.state ?? ""), view.state);
      state.dataset.state = view.state;
      const { device, model } = view;
      const ranks =
        device?.ranks > 1 ? `${device.ranks} ranks${device.nodes > 1 ? ` on ${device.nodes} nodes` : ""}` : null;
      const parameters =
        finite(model?.dense_parameters) === null && finite(model?.embedding_parameters) === null
          ? null
          : `${compact(model.dense_parameters)} dense and ${compact(model.embedding_parameters)} embedding parameters`;
      const texts = [
        view.run,
        device?.name || device?.kind,
        device?.name?.includes(device.precision) ? null : device?.precision,
        ranks ?? (device?.ranks === 1 ? "1 rank" : null),
        model?.kind,
        parameters,
        view.version ? `Rankine ${view.version}` : null,
      ].filter((text) => text && text !== view.name);
      reconcile(
        facts,
        texts,
        (_, at) => at,
        () => element("li"),
        (item, text) => setText(item, text),
      );
    },
  };
}

/** Fills a list of facts: a key, a title, a text, the exact value, and what follows the text. */
function fillTiles(tiles, facts) {
  reconcile(
    tiles,
    facts,
    ([key]) => key,
    ([key, title]) =>
      element(
        "div",
        {},
        element("dt", { text: title }),
        element("dd", {}, element("span", { class: "value", "data-metric": key }), element("span", { class: "of" })),
      ),
    (tile, [, , text, exact, extra]) => {
      setValue(tile.querySelector(".value"), text, exact);
      setText(tile.querySelector(".of"), extra ?? "");
    },
  );
}

function watts(value) {
  return finite(value) === null ? MISSING : `${whole(Math.round(value))} W`;
}

function energyOf({ joules_per_sample: joules }) {
  return finite(joules) === null ? MISSING : `${small(1e6 * joules)} J`;
}

/** What limits the power of the GPUs, and in which share of the steps. */
function limitOf({ limit_watts: limit, limited_step_share: share }) {
  const texts = [
    finite(limit) === null ? null : `of ${watts(limit)}`,
    finite(share) === null ? null : `at the limit in ${percent(share)} of the steps`,
  ];
  return texts.filter((text) => text).join(", ");
}

function progress(level) {
  const fill = element("div", { class: "fill" });
  const bar = element(
    "div",
    { class: "bar", role: "progressbar", "aria-label": "Samples", "aria-valuemin": "0", "aria-valuemax": "100" },
    fill,
  );
  const label = element("p", { class: "percent" });
  const task = element("p", { class: "note", hidden: true });
  const tiles = element("dl", { class: "tiles" });
  return section(
    "Progress",
    level,
    [element("div", { class: "progress" }, bar, label), task, tiles],
    (view) => view.progress,
    (view) => {
      const now = view.progress;
      const share = now.total_samples > 0 ? Math.min(now.samples / now.total_samples, 1) : null;
      bar.parentElement.hidden = share === null;
      if (share !== null) {
        fill.style.width = `${100 * share}%`;
        setAttribute(bar, "aria-valuenow", Math.floor(100 * share));
        setValue(label, `${Math.floor(100 * share)}%`, share);
      }
      task.hidden = !view.task;
      if (view.task) {
        const { name, done, total, unit } = view.task;
        setText(task, `${name}: ${whole(done)}${total ? ` of ${whole(total)}` : ""} ${unit}`);
      }
      const result = resultOf(view);
      const head = result?.heads?.[0];
      const of = now.total_samples > 0 ? `of ${compact(now.total_samples)}` : "";
      const epochs = now.total_epochs;
      const bound = view.bound && finite(view.bound.share) !== null ? view.bound : null;
      const ends = finite(now.eta_seconds) !== null && view.state !== "finished";
      const facts = [
        ["step", "Step", whole(now.step), now.step],
        epochs > 0
          ? ["epoch", "Epoch", whole(Math.min(now.epoch + 1, epochs)), now.epoch, `of ${whole(epochs)}`]
          : null,
        ["samples", "Samples", compact(now.samples), now.samples, of],
        ["rate", "Rate", rate(now.samples_per_second), now.samples_per_second],
        ["seconds", "Time", duration(now.seconds), now.seconds],
        ends ? ["eta", "Time left", duration(now.eta_seconds), now.eta_seconds] : null,
        ["loss", "Loss", small(now.loss), now.loss],
        view.power ? ["power", "Power", watts(view.power.watts), view.power.watts, limitOf(view.power)] : null,
        view.power
          ? ["energy", "Energy", energyOf(view.power), view.power.joules_per_sample, "per million samples"]
          : null,
        head ? ["auc", "AUC", five(head.auc), head.auc, onAndLabel(result, head)] : null,
        bound
          ? ["bound", "Bound by", bound.by, bound.share, `${percent(bound.share)} ${BOUNDS[bound.by] ?? ""}`]
          : null,
      ].filter((fact) => fact && fact[2] !== MISSING);
      fillTiles(tiles, facts);
    },
  );
}

/** How training ended or will end: early stopping, the saved model, and a refit. */
function stopping(level) {
  const facts = element("dl", { class: "tiles" });
  const metricOf = ({ metric, part }) =>
    `${part === "validation" ? "validation" : "evaluation"} ${metric === "auc" ? "AUC" : "log loss"}`;
  const factsOf = (view) => {
    const { stopping: now, ended, saved_step: saved, refit } = view;
    const best = refit?.best;
    const left = now ? Math.max(now.patience - now.evaluations_since, 0) : null;
    const facts = [];
    const add = (...fact) => facts.push(fact);
    if (now) {
      add("best_step", "Best step", whole(now.best_step), now.best_step, `${metricOf(now)} ${five(now.best_value)}`);
      if (!ended) add("patience_left", "Patience left", whole(left), left, `of ${whole(now.patience)} evaluations`);
    }
    if (best) {
      const value = `${metricOf(best)} ${five(best.value)}, first training`;
      add("best_step", "Best step", whole(best.step), best.step, value);
    }
    if (refit?.stage === "search") {
      add("refit", "Refit", "follows", "search", "this training finds the number of steps");
    } else if (refit) {
      add("refit", "Refit", "on all samples", "refit", `after ${whole(refit.searched_steps)} steps without some`);
    }
    const reason = refit?.ended ?? ended;
    if (ended) {
      const [text, why] = ENDS[reason] ?? [reason];
      add("ended", refit?.ended ? "First training ended" : "Training ended", text, reason, why);
    }
    if (finite(saved) !== null) add("saved_step", "Saved model", `of step ${whole(saved)}`, saved);
    return facts;
  };
  return section(
    "Stopping",
    level,
    [facts],
    (view) => factsOf(view).length > 0,
    (view) => fillTiles(facts, factsOf(view)),
  );
}

/** The evaluation that is the result of a run: on the evaluation part, or until then on the validation set. */
function resultOf(view) {
  const named = (name) => view.evaluations?.find((one) => one.name === name);
  return named("evaluation") ?? named("validation");
}

/** What an AUC was measured on, and of which head it is if there are several. */
function onAndLabel(result, head) {
  return result.heads.length > 1 ? `${result.name}, ${labelOf(head)}` : result.name;
}

function lineOf(series, label, nth = 0, dashed = false) {
  return { label, nth, dashed, x: series?.steps ?? [], y: series?.values ?? [] };
}

/** The charts of the curves of runs, over the same steps. */
function curveCharts(level) {
  let last = 1;
  const x = { ...STEP, range: () => [0, last] };
  const of = (curve) => new Chart({ ...curve, x, level });
  const [training, evaluations] = [CURVES.map(of), EVALUATION_CURVES.map(of)];
  return {
    root: element("div", { class: "charts" }, ...[...training, ...evaluations].map((chart) => chart.root)),
    /** Shows runs, each with a label if there are several. */
    update(views, labels) {
      const lines = CURVES.map(({ key, title }) =>
        views.map((view, at) => lineOf(view.series?.[key], labels?.[at] ?? title, at, at % 2 === 1)),
      );
      const evaluated = EVALUATION_CURVES.map(({ key }) =>
        views.flatMap((view, at) =>
          (view.evaluations ?? []).map((one, nth) =>
            labels
              ? lineOf(one[key], `${labels[at]}, ${one.name}`, at, nth > 0)
              : lineOf(one[key], one.name, nth, nth > 0),
          ),
        ),
      );
      last = Math.max(1, ...[...lines, ...evaluated].flat().map((line) => line.x.at(-1) ?? 0));
      training.forEach((chart, at) => chart.update(lines[at]));
      evaluations.forEach((chart, at) => chart.update(evaluated[at]));
    },
  };
}

function curves(level) {
  const charts = curveCharts(level + 1);
  const drawn = (series) => series?.values?.some((value) => finite(value) !== null);
  const hasData = (view) =>
    CURVES.some(({ key }) => drawn(view.series?.[key])) ||
    view.evaluations?.some((one) => EVALUATION_CURVES.some(({ key }) => drawn(one[key])));
  return section("Curves", level, [charts.root], hasData, (view) => charts.update([view]));
}

/** An item with a phase's name, its time, a share and a bar, and what follows the bar. */
function phaseItem(inBar, ...after) {
  return element(
    "li",
    {},
    element("span", { class: "name" }),
    element("span", { class: "number seconds" }),
    element("span", { class: "number share" }),
    element("span", { class: "bar", "aria-hidden": "true" }, inBar),
    ...after,
  );
}

function phases(level) {
  const list = element("ul", { class: "phases" });
  return section(
    "Where the time goes",
    level,
    [list],
    (view) => some(view.phases),
    (view) => {
      const total = sum(view.phases.map((phase) => phase.seconds)) || 1;
      const longest = Math.max(...view.phases.map((phase) => phase.seconds)) || 1;
      reconcile(
        list,
        view.phases,
        (phase) => phase.name,
        () => phaseItem(element("span", { class: "fill" }), element("span", { class: "meaning" })),
        (item, phase) => {
          const [name, seconds, share, bar, meaning] = item.children;
          setText(name, phase.name.replaceAll("_", " "));
          setValue(seconds, duration(phase.seconds), phase.seconds);
          setText(share, percent(phase.seconds / total));
          bar.firstElementChild.style.width = `${(100 * phase.seconds) / longest}%`;
          setText(meaning, phase.meaning);
        },
      );
    },
  );
}

/** The phases of a step on a GPU, on a common time axis, each with its share of the roofline. */
function iteration(level) {
  const list = element("ul", { class: "phases" });
  const note = element("p", { class: "note" });
  return section(
    "A step on the GPU",
    level,
    [list, note],
    (view) => some(view.iteration),
    (view) => {
      const end = Math.max(...view.iteration.map((phase) => phase.begin_ms + phase.ms)) || 1;
      setText(
        note,
        `The bars share a time axis of ${duration(end / 1e3)}: phases overlap. The solid part, and the percentage: ` +
          "the least time that the GPU's peak rates, by its data sheet, allow for the phase.",
      );
      reconcile(
        list,
        view.iteration,
        (phase) => phase.name,
        () => phaseItem(element("span", { class: "span" }, element("span", { class: "floor" }))),
        (item, phase) => {
          const [name, took, share, bar] = item.children;
          const roofline = finite(phase.roofline_ms);
          const floor = phase.ms > 0 ? Math.min((roofline ?? 0) / phase.ms, 1) : 0;
          setText(name, phase.name);
          setValue(took, duration(phase.ms / 1e3), phase.ms / 1e3);
          setText(share, roofline === null ? MISSING : percent(floor));
          setAttribute(share, "title", "Share of the roofline");
          const span = bar.firstElementChild;
          span.style.left = `${(100 * phase.begin_ms) / end}%`;
          span.style.width = `${(100 * phase.ms) / end}%`;
          span.firstElementChild.style.width = `${100 * floor}%`;
        },
      );
    },
  );
}

/** The charts of a head's scores. */
function scoreCharts(level) {
  const share = { name: "share", format: percent };
  const unit = (min, max) => [0, Math.max(1, max)];
  const rates = { name: "predicted", format: percent };
  let [baseRate, highest] = [0, 1];
  const upTo = (_, max) => [0, (max || 1) * 1.08];
  // Both axes of the reliability have the same range, so that the diagonal is one.
  const square = () => [0, highest];
  let shown = "";
  const made = {
    reliability: new Chart({
      title: "Reliability",
      level,
      x: { ...rates, range: square },
      y: { name: "observed", format: percent, range: square },
      reference: () => [
        [0, 0],
        [highest, highest],
      ],
    }),
    roc: new Chart({
      title: "ROC",
      level,
      x: { name: "false positive rate", format: percent, range: unit },
      y: { name: "true positive rate", format: percent, range: unit },
      reference: () => [
        [0, 0],
        [1, 1],
      ],
    }),
    precision: new Chart({
      title: "Precision and recall",
      level,
      x: { name: "recall", format: percent, range: unit },
      y: { name: "precision", format: percent, range: unit },
      reference: () => [
        [0, baseRate],
        [1, baseRate],
      ],
    }),
    scores: new Chart({
      title: "Scores",
      level,
      steps: true,
      x: { name: "log-odds", format: (logit) => `${logit.toFixed(2)} (${percent(probability(logit))})` },
      y: { ...share, range: upTo },
    }),
  };
  const name = element("p", { class: "head" });
  const root = element(
    "div",
    {},
    name,
    element("div", { class: "charts" }, ...Object.values(made).map((chart) => chart.root)),
  );
  return {
    root,
    update(head, several) {
      name.hidden = !several;
      setText(name, labelOf(head));
      const state = JSON.stringify([head.negatives, head.positives, head.logit_offset]);
      if (state === shown) return;
      shown = state;
      const [negatives, positives] = [sum(head.negatives), sum(head.positives)];
      baseRate = positives / (negatives + positives);
      const { roc, precision } = negatives > 0 && positives > 0 ? thresholdCurves(head) : { roc: {}, precision: {} };
      const density = densities(head);
      const calibration = reliability(head);
      highest = 1.08 * Math.max(...calibration.x, ...calibration.y) || 1;
      made.reliability.update([{ label: "Observed rate", ...calibration }]);
      made.roc.update([{ label: "True positive rate", ...roc }]);
      made.precision.update([{ label: "Precision", ...precision }]);
      made.scores.update([
        { label: "negatives", nth: 0, x: density.x, y: density.negatives },
        { label: "positives", nth: 1, x: density.x, y: density.positives },
      ]);
    },
  };
}

/** The name of a head, which old runs do not record. */
function labelOf(head) {
  return head.label ?? "label";
}

function evaluation(level) {
  const metric = (key, title, format, optional) => ({
    title,
    number: true,
    optional,
    text: (head) => format(head[key]),
    exact: (head) => head[key],
    metric: (head) => `${head.on}.${labelOf(head)}.${key}`,
  });
  const table = new ItemTable({
    label: "Metrics of each head",
    keyOf: (_, at) => at,
    columns: [
      { title: "Samples of", text: (head) => head.on },
      { title: "Head", optional: true, text: (head) => (head.several ? labelOf(head) : MISSING) },
      metric("samples", "Samples", compact),
      metric("auc", "AUC", five),
      metric("auc_achievable", "AUC achievable", five, true),
      metric("log_loss", "Log loss", five),
      metric("normalized_entropy", "Normalized entropy", five),
      metric("calibration", "Calibration", five),
      metric("calibration_uncorrected", "Uncorrected", five, true),
      metric("label_rate", "Label rate", percent),
    ],
  });
  const heads = element("div");
  const note = element("p", { class: "note" });
  const parts = new Map();
  const rowsOf = (view) =>
    (view.evaluations ?? []).flatMap(({ name, heads: of }) =>
      of.map((head) => ({ ...head, on: name, several: of.length > 1 })),
    );
  return section(
    "Evaluation",
    level,
    [table.root, heads, note],
    (view) => some(rowsOf(view)) || some(view.scores),
    (view) => {
      const rows = rowsOf(view);
      table.root.hidden = !some(rows);
      table.update(rows);
      const scored = view.scored ? `Charts: ${view.scored}. ` : "";
      setText(
        note,
        `${scored}Dashed lines: perfect calibration, chance, and the label rate. Scores are shares of each class.`,
      );
      const scores = (view.scores ?? []).filter((head) => sum(head.negatives) + sum(head.positives) > 0);
      note.hidden = !scores.length;
      reconcile(
        heads,
        scores,
        (head) => head.label,
        (head) => {
          parts.set(head.label, scoreCharts(level + 1));
          return parts.get(head.label).root;
        },
        (_, head) => parts.get(head.label).update(head, scores.length > 1),
      );
    },
  );
}

function memory(level) {
  const list = element("div", { class: "memory" });
  return section(
    "GPU memory",
    level,
    [list],
    (view) => some(view.memory),
    (view) => {
      reconcile(
        list,
        view.memory,
        (gpu) => `${gpu.gpu}/${gpu.uuid}`,
        () =>
          element(
            "div",
            {},
            element("p", { class: "head" }),
            element("div", { class: "stack", "aria-hidden": "true" }),
            element("ul", { class: "legend" }),
          ),
        (root, gpu) => {
          const [name, stack, legend] = root.children;
          const parts = gpu.parts.map((part, nth) => ({ ...part, nth }));
          if (finite(gpu.free_bytes) !== null) parts.push({ purpose: "free", bytes: gpu.free_bytes, nth: null });
          const total = sum(parts.map((part) => part.bytes)) || 1;
          setText(name, `GPU ${gpu.gpu}: ${bytes(sum(gpu.parts.map((part) => part.bytes)))} of ${bytes(total)}`);
          setAttribute(name, "title", gpu.uuid);
          const shade = (part) => (part.nth === null ? "color-free" : `color-${(part.nth % 8) + 1}`);
          reconcile(
            stack,
            parts,
            (part) => part.purpose,
            (part) => element("span", { class: shade(part) }),
            (bar, part) => {
              bar.style.flexGrow = part.bytes / total;
            },
          );
          reconcile(
            legend,
            parts,
            (part) => part.purpose,
            (part) =>
              element(
                "li",
                {},
                element("span", { class: `swatch ${shade(part)}`, "aria-hidden": "true" }),
                element("span"),
              ),
            (item, part) =>
              setValue(
                item.lastChild,
                `${part.purpose.replaceAll("_", " ")} ${bytes(part.bytes)}`,
                `${part.bytes} bytes`,
              ),
          );
        },
      );
    },
  );
}

function tables(level) {
  const number = (key, title, format, optional) => ({
    title,
    number: true,
    optional,
    text: (table) => format(table[key]),
    exact: (table) => table[key],
  });
  const table = new ItemTable({
    label: "Embedding tables",
    sortable: true,
    keyOf: (table) => table.name,
    columns: [
      { title: "Table", text: (table) => table.name },
      number("rows", "Rows", compact),
      number("dim", "Dimension", whole),
      number("bytes", "Size", bytes),
      { title: "Placement", optional: true, text: (table) => (table.placement ?? MISSING).replaceAll("_", " ") },
      number("host_rows", "In host memory", compact, true),
      number("distinct_ratio", "Distinct", percent, true),
      number("top_share", "Top share", percent, true),
      number("load_ratio", "Rows in use", percent, true),
    ],
  });
  table.sort(3);
  const note = element("p", {
    class: "note",
    text: "Distinct: distinct rows per look-up. Top share: the share of look-ups of the most frequent 1% of the rows.",
  });
  const others = element("p", { class: "note" });
  return section(
    "Embedding tables",
    level,
    [table.root, others, note],
    (view) => some(view.tables),
    (view) => {
      note.hidden = !view.tables.some((one) => finite(one.distinct_ratio) !== null || finite(one.top_share) !== null);
      table.update(view.tables);
      const further = view.further_tables;
      others.hidden = !further;
      if (further) {
        const sums = `${compact(further.rows)} rows and ${bytes(further.bytes)}`;
        setText(others, `Not listed: ${whole(further.count)} smaller tables with ${sums}.`);
      }
    },
  );
}

function processes(level) {
  const table = new ItemTable({
    label: "Processes",
    keyOf: (one) => one.process,
    columns: [
      { title: "Process", text: (one) => String(one.process) },
      { title: "Ranks", text: (one) => (one.last > one.first ? `${one.first}–${one.last}` : String(one.first)) },
      { title: "Host", text: (one) => one.host ?? MISSING },
      { title: "Health", text: (one) => (one.healthy ? "✓ healthy" : "✗ not healthy") },
      { title: "Activity", text: (one) => one.activity ?? MISSING },
      {
        title: "Without progress",
        number: true,
        optional: true,
        text: (one) => duration(one.still_seconds),
        exact: (one) => one.still_seconds,
      },
    ],
  });
  return section(
    "Processes",
    level,
    [table.root],
    (view) => some(view.processes),
    (view) => {
      // All processes have the same number of ranks.
      const each = Math.floor((finite(view.device?.ranks) ?? 1) / view.processes.length);
      const ranksOf = ({ process }) => ({ first: process * each, last: (process + 1) * each - 1 });
      table.update(view.processes.map((one) => ({ ...one, ...ranksOf(one) })));
    },
  );
}

function warnings(level) {
  const list = element("ol", { class: "warnings" });
  return section(
    "Warnings",
    level,
    [list],
    (view) => some(view.warnings),
    (view) => {
      const latest = view.warnings.slice(-ROWS_MAX);
      reconcile(
        list,
        latest,
        (warning, at) => `${warning.time}/${warning.text}/${at}`,
        (warning) =>
          element(
            "li",
            {},
            element("time", {
              datetime: warning.time,
              text: (warning.time ?? "").replace("T", " ").replace(/(\.\d+)?Z$/, " UTC"),
            }),
            element("span", { text: warning.text }),
          ),
        () => {},
      );
    },
  );
}

function settings(level) {
  const table = new ItemTable({
    label: "Settings",
    keyOf: ([key]) => key,
    columns: [
      { title: "Setting", text: ([key]) => key },
      { title: "Value", wrap: true, text: ([, value]) => String(value) },
    ],
  });
  const summary = element("summary");
  const details = element("details", { class: "settings" }, summary, table.root);
  return section(
    "Settings",
    level,
    [details],
    (view) => Object.keys(view.settings ?? {}).length > 0,
    (view) => {
      const entries = Object.entries(view.settings);
      const further = view.further_settings ? ` (${whole(view.further_settings)} more of tables are not listed)` : "";
      setText(summary, `The job's ${entries.length} settings${further}`);
      table.update(entries);
    },
  );
}

/** All sections of a run; headings start at the level. */
function runPage(level) {
  const below = [
    progress, stopping, curves, phases, iteration, evaluation, memory, tables, processes, warnings, settings,
  ];
  const parts = [header(level), ...below.map((make) => make(level + 1))];
  return {
    root: element("article", {}, ...parts.map((part) => part.root)),
    update: (view) => parts.forEach((part) => part.update(view)),
  };
}

// ---- Comparison of runs ----

// Of an evaluation's first head.
const COMPARED_EVALUATIONS = [
  ["AUC", (head) => head.auc, five, (value) => value],
  ["Log loss", (head) => head.log_loss, five, (value) => -value],
  ["Normalized entropy", (head) => head.normalized_entropy, five, (value) => -value],
  ["Calibration", (head) => head.calibration, five, (value) => -Math.abs(value - 1)],
];
const COMPARED = [
  ["Training loss", (view) => view.progress?.loss, small, null],
  ["Rate", (view) => view.progress?.samples_per_second, rate, (value) => value],
  ["Time", (view) => view.progress?.seconds, duration, null],
  ["Power", (view) => view.power?.watts, watts, null],
  ["Joules per million samples", (view) => 1e6 * view.power?.joules_per_sample, small, (value) => -value],
  ["Samples", (view) => view.progress?.samples, compact, null],
  ["Steps", (view) => view.progress?.step, whole, null],
  ["Dense parameters", (view) => view.model?.dense_parameters, compact, null],
  ["Embedding parameters", (view) => view.model?.embedding_parameters, compact, null],
];

/** Returns a short name for each run, which no other run has. */
function labelsOf(views) {
  const names = views.map((view) => (view.run ?? "").split("/").filter(Boolean).at(-1) || view.name || "run");
  return names.map((name, at) => (names.filter((other) => other === name).length > 1 ? `${name} (${at + 1})` : name));
}

/** Returns the values' places that are best; none if all are equally good. */
function bestOf(values, goodness) {
  if (!goodness) return new Set();
  const scores = values.map((value) => (finite(value) === null ? null : goodness(value)));
  const there = scores.filter((score) => score !== null);
  const best = Math.max(...there);
  if (there.length < 2 || there.every((score) => score === best)) return new Set();
  return new Set(scores.flatMap((score, at) => (score === best ? [at] : [])));
}

/**
 * Returns the rows that compare evaluations. A row has evaluations on the same samples only, so that one can be the
 * best; older logs do not tell which samples were evaluated.
 */
function evaluationRows(views) {
  const groups = new Map();
  views.forEach((view, at) =>
    (view.evaluations ?? []).forEach((one) => {
      const key = `${one.name}/${one.samples_checksum ?? `run ${at}`}`;
      if (!groups.has(key)) groups.set(key, { name: one.name, heads: views.map(() => null) });
      groups.get(key).heads[at] = one.heads[0] ?? null;
    }),
  );
  const sameName = (name) => [...groups.values()].filter((group) => group.name === name);
  return [...groups.values()].flatMap((group) => {
    const alike = sameName(group.name);
    const name = alike.length > 1 ? `${group.name}, samples ${alike.indexOf(group) + 1}` : group.name;
    return COMPARED_EVALUATIONS.map(([title, get, format, goodness]) => {
      const values = group.heads.map((head) => finite(head && get(head)));
      return { title: `${title} (${name})`, values, format, best: bestOf(values, goodness) };
    });
  });
}

function comparison(views) {
  const labels = labelsOf(views);
  const columns = (first, cell) => [
    { title: first, text: (row) => row.title },
    ...labels.map((label, at) => ({ title: label, ...cell(at) })),
  ];
  const others = COMPARED.map(([title, get, format, goodness]) => {
    const values = views.map((view) => finite(get(view)));
    return { title, values, format, best: bestOf(values, goodness) };
  });
  const metrics = [...evaluationRows(views), ...others].filter((row) => row.values.some((value) => value !== null));
  const table = new ItemTable({
    label: "Metrics of the runs",
    keyOf: (row) => row.title,
    columns: columns("Metric", (at) => ({
      number: true,
      text: (row) => row.format(row.values[at]),
      exact: (row) => row.values[at],
      mark: (row) => row.best.has(at),
      metric: (row) => `${at}.${row.title}`,
    })),
  });
  table.update(metrics);
  const keys = [...new Set(views.flatMap((view) => Object.keys(view.settings ?? {})))];
  const differing = keys
    .map((title) => ({ title, values: views.map((view) => view.settings?.[title] ?? MISSING) }))
    .filter(({ values }) => values.some((value) => value !== values[0]));
  const changed = new ItemTable({
    label: "Settings that differ",
    keyOf: (row) => row.title,
    columns: columns("Setting", (at) => ({ wrap: true, text: (row) => row.values[at] })),
  });
  changed.update(differing);
  const overlaid = curveCharts(3);
  overlaid.update(views, labels);
  const list = element(
    "ul",
    { class: "runs" },
    ...labels.map((label, at) => element("li", {}, swatch(at), element("a", { href: `#run-${at + 1}`, text: label }))),
  );
  return element(
    "article",
    {},
    element("header", { class: "run-header" }, element("h1", { text: `Comparison of ${views.length} runs` }), list),
    element("section", {}, element("h2", { text: "Metrics" }), table.root),
    element(
      "section",
      {},
      element("h2", { text: "Settings that differ" }),
      differing.length ? changed.root : element("p", { class: "note", text: "The runs have the same settings." }),
    ),
    element("section", {}, element("h2", { text: "Curves" }), overlaid.root),
  );
}

// ---- Start ----

const page = document.getElementById("page");

/** Shows the runs that a report embeds. */
function report(views) {
  document.body.classList.add("report");
  const parts = views.map(() => runPage(views.length > 1 ? 2 : 1));
  parts.forEach((part, at) => {
    part.root.id = `run-${at + 1}`;
  });
  page.replaceChildren(...(views.length > 1 ? [comparison(views)] : []), ...parts.map((part) => part.root));
  parts.forEach((part, at) => part.update(views[at]));
  document.title =
    views.length > 1 ? `Comparison of ${views.length} runs · Rankine` : `${views[0]?.name ?? "run"} · Rankine`;
}

/** Polls the training that serves this page. */
class Live {
  constructor() {
    this.part = null;
    this.timer = null;
    this.busy = false;
    this.received = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(this.timer) : this.poll()));
    this.poll();
  }

  async poll() {
    clearTimeout(this.timer);
    if (this.busy || document.hidden) return;
    this.busy = true;
    let wait = SLOW_POLL_MS;
    try {
      const answer = await fetch("run.json", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const view = await answer.json();
      this.received = new Date();
      this.show(view);
      if (view.state !== "finished") wait = POLL_MS;
      this.notify("");
    } catch {
      const since = this.received ? ` The values are from ${this.received.toLocaleTimeString()}.` : "";
      this.notify(
        `No answer from the training: it has ended, or the connection is lost.${since} Trying again every 10${SPACE}s.`,
      );
    }
    this.busy = false;
    if (!document.hidden) this.timer = setTimeout(() => this.poll(), wait);
  }

  show(view) {
    if (!this.part) {
      this.part = runPage(1);
      page.replaceChildren(this.part.root);
    }
    this.part.update(view);
    const { samples, total_samples: total } = view.progress ?? {};
    const goesOn = total > 0 && view.state !== "finished";
    const share = goesOn ? `${Math.floor(100 * Math.min(samples / total, 1))}% · ` : "";
    document.title = `${share}${view.name ?? "run"} · Rankine`;
  }

  notify(text) {
    setText(document.getElementById("notice"), text);
  }
}

const embedded = document.getElementById("runs");
if (embedded) report(JSON.parse(embedded.textContent));
else new Live();
