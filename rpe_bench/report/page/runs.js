// The table of runs, and the view of a single one.

const COLUMNS = [
  { name: "run", of: (run) => data.runs.directory[run] },
  { name: "status", of: (run) => data.runs.status[run] },
  { name: "task", of: taskOf },
  { name: "encoding", of: encodingOf },
  { name: "seed", numeric: true, of: (run) => data.runs.seed[run] },
  { name: "at training length", numeric: true, of: (run) => accuracyAt(run, "trained"), said: (x) => measured(METRICS.token_accuracy, x) },
  { name: "at the longest", numeric: true, of: (run) => accuracyAt(run, "longest"), said: (x) => measured(METRICS.token_accuracy, x) },
  { name: "holds up to", numeric: true, of: (run) => data.runs.effective_length[run], said: heldUpTo },
  { name: "last loss", numeric: true, of: lastLoss, said: (x) => number(x) },
  { name: "train length", numeric: true, of: (run) => data.runs.train_length[run] },
  { name: "recipe", of: (run) => data.runs.recipe[run] },
  { name: "model", of: (run) => data.runs.model[run] },
  { name: "parameters", numeric: true, of: (run) => data.runs.parameters[run], said: (x) => number(x) },
  { name: "training", numeric: true, of: (run) => data.runs.train_seconds[run], said: duration },
  { name: "started", of: (run) => data.runs.started[run], said: (text) => (text ?? "").slice(0, 16).replace("T", " ") },
];

let allowed = 200; // rows at a time

function accuracyAt(run, where) {
  const scores = data.scores[run]?.lengths;
  if (!scores) return null;
  const { lengths, train_length: trained } = data.tasks[taskNumber(taskOf(run))];
  const known = [...lengths.length.keys()].filter((cell) => scores.token_accuracy[cell] !== null);
  const cell = where === "trained" ? known.findLast((at) => lengths.length[at] <= trained) : known.at(-1);
  return cell === undefined ? null : scores.token_accuracy[cell];
}

function heldUpTo(length, run) {
  return length === null ? "–" : `${data.runs.at_limit[run] ? "≥ " : ""}${number(length)}`;
}

function lastLoss(run) {
  return data.scores[run]?.training?.loss.at(-1) ?? null;
}

function drawRuns() {
  const section = byId("runs");
  const statuses = data.statuses.map((status) => [status, data.runs.status.filter((one) => one === status).length]).filter(([, n]) => n);
  state.status = offer(byId("status"), [["", `any (${data.runs.status.length})`], ...statuses.map(([status, n]) => [status, `${status} (${n})`])], state.status);
  offer(byId("column"), [["", "…"], ...varyingKeys().filter((key) => !state.columns.includes(key)).map((key) => [key, key])], "");
  const columns = [...COLUMNS, ...state.columns.map((key) => ({ name: key, config: key, of: (run) => data.configs[key]?.[run] ?? null }))];
  const found = sorted(matching(), columns);
  const reasons = found.some((run) => data.runs.reason[run]);
  section.querySelector("[role=status]").textContent = `${found.length} of ${data.runs.directory.length} run directories. Accuracies are of tokens.`;
  section.querySelector("thead").replaceChildren(html("tr", {}, ...columns.map(head), reasons ? html("th", { scope: "col" }, "why it is in no average") : null));
  section.querySelector("tbody").replaceChildren(...found.slice(0, allowed).map((run) => runRow(run, columns, reasons)));
  const more = byId("more");
  more.hidden = found.length <= allowed;
  more.textContent = `Show ${Math.min(500, found.length - allowed)} more of ${found.length - allowed}`;
}

function head(column) {
  const up = state.sort === column.name ? !state.down : null;
  const sort = html("button", { type: "button", id: `sort-${column.name}`, onclick: () => choose({ sort: column.name, down: up === true }) }, `${column.name}${up === null ? "" : up ? " ▲" : " ▼"}`);
  const remove = column.config ? html("button", { type: "button", "aria-label": `remove the column ${column.name}`, onclick: () => choose({ columns: state.columns.filter((key) => key !== column.config) }) }, "×") : null;
  return html("th", { scope: "col", class: column.numeric ? "number" : null, "aria-sort": up === null ? "none" : up ? "ascending" : "descending" }, sort, remove);
}

