// The panels of the overview: what of the data each draws, given what is chosen in `state`.

const SHARE = { from: 0, range: [-0.02, 1.03], format: (x) => x.toFixed(1), said: (x) => x.toFixed(3) };

function chosenTask() {
  return taskNumber(state.task);
}

function isChosen(label) {
  return !state.only || state.only.includes(label);
}

function chosenLines() {
  return linesOf(chosenTask()).filter((line) => isChosen(data.encodings[line.encoding].label));
}

function look(line) {
  return data.encodings[line.encoding];
}

function panel(id) {
  const section = byId(id);
  return { section, title: section.querySelector("h2"), note: section.querySelector(".note"), box: section.querySelector(".chart") };
}

/** The vertical axis of a metric or measure. */
function axisOf(metric) {
  if (metric.share) return { label: metric.label, ...SHARE };
  if (metric.exp) return { label: metric.label, log: true, from: 1, said: (x) => number(x, 4) };
  return { label: metric.label, from: 0, said: (x) => number(x, 4) };
}

const SINGLE_LINES = 600; // in a chart: more can't be told apart, and take seconds to draw

/** The runs of a line that are drawn one by one: those that have what is drawn, the first ones where they are many. */
function singleRuns(line, has) {
  return line.runs.filter(has).slice(0, Math.max(1, Math.floor(SINGLE_LINES / chosenLines().length)));
}

/** Says so where they are not all of them. */
function aboutSingles(lines, has) {
  const left = lines.filter((line) => singleRuns(line, has).length < line.runs.length);
  if (!left.length) return "";
  const drawn = left.map((line) => singleRuns(line, has).length);
  return ` Single lines: of ${seedCount(left.map((line) => line.runs.length))} of an encoding, ${seedCount(drawn)}, the lowest.`;
}

/** Points of a line over the cells of its grid, and those of its seeds; ends: which columns bound its band. */
function seriesOf(line, grid, cells, metric, xOf, ends) {
  const column = line[grid]?.[metric.of];
  if (!column) return { name: look(line).label, look: look(line), points: [], seeds: [] };
  const point = (cell, values) => ({ x: xOf(cell), y: finite(value(metric, values.mean[cell])), low: value(metric, values[ends[0]]?.[cell]), high: value(metric, values[ends[1]]?.[cell]) });
  const seedPoints = (run) => cells.map((cell) => ({ x: xOf(cell), y: finite(value(metric, data.scores[run]?.[grid]?.[metric.of][cell])) }));
  return {
    name: look(line).label,
    look: look(line),
    points: cells.map((cell) => point(cell, column)),
    seeds: state.seeds ? singleRuns(line, hasScores(grid)).map(seedPoints) : [],
  };
}

function hasScores(grid) {
  return (run) => Boolean(data.scores[run]?.[grid]);
}

/** Null, a gap, for what no chart has room for: the perplexity of a model that is certain and wrong. */
function finite(y) {
  return y !== null && Math.abs(y) < 1e15 ? y : null;
}

function countsOf(lines, grid, cells) {
  return lines.flatMap((line) => (line[grid] ? cells.map((cell) => seeds(line[grid], cell)) : [])).filter((n) => n);
}

/** `mean of 3 seeds; band: ...`, and what is to be known of single ones. */
function aboutSeeds(metric, counts, bandText) {
  if (!counts.length) return "no run of what is chosen";
  const mean = metric.exp ? "geometric mean" : "mean";
  if (Math.max(...counts) === 1) return "1 seed, no interval";
  const single = Math.min(...counts) === 1 ? "; a line of a single seed has none" : "";
  return `${mean} of ${seedCount(counts)}${state.bands ? `; band: ${bandText}${single}` : ""}`;
}

function missingIn(series) {
  const names = series.filter((one) => one.points.some((point) => point.y === null)).map((one) => one.name);
  return names.length ? ` Not finite in places: ${names.join(", ")}.` : "";
}

// By length

