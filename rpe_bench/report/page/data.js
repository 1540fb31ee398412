// What the page knows: the JSON that report/dashboard.py describes, with its coded columns spelled out.

const METRICS = {
  token_accuracy: { label: "token accuracy", of: "token_accuracy", share: true },
  exact_match: { label: "exact match", of: "exact_match", share: true },
  loss: { label: "loss", of: "loss" },
  perplexity: { label: "perplexity", of: "loss", exp: true },
};

const MEASURES = {
  perplexity: { label: "perplexity", of: "loss", exp: true },
  loss: { label: "loss", of: "loss" },
  accuracy: { label: "accuracy", of: "accuracy", share: true },
};

let data = spelledOut(JSON.parse(document.getElementById("data").textContent));

function spelledOut(raw) {
  const columns = (table) => Object.fromEntries(Object.entries(table).map(([name, column]) => [name, listed(column)]));
  raw.runs = columns(raw.runs);
  raw.configs = columns(raw.configs);
  for (const task of raw.tasks)
    for (const grid of ["lengths", "positions", "slices", "shares"]) task[grid] = columns(task[grid]);
  return raw;
}

function listed(column) {
  if (Array.isArray(column)) return column;
  if (!column.of) return Array(column.count).fill(column.values[0]);
  return column.of.map((code) => (code < 0 ? null : column.values[code]));
}

function value(metric, number) {
  return number === null || number === undefined ? null : metric.exp ? Math.exp(number) : number;
}

function taskNumber(label) {
  return Math.max(0, data.tasks.findIndex((task) => task.label === label));
}

function linesOf(task) {
  return data.lines.filter((line) => line.task === task);
}

/** How many seeds are behind a cell of a line's grid. */
function seeds(grid, cell) {
  return Array.isArray(grid.n) ? grid.n[cell] : grid.n;
}

/** The numbers of the cells of a task's grid for which a column has a value. */
function cellsWhere(grid, wanted) {
  const columns = Object.entries(wanted);
  const [first] = Object.values(grid);
  return first.map((_, cell) => cell).filter((cell) => columns.every(([name, is]) => grid[name][cell] === is));
}

function unique(values) {
  return [...new Set(values)];
}

/** Steps of a curve of training. */
function stepsOf(curve) {
  if (Array.isArray(curve.steps)) return curve.steps;
  return Array.from({ length: curve.steps.count }, (_, place) => curve.steps.from + place * curve.steps.by);
}

/** Keys of the configs in which runs differ that have one. */
function varyingKeys() {
  const columns = Object.values(data.configs);
  const known = [...data.runs.directory.keys()].filter((run) => columns.some((column) => column[run] !== null));
  return Object.keys(data.configs).filter((key) => unique(known.map((run) => data.configs[key][run])).length > 1);
}

function runNumber(directory) {
  return data.runs.directory.indexOf(directory);
}

/** The label of a run's encoding, or its name where it has no label because it is in no average. */
function encodingOf(run) {
  return data.runs.encoding_label[run] || data.runs.encoding[run] || "";
}

function taskOf(run) {
  return data.runs.task_label[run] || data.runs.task[run] || "";
}