function runRow(run, columns, reasons) {
  const directory = data.runs.directory[run];
  const cells = columns.slice(1).map((column) => {
    const found = column.of(run);
    const text = column.said ? column.said(found, run) : found === null || found === undefined ? "–" : String(found);
    const bad = column.name === "status" && found !== "finished" ? "bad" : null;
    return html("td", { class: column.numeric ? "number" : bad }, text);
  });
  const link = html("a", { href: `#${new URLSearchParams({ run: directory })}`, id: `run-${directory}` }, directory);
  return html("tr", {}, html("td", { class: "name" }, link), ...cells, reasons ? html("td", { class: "reason" }, data.runs.reason[run] ?? "") : null);
}

/** Runs by number that meet all words looked for, in what they are called or in a `key=value` of their config. */
function matching() {
  const words = state.search.toLowerCase().split(/\s+/).filter(Boolean);
  const keys = words.some((word) => word.includes("=")) ? Object.keys(data.configs) : [];
  const text = (run) => {
    const about = ["directory", "status", "reason", "recipe", "model", "device", "commit"].map((name) => data.runs[name][run] ?? "");
    const config = keys.map((key) => `${key}=${data.configs[key][run] ?? ""}`);
    return [...about, taskOf(run), encodingOf(run), ...config].join("\n").toLowerCase();
  };
  const isShown = (run) => taskOf(run) === data.tasks[chosenTask()]?.label && isChosen(encodingOf(run));
  return [...data.runs.directory.keys()].filter(
    (run) =>
      (!state.status || data.runs.status[run] === state.status) &&
      (!state.shown || isShown(run)) &&
      (!words.length || words.every((word) => text(run).includes(word))),
  );
}

/** In the order of a column, those that have nothing there last. */
function sorted(runs, columns) {
  const column = columns.find(({ name }) => name === state.sort);
  if (!column) return runs;
  const values = new Map(runs.map((run) => [run, column.of(run) ?? null]));
  const order = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  const known = runs.filter((run) => values.get(run) !== null);
  const rest = runs.filter((run) => values.get(run) === null);
  known.sort((a, b) => (state.down ? -1 : 1) * order(values.get(a), values.get(b)));
  return [...known, ...rest];
}

// A single run

function drawRun(directory) {
  const view = byId("run");
  const run = runNumber(directory);
  const back = html("p", {}, html("a", { href: `#${overviewHash()}`, id: "back" }, "← all runs"));
  if (run < 0) {
    view.replaceChildren(back, html("section", {}, html("h2", {}, directory), html("p", {}, "There is no such run here.")));
    return;
  }
  const scores = data.scores[run] ?? {};
  const parts = [facts(run), scores.training && trainingOf(run), scores.lengths && lengthsOf(run), scores.lengths && positionsOf(run), attentionOf(run), configOf(run)];
  const drawings = parts.filter(Boolean);
  view.replaceChildren(back, ...drawings.map(({ section }) => section));
  for (const { draw } of drawings) draw?.(); // once they are in the page, and have a width
}

function section(title, ...children) {
  return html("section", {}, html("h2", {}, title), ...children);
}

function facts(run) {
  const of = (name) => data.runs[name][run] ?? null;
  const rows = [
    ["status", of("status")],
    ["why it is in no average", of("reason")],
    ["task", taskOf(run)],
    ["encoding", encodingOf(run)],
    ["seed", of("seed")],
    ["recipe, model", [of("recipe"), of("model")].filter(Boolean).join(", ")],
    ["training length", of("train_length")],
    ["holds up to", of("effective_length") === null ? null : heldUpTo(of("effective_length"), run)],
    ["parameters", of("parameters") === null ? null : `${number(of("parameters"))}, of which the encoding has ${number(of("encoding_parameters"))}`],
    ["training took", of("train_seconds") === null ? null : `${duration(of("train_seconds"))}, ${number(of("tokens_per_second"))} tokens a second`],
    ["device", of("device") === null ? null : `${of("device")}, ${of("threads")} threads`],
    ["started", of("started")],
    ["commit", of("commit") === null ? null : `${of("commit").slice(0, 12)}${of("dirty") ? ", with changes" : ""}`],
  ].filter(([, text]) => text !== null && text !== "");
  const siblings = data.lines.find((line) => line.runs.includes(run))?.runs.filter((other) => other !== run) ?? [];
  const links = siblings.map((other) => html("a", { href: `#${new URLSearchParams({ run: data.runs.directory[other] })}` }, `seed ${data.runs.seed[other]}`));
  const list = rows.flatMap(([name, text]) => [html("dt", {}, name), html("dd", { class: name === "status" && text !== "finished" ? "bad" : null }, String(text))]);
  if (links.length) list.push(html("dt", {}, "the same but for the seed"), html("dd", {}, ...links.flatMap((link) => [link, " "])));
  return { section: section(data.runs.directory[run], html("dl", { class: "facts" }, ...list)) };
}