function drawLengths() {
  const { section, title, note, box } = panel("lengths");
  const task = data.tasks[chosenTask()];
  const metric = METRICS[state.metric];
  const cells = [...task.lengths.length.keys()];
  const xs = task.lengths[state.axis];
  const lines = chosenLines();
  const series = lines.map((line) => seriesOf(line, "lengths", cells, metric, (cell) => xs[cell], ["low", "high"]));
  title.textContent = `${capital(metric.label)} by length: ${task.label}`;
  const about = aboutSeeds(metric, countsOf(lines, "lengths", cells), "95 % interval of the mean");
  note.textContent = `Trained up to length ${task.train_length}; ${about}.${missingIn(series)}${state.seeds ? aboutSingles(lines, hasScores("lengths")) : ""}`;
  drawChart(box, {
    label: title.textContent,
    x: { label: state.axis === "ratio" ? "length / training length" : "length", log: state.log, ticks: unique(xs), format: (x) => number(x, 4) },
    y: axisOf(metric),
    heading: (x) => `length ${xs === task.lengths.length ? x : task.lengths.length[xs.indexOf(x)]} (${multiple(task.lengths.ratio[xs.indexOf(x)])})`,
    series,
    bands: state.bands,
    baselines: baselinesOf(task, metric, xs),
    rules: [{ x: state.axis === "ratio" ? 1 : task.train_length, name: "training length" }],
  });
  numbersOf(section, [["encoding"], ["length", 1], ["× training", 1], ["seeds", 1], ["mean", 1], ["low", 1], ["high", 1]], () =>
    lines.flatMap((line) =>
      cells.map((cell) => {
        const values = line.lengths[metric.of];
        const said = (kind) => measured(metric, value(metric, values[kind]?.[cell]));
        return [look(line).label, number(task.lengths.length[cell]), number(task.lengths.ratio[cell], 4), seeds(line.lengths, cell), said("mean"), said("low"), said("high")];
      }),
    ),
  );
}

function baselinesOf(task, metric, xs) {
  const points = (column) => xs.map((x, cell) => ({ x, y: value(metric, task.lengths[column][cell]) }));
  if (metric === METRICS.token_accuracy) {
    return [
      { name: "chance", dashes: "7 4", points: points("chance") },
      { name: "always the most frequent answer", dashes: "1.5 3", points: points("majority") },
    ];
  }
  return metric.of === "loss" && task.lengths.floor ? [{ name: "entropy floor", dashes: "1.5 3", points: points("floor") }] : [];
}

// By position

function drawPositions() {
  const { section, title, note, box } = panel("positions");
  const task = data.tasks[chosenTask()];
  const grid = task.positions;
  const lengths = unique(grid.length);
  section.hidden = !lengths.length;
  if (section.hidden) return;
  state.measure = offer(byId("measure"), Object.entries(MEASURES).map(([name, { label }]) => [name, label]), state.measure);
  const single = grid.length.length === lengths.length; // one answer in a sequence: across lengths instead
  for (const element of [byId("at"), section.querySelector("[for=at]")]) element.hidden = single;
  const longest = String(Math.max(...lengths));
  const at = offer(byId("at"), lengths.map((length) => [String(length), `${length} (${multiple(length / task.train_length)})`]), state.at || longest);
  const cells = single ? [...grid.length.keys()] : cellsWhere(grid, { length: Number(at) });
  const metric = MEASURES[state.measure];
  const lines = chosenLines();
  const xOf = (cell) => (grid.start[cell] + grid.stop[cell]) / 2;
  const series = lines.map((line) => seriesOf(line, "positions", cells, metric, xOf, ["min", "max"]));
  title.textContent = `${capital(metric.label)} by position${single ? " of the answer" : ""}: ${task.label}`;
  const widest = Math.max(...cells.map((cell) => grid.stop[cell] - grid.start[cell] + 1));
  const binned = widest > 1 ? ` Each point is of up to ${widest} positions.` : "";
  const about = aboutSeeds(metric, countsOf(lines, "positions", cells), "range of the seeds");
  note.textContent = `${single ? "One answer in a sequence: every length has its position" : `Sequences of length ${at}`}, trained on up to ${task.train_tokens} tokens; ${about}.${binned}${missingIn(series)}${state.seeds ? aboutSingles(lines, hasScores("positions")) : ""}`;
  const positionAt = (x) => cells.find((cell) => xOf(cell) === x);
  drawChart(box, {
    label: title.textContent,
    x: { label: "position in the sequence", log: single && state.log, ticks: single ? cells.map(xOf) : null },
    y: axisOf(metric),
    heading: (x) => `position ${range(grid.start[positionAt(x)], grid.stop[positionAt(x)])}`,
    series,
    bands: state.bands,
    baselines: grid.floor && metric.of === "loss" ? [{ name: "entropy floor", dashes: "1.5 3", points: cells.map((cell) => ({ x: xOf(cell), y: value(metric, grid.floor[cell]) })) }] : [],
    rules: [{ x: task.train_tokens - (single ? 1 : 0.5), name: "longest training sequence" }],
  });
  numbersOf(section, [["encoding"], ["length", 1], ["positions", 1], ["seeds", 1], ["mean", 1], ["least", 1], ["most", 1]], () =>
    lines.filter((line) => line.positions).flatMap((line) =>
      cells.map((cell) => {
        const values = line.positions[metric.of];
        const said = (kind) => measured(metric, value(metric, values[kind]?.[cell]));
        return [look(line).label, number(grid.length[cell]), range(grid.start[cell], grid.stop[cell]), seeds(line.positions, cell), said("mean"), said("min"), said("max")];
      }),
    ),
  );
}

