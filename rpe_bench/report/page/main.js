// What is chosen, kept in the address so that it can be bookmarked and survives a reload; and the controls.

const CHECKS = ["log", "bands", "seeds", "shown"];
const CHOICES = ["task", "metric", "axis", "measure", "at", "slice", "scaled", "spent", "reached", "status", "search", "sort"];

const DEFAULTS = {
  ...Object.fromEntries(CHOICES.map((name) => [name, ""])),
  metric: "token_accuracy",
  axis: "ratio",
  measure: "perplexity",
  scaled: "slices",
  spent: "train_seconds",
  log: true,
  bands: true,
  seeds: false,
  shown: false,
  down: false,
  only: null, // encodings; null for all, those of the future among them
  columns: [],
  run: "",
};

let state = fromHash();

function fromHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const found = { ...DEFAULTS };
  for (const name of [...CHOICES, "run"]) if (given.has(name)) found[name] = given.get(name);
  for (const name of [...CHECKS, "down"]) if (given.has(name)) found[name] = given.get(name) === "1";
  if (given.has("only")) found.only = given.getAll("only").filter(Boolean);
  found.columns = given.getAll("column");
  if (!METRICS[found.metric]) found.metric = DEFAULTS.metric;
  if (!MEASURES[found.measure]) found.measure = DEFAULTS.measure;
  if (!["ratio", "length"].includes(found.axis)) found.axis = DEFAULTS.axis;
  if (!["slices", "shares"].includes(found.scaled)) found.scaled = DEFAULTS.scaled;
  if (!["train_seconds", "parameters"].includes(found.spent)) found.spent = DEFAULTS.spent;
  return found;
}

function hashOf(chosen) {
  const parts = new URLSearchParams();
  for (const name of [...CHOICES, "run"]) if (chosen[name] !== DEFAULTS[name]) parts.set(name, chosen[name]);
  for (const name of [...CHECKS, "down"]) if (chosen[name] !== DEFAULTS[name]) parts.set(name, chosen[name] ? "1" : "0");
  if (chosen.only) for (const label of chosen.only.length ? chosen.only : [""]) parts.append("only", label);
  for (const key of chosen.columns) parts.append("column", key);
  return parts.toString();
}

let overview = { ...state, run: "" }; // to come back to from a single run

function overviewHash() {
  return hashOf(overview);
}

/** Changes what is chosen. */
function choose(changes) {
  state = { ...state, ...changes };
  history.replaceState(null, "", `#${hashOf(state)}`);
  if (Object.keys(changes).every((name) => ["status", "search", "sort", "down", "shown", "columns"].includes(name))) return keepingFocus(drawRuns);
  render();
}

// Drawing the whole

const LATER = [drawPositions, drawSlices, drawOverview, drawCost, drawTraining, drawRuns];
let turn = 0;

function render() {
  const mine = ++turn;
  byId("run").hidden = !state.run;
  byId("content").hidden = byId("controls").hidden = Boolean(state.run);
  document.title = `${state.run || data.title} · rpe_bench`;
  keepingFocus(drawHeader);
  const done = () => (document.documentElement.dataset.drawn = String(mine));
  if (state.run) {
    keepingFocus(() => drawRun(state.run));
    return done();
  }
  overview = { ...state };
  keepingFocus(drawControls);
  const isEmpty = !data.tasks.length;
  byId("empty").hidden = !isEmpty;
  byId("empty").textContent = "No run has finished yet: there is nothing to draw.";
  for (const section of document.querySelectorAll("#content section:not(#runs)")) section.hidden = isEmpty;
  if (isEmpty) {
    keepingFocus(drawRuns);
    return done();
  }
  drawLengths();
  performance.mark("first curve");
  // One at a time, so that the page answers in between; a later choice ends those of an earlier one.
  const next = ([draw, ...rest]) => {
    if (mine !== turn || !draw) return;
    keepingFocus(draw);
    rest.length ? setTimeout(next, 0, rest) : done();
  };
  setTimeout(next, 0, LATER);
}

/** Gives the focus back to the element of the same id, where drawing replaced it. */
function keepingFocus(draw) {
  const { id } = document.activeElement ?? {};
  draw();
  if (id && document.activeElement?.id !== id) byId(id)?.focus({ preventScroll: true });
}

function drawHeader() {
  byId("title").textContent = `rpe_bench · ${data.title}`;
  const count = (status) => data.runs.status.filter((one) => one === status).length;
  const counted = data.statuses.map((status) => [status, count(status)]).filter(([, n]) => n);
  const buttons = counted.map(([status, n]) =>
    html("button", { type: "button", id: `count-${status}`, class: status === "finished" ? null : "bad", title: `list the runs that are ${status}`, onclick: () => listRuns(status) }, `${n.toLocaleString("en")} ${status}`),
  );
  byId("counts").replaceChildren(...(buttons.length ? buttons : ["no runs"]));
  byId("left-out").hidden = !data.left_out.length;
  byId("left-out").textContent = data.left_out.join(" ");
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", isDark() ? "Switch to the light theme" : "Switch to the dark theme");
}

function listRuns(status) {
  state = { ...overview, status, search: "", shown: false };
  history.replaceState(null, "", `#${hashOf(state)}`);
  fillControls();
  render();
  setTimeout(() => byId("runs").scrollIntoView(), 60);
}