function lookOf(run) {
  return data.encodings.find(({ label }) => label === encodingOf(run)) ?? { colour: "#0072B2", dashes: [], marker: "o" };
}

/** A section with one chart. */
function charted(title, spec, ...children) {
  const box = html("div", { class: "chart" });
  return { section: section(title, box, ...children), draw: () => drawChart(box, { label: title, ...spec }) };
}

function trainingOf(run) {
  const { training, validation } = data.scores[run];
  const series = [{ name: "training", look: lookOf(run), points: lossPoints(training), seeds: [], bare: true }];
  if (validation) series.push({ name: "validation", look: { colour: "#000000", dashes: [4, 2], marker: "s" }, points: lossPoints(validation), seeds: [] });
  return charted("Training loss by step", { x: { label: "step" }, y: lossAxis(series), series });
}

function lengthsOf(run) {
  const task = data.tasks[taskNumber(taskOf(run))];
  const scores = data.scores[run].lengths;
  const cells = [...task.lengths.length.keys()].filter((cell) => scores.loss[cell] !== null || scores.token_accuracy[cell] !== null);
  const xs = cells.map((cell) => task.lengths.length[cell]);
  const curve = (metric, look) => ({ name: metric.label, look, points: cells.map((cell, place) => ({ x: xs[place], y: scores[metric.of][cell] })), seeds: [] });
  const series = [curve(METRICS.token_accuracy, lookOf(run)), curve(METRICS.exact_match, { ...lookOf(run), dashes: [2, 2], marker: "s" })];
  const row = (name, of, cell) => [name, ...Object.values(METRICS).map((metric) => measured(metric, value(metric, of[metric.of][cell])))];
  const rows = cells.map((cell) => row(`${number(task.lengths.length[cell])} (${multiple(task.lengths.ratio[cell])})`, scores, cell));
  const trainedOn = data.scores[run].training_set;
  if (trainedOn) trainedOn.length.forEach((length, cell) => rows.push(row(`training set (${length})`, trainedOn, cell)));
  const numbers = table([["length"], ...Object.values(METRICS).map(({ label }) => [label, 1])], rows);
  const spec = { x: { label: "length", log: true, ticks: xs }, y: { label: "accuracy", ...SHARE }, series, rules: [{ x: task.train_length, name: "training length" }] };
  return charted("By length", { ...spec, heading: (x) => `length ${x}` }, numbers);
}

/** The training length, about twice that and the longest one, as in the figures. */
function positionsOf(run) {
  const task = data.tasks[taskNumber(taskOf(run))];
  const grid = task.positions;
  const lengths = unique(grid.length);
  if (!lengths.length || lengths.length === grid.length.length) return null; // a single answer: the same as by length
  if (!data.scores[run].positions) return { section: section("Perplexity by position", html("p", { class: "note" }, "Not on this page, which has too many runs for it; positions.csv of the run has it.")) };
  const near = (wanted) => lengths.reduce((best, length) => (Math.abs(Math.log(length / wanted)) < Math.abs(Math.log(best / wanted)) ? length : best));
  const panels = unique([near(task.train_length), near(2 * task.train_length), Math.max(...lengths)]);
  const looks = [{ dashes: [] }, { dashes: [4, 2] }, { dashes: [1, 1] }];
  const loss = data.scores[run].positions.loss;
  const series = panels.map((length, place) => ({
    name: `length ${length}`,
    look: { ...lookOf(run), ...looks[place] },
    bare: true,
    seeds: [],
    points: cellsWhere(grid, { length }).map((cell) => ({ x: (grid.start[cell] + grid.stop[cell]) / 2, y: finite(value(MEASURES.perplexity, loss[cell])) })),
  }));
  return charted("Perplexity by position", { x: { label: "position in the sequence" }, y: axisOf(MEASURES.perplexity), series, rules: [{ x: task.train_tokens - 0.5, name: "longest training sequence" }] });
}