// Heat maps of slices by length

function drawSlices() {
  const { section, title, note, box } = panel("slices");
  const task = data.tasks[chosenTask()];
  const names = unique(task.slices.slice);
  section.hidden = !names.length;
  if (section.hidden) return;
  const name = offer(byId("slice"), names.map((slice) => [slice, slice.replaceAll("_", " ")]), state.slice);
  const grid = task[state.scaled];
  const cells = cellsWhere(grid, { slice: name });
  const lengths = unique(cells.map((cell) => grid.length[cell])).sort((a, b) => a - b);
  const starts = unique(cells.map((cell) => grid.start[cell])).sort((a, b) => a - b);
  const stopAt = (start) => Math.max(...cells.filter((cell) => grid.start[cell] === start).map((cell) => grid.stop[cell]));
  const share = state.scaled === "shares";
  const rows = starts.map((start) => (share ? `${start}–${stopAt(start)} %` : start === stopAt(start) ? String(start) : `${start}–${stopAt(start)}`));
  const said = name.replaceAll("_", " ");
  const lines = chosenLines().filter((line) => line[state.scaled]);
  title.textContent = `Accuracy by ${said} and length: ${task.label}`;
  const counts = countsOf(lines, state.scaled, cells);
  note.textContent = `${counts.length && Math.max(...counts) > 1 ? `Mean of ${seedCount(counts)}` : "1 seed"}; the line marks the training length${share ? `; ${said} as a share of the greatest at each length` : ""}.`;
  const columns = lengths.map(String);
  const maps = lines.map((line) => {
    const at = new Map(cells.map((cell) => [`${grid.start[cell]} ${grid.length[cell]}`, line[state.scaled].accuracy.mean[cell]]));
    const known = starts.map((start, row) =>
      lengths.map((length) => {
        const accuracy = at.get(`${start} ${length}`);
        return accuracy === undefined || accuracy === null ? null : { share: accuracy, said: `${said} ${rows[row]}, length ${length}: ${accuracy.toFixed(3)}` };
      }),
    );
    const boundary = lengths.filter((length) => length <= task.train_length).length;
    return heatMap(look(line).label, columns, rows, known, { x: "length", y: said, said: `accuracy by ${said} and length`, boundary });
  });
  box.replaceChildren(html("div", { class: "maps" }, ...maps), rampLegend("0", "1", "accuracy; nothing there: no such example"));
  numbersOf(section, [["encoding"], ["length", 1], [said, 1], ["seeds", 1], ["accuracy", 1]], () =>
    lines.flatMap((line) => cells.map((cell) => [look(line).label, number(grid.length[cell]), rows[starts.indexOf(grid.start[cell])], seeds(line[state.scaled], cell), number(line[state.scaled].accuracy.mean[cell])])),
  );
}

// Effective lengths

function drawOverview() {
  const { section, note } = panel("overview");
  section.hidden = !data.tasks.length;
  note.textContent = `The longest evaluated length up to which exact match stays at or above ${data.threshold}, as a multiple of the training length: mean over seeds. ≥ where a seed held as far as was evaluated, 0 where it fails at the training length, – where no run of a task gets there.`;
  const encodings = data.encodings.map(({ label }, place) => ({ label, place })).filter(({ label }) => isChosen(label));
  const heads = data.tasks.map((task, place) =>
    html("th", { scope: "col", class: "number" }, html("button", { type: "button", id: `task-${place}`, "aria-pressed": String(place === chosenTask()), class: place === chosenTask() ? "chosen" : null, onclick: () => choose({ task: task.label, at: "", reached: "" }) }, task.label)),
  );
  const at = new Map(data.lines.map((line) => [`${line.task} ${line.encoding}`, line]));
  const rows = encodings.map(({ label, place }) =>
    html("tr", { "data-name": label }, html("th", { scope: "row" }, label), ...data.tasks.map((task, number) => html("td", {}, heldCell(task, at.get(`${number} ${place}`))))),
  );
  section.querySelector(".scroll").replaceChildren(html("table", { class: "cells" }, html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "encoding"), ...heads)), html("tbody", {}, ...rows)));
}