function drawControls() {
  if (data.tasks.length) state.task = data.tasks[chosenTask()].label;
  offer(byId("task"), data.tasks.map(({ label }) => [label, label]), state.task);
  offer(byId("metric"), Object.entries(METRICS).map(([name, { label }]) => [name, label]), state.metric);
  const here = new Set(linesOf(chosenTask()).map((line) => data.encodings[line.encoding].label));
  const wanted = byId("find").value.toLowerCase();
  const chosen = data.encodings.filter(({ label }) => here.has(label) && isChosen(label)).length;
  byId("chosen").textContent = `${chosen} of ${here.size}`;
  byId("encodings").replaceChildren(
    ...data.encodings
      .filter(({ label }) => label.toLowerCase().includes(wanted))
      .map((encoding) => encodingChoice(encoding, here.has(encoding.label))),
  );
}

function encodingChoice(encoding, isHere) {
  const { label } = encoding;
  const box = html("input", { type: "checkbox", id: `encoding-${label}`, onchange: () => toggle(label) });
  box.checked = isChosen(label);
  const over = () => highlight(label);
  const out = () => highlight(null);
  const text = isHere ? label : `${label} (not on this task)`;
  return html("li", {}, html("label", { class: `check${isHere ? "" : " absent"}`, onpointerenter: over, onpointerleave: out, onfocusin: over, onfocusout: out }, box, swatch(encoding), text));
}

function toggle(label) {
  const labels = data.encodings.map((encoding) => encoding.label);
  const before = labels.filter(isChosen);
  const after = before.includes(label) ? before.filter((other) => other !== label) : labels.filter((other) => other === label || before.includes(other));
  choose({ only: after.length === labels.length ? null : after });
}

/** Sets the controls that are never rebuilt to what is chosen. */
function fillControls() {
  for (const name of CHECKS) byId(name).checked = state[name];
  for (const name of ["axis", "scaled", "spent", "search"]) byId(name).value = state[name];
}

// Events

for (const name of CHECKS) byId(name).addEventListener("change", (event) => choose({ [name]: event.target.checked }));
for (const name of ["metric", "axis", "measure", "at", "slice", "scaled", "spent", "reached", "status"])
  byId(name).addEventListener("change", (event) => choose({ [name]: event.target.value }));
byId("task").addEventListener("change", (event) => choose({ task: event.target.value, at: "", reached: "" }));
byId("search").addEventListener("input", (event) => choose({ search: event.target.value }));
byId("column").addEventListener("change", (event) => event.target.value && choose({ columns: [...state.columns, event.target.value] }));
byId("find").addEventListener("input", () => keepingFocus(drawControls));
byId("all").addEventListener("click", () => choose({ only: null }));
byId("none").addEventListener("click", () => choose({ only: [] }));
byId("more").addEventListener("click", () => {
  allowed += 500;
  keepingFocus(drawRuns);
});
document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is what is chosen
  byId(state.run ? "run" : "content").focus();
});

addEventListener("hashchange", () => {
  const before = state.run;
  state = fromHash();
  fillControls();
  render();
  if (before === state.run) return;
  if (state.run) scrollTo(0, 0);
  // From a run, back to where it was opened.
  const from = state.run ? byId("run") : byId("content");
  from.focus({ preventScroll: true });
  if (!state.run) setTimeout(() => byId(`run-${before}`)?.focus(), 60);
});

// Light and dark: as the system says, until the reader chooses.

const system = matchMedia("(prefers-color-scheme: dark)");

function remembered() {
  try {
    return localStorage.getItem("rpe-bench-theme");
  } catch {
    return null; // a browser may refuse to keep anything for a file
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

byId("theme").addEventListener("click", () => {
  setTheme(isDark() ? "light" : "dark");
  try {
    localStorage.setItem("rpe-bench-theme", document.documentElement.dataset.theme);
  } catch {
    // it holds for as long as the page is open
  }
  render();
});
system.addEventListener("change", () => {
  if (remembered()) return;
  setTheme(system.matches ? "dark" : "light");
  render();
});

// While a server keeps the page current

const EVERY = 2000; // milliseconds
let version = document.querySelector("meta[name=version]").content;

async function refresh() {
  if (!document.hidden) {
    try {
      const answer = await fetch(`data.json?after=${version}`, { cache: "no-store" });
      if (!answer.ok) throw new Error((await answer.text()).slice(0, 200));
      if (answer.status === 200) {
        version = answer.headers.get("X-Version");
        data = spelledOut(await answer.json());
        render();
      }
      byId("live").textContent = `current at ${new Date().toLocaleTimeString()}`;
      byId("live").className = "";
    } catch (error) {
      byId("live").textContent = error instanceof TypeError ? "the server has ended" : error.message;
      byId("live").className = "bad";
    }
  }
  setTimeout(refresh, EVERY);
}

setTheme(remembered() ?? (system.matches ? "dark" : "light"));
if (matchMedia("(max-width: 820px)").matches) byId("controls").open = false;
fillControls();
render();
if (version) {
  byId("live").hidden = false;
  setTimeout(refresh, EVERY);
}