function configOf(run) {
  const varying = new Set(varyingKeys());
  const keys = Object.keys(data.configs).filter((key) => data.configs[key][run] !== null && data.configs[key][run] !== undefined);
  if (!keys.length) return null;
  const rows = keys.map((key) => html("tr", { class: varying.has(key) ? "varies" : null }, html("th", { scope: "row" }, key), html("td", {}, data.configs[key][run])));
  return { section: section("Config", html("p", { class: "note" }, "Marked: what is not the same in all runs here."), html("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "config" }, html("table", {}, html("tbody", {}, ...rows)))) };
}

// Attention of a run's heads

/** A head by its colour and marker, a layer by its dashes. */
function headLook(layer, head) {
  const { colour, marker } = data.looks[head % data.looks.length];
  return { colour, marker, dashes: data.looks[layer % data.looks.length].dashes };
}

function attentionOf(run) {
  const attention = data.scores[run]?.attention;
  if (!attention) return null;
  const whole = section("Attention");
  if (attention.problem) {
    whole.append(html("p", { class: "note bad" }, attention.problem));
    return { section: whole };
  }
  const trained = data.runs.train_length[run];
  const drawings = [
    headChart(attention.heads, "distance_mean", "Mean attention distance", trained),
    headChart(attention.heads, "entropy_share", "Entropy, as a share of the greatest there can be", trained),
    headChart(attention.heads, "unseen_share", "Share of attention on offsets never trained on", trained),
    attention.kernel && kernelChart(attention.kernel),
  ].filter(Boolean);
  const grid = html("div", { class: "pair" });
  whole.append(html("p", { class: "note" }, "Layers and heads are counted from 0."), grid);
  const boxes = drawings.map(([title, spec]) => {
    const box = html("div", { class: "chart" });
    grid.append(html("div", {}, html("h3", {}, title), box));
    return () => drawChart(box, { label: title, height: 260, legend: true, ...spec });
  });
  for (const part of attention.by_distance ?? []) whole.append(weightMap(part));
  return { section: whole, draw: () => boxes.forEach((draw) => draw()) };
}

function headChart(heads, column, title, trained) {
  const rowsOf = new Map();
  for (const row of heads.length.keys()) {
    const key = `${heads.layer[row]} ${heads.head[row]}`;
    rowsOf.set(key, [...(rowsOf.get(key) ?? []), row]);
  }
  const series = [...rowsOf.values()].map((rows) => ({
    ...seriesOfHead(heads.layer[rows[0]], heads.head[rows[0]]),
    points: rows.map((row) => ({ x: heads.length[row], y: heads[column][row] })),
  }));
  const x = { label: "length", log: true, ticks: unique(heads.length) };
  const y = column === "distance_mean" ? { label: "tokens", from: 0 } : { label: "share", ...SHARE };
  return [`${title}, by length`, { x, y, series, rules: [{ x: trained, name: "training length" }], heading: (at) => `length ${at}` }];
}

function seriesOfHead(layer, head) {
  return { name: `layer ${layer}, head ${head}`, look: headLook(layer, head), seeds: [] };
}

function kernelChart(kernel) {
  const x = kernel.start.map((start, bin) => (start + kernel.stop[bin]) / 2);
  const series = kernel.heads.map(([layer, head], place) => ({
    ...seriesOfHead(layer, head),
    points: x.map((at, bin) => ({ x: at, y: kernel.values[place][bin] })),
  }));
  return [`What an offset adds to a logit, at length ${kernel.length}`, { x: { label: "offset, key - query" }, y: { label: "logit" }, series }];
}

/** The weight that a head puts on a key at each distance, on a logarithmic scale of colours. */
function weightMap(part) {
  const known = part.values.flat().filter((weight) => weight > 0);
  const most = Math.max(...known);
  const least = Math.max(1e-5, Math.min(...known, most / 100));
  const share = (weight) => (weight > 0 ? Math.log(weight / least) / Math.log(most / least) : 0);
  const rows = part.heads.map(([layer, head]) => `${layer}.${head}`);
  const columns = part.start.map((start, bin) => (start === part.stop[bin] ? String(start) : `${start}–${part.stop[bin]}`));
  const cells = part.values.map((row, head) =>
    row.map((weight, bin) => (weight === null ? null : { share: share(weight), said: `layer and head ${rows[head]}, distance ${columns[bin]}: ${number(weight)}` })),
  );
  const title = `Weight by distance, at length ${part.length}`;
  const map = heatMap(title, part.start.map(String), rows, cells, { x: "distance", y: "layer.head", said: "weight of each head by distance" });
  const numbers = html("details", { class: "numbers" }, html("summary", {}, "Numbers"));
  const box = html("div", { class: "weights" }, html("div", { class: "maps" }, map), rampLegend(number(least), number(most), "mean weight of a query on what is at that distance"), numbers);
  numbersOf(box, [["layer.head"], ...columns.map((text) => [text, 1])], () => rows.map((row, head) => [row, ...part.values[head].map((weight) => number(weight))]));
  return box;
}