function heldCell(task, line) {
  if (!line) return "";
  const { mean, at_limit: atLimit } = line.effective;
  if (mean === null || linesOf(line.task).every((other) => !other.effective.max)) return "–";
  const longest = Math.max(...task.lengths.ratio);
  const ratio = mean / task.train_length;
  const cell = html("span", { title: `length ${number(mean)}, ${seedCount([line.runs.length])}` }, `${atLimit ? "≥ " : ""}${multiple(ratio)}`);
  // The same colours as in the heat maps, by doublings up to what was evaluated.
  const share = ratio < 1 ? ratio / 4 : 0.25 + (0.75 * Math.log(ratio)) / Math.max(Math.log(2), Math.log(longest));
  cell.style.background = ramp(share);
  cell.style.color = share > 0.5 ? "#111" : "#fff";
  return cell;
}

// Accuracy against cost

function drawCost() {
  const { section, title, note, box } = panel("cost");
  const task = data.tasks[chosenTask()];
  const metric = METRICS[state.metric];
  const lengths = task.lengths.length;
  const longest = String(Math.max(...lengths));
  const reached = offer(byId("reached"), lengths.map((length, cell) => [String(length), `${length} (${multiple(task.lengths.ratio[cell])})`]), state.reached || longest);
  const cell = lengths.indexOf(Number(reached));
  const spent = state.spent;
  const lines = chosenLines().filter((line) => line.cost[spent]);
  const series = lines.map((line) => {
    const x = line.cost[spent].mean;
    const one = seriesOf(line, "lengths", [cell], metric, () => x, ["low", "high"]);
    const of = (run) => [{ x: data.runs[spent][run], y: finite(value(metric, data.scores[run]?.lengths[metric.of][cell])) }];
    return { ...one, scatter: true, seeds: state.seeds ? singleRuns(line, hasScores("lengths")).map(of) : [] };
  });
  const xs = series.flatMap((one) => [...one.points, ...one.seeds.flat()]).map((point) => point.x);
  const [low, high] = extent(xs);
  title.textContent = `${capital(metric.label)} against cost: ${task.label}`;
  note.textContent = `${capital(aboutSeeds(metric, countsOf(lines, "lengths", [cell]), "95 % interval"))}${spent === "train_seconds" ? "; seconds depend on the machine and what else it did" : ""}.${state.seeds ? aboutSingles(lines, hasScores("lengths")) : ""}`;
  const label = spent === "parameters" ? "parameters" : "seconds of training, mean over seeds";
  drawChart(box, {
    label: title.textContent,
    x: { label, log: high > 4 * low && low > 0 },
    y: axisOf(metric),
    heading: (x) => (spent === "parameters" ? `${number(x)} parameters` : duration(x)),
    series,
    bands: state.bands,
    empty: "Of these runs it is not known.",
  });
  numbersOf(section, [["encoding"], ["seeds", 1], [label, 1], ["least", 1], ["most", 1], [`${metric.label} at ${reached}`, 1]], () =>
    lines.map((line) => {
      const { mean, min, max } = line.cost[spent];
      return [look(line).label, line.runs.length, number(mean), number(min), number(max), measured(metric, value(metric, line.lengths[metric.of].mean[cell]))];
    }),
  );
}

// Curves of training

function drawTraining() {
  const { note, box } = panel("training");
  const lines = chosenLines();
  const has = hasScores("training");
  const series = lines.map((line) => ({ name: look(line).label, look: look(line), points: [], seeds: singleRuns(line, has).map((run) => lossPoints(data.scores[run].training)) }));
  note.textContent = `A seed is a line; means of the batches between two records.${aboutSingles(lines, has)}`;
  drawChart(box, { label: `training loss by step: ${data.tasks[chosenTask()].label}`, x: { label: "step" }, y: lossAxis(series), series });
}

/** A loss of 0, which a logarithmic axis has no room for, is a gap. */
function lossPoints(curve) {
  return stepsOf(curve).map((x, place) => ({ x, y: curve.loss[place] > 0 ? finite(curve.loss[place]) : null }));
}

/** Logarithmic where losses are far apart. */
function lossAxis(series) {
  const losses = series.flatMap((one) => [...one.points, ...one.seeds.flat()]).map((point) => point.y).filter((y) => y !== null);
  const [low, high] = extent(losses);
  const log = high > 5 * low;
  return { label: "loss", log, said: (x) => number(x, 4), ...(log ? {} : { from: 0 }) };
}
