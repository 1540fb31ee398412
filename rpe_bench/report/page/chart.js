// Charts as SVG: lines with intervals, seeds and rules; scatters; heat maps. They know nothing of runs.
//
// A chart is drawn from a spec:
//   label                 what it is, for those who don't see it
//   x, y                  {label, log, ticks (places to number; else round ones), range, format}
//   series                [{name, look, points: [{x, y, low, high}], seeds: [[{x, y}]], scatter, bare}]
//   baselines             [{name, dashes, points}]
//   rules                 [{x, name}], vertical
//   bands, heading, height
// Points whose y is null are gaps.

const MARKERS = {
  o: "M4 0A4 4 0 1 1-4 0A4 4 0 1 1 4 0Z",
  s: "M-3.5-3.5H3.5V3.5H-3.5Z",
  "^": "M0-4.5L4.3 3.2H-4.3Z",
  v: "M0 4.5L4.3-3.2H-4.3Z",
  "<": "M-4.5 0L3.2 4.3V-4.3Z",
  ">": "M4.5 0L-3.2 4.3V-4.3Z",
  D: "M0-4.8L4.8 0L0 4.8L-4.8 0Z",
  d: "M0-5L3.2 0L0 5L-3.2 0Z",
  P: "M-1.5-4.2H1.5V-1.5H4.2V1.5H1.5V4.2H-1.5V1.5H-4.2V-1.5H-1.5Z",
  X: "M-4.2-2.2L-2.2-4.2L0-2L2.2-4.2L4.2-2.2L2 0L4.2 2.2L2.2 4.2L0 2L-2.2 4.2L-4.2 2.2L-2 0Z",
  p: "M0-4.5L4.3-1.4L2.6 3.6H-2.6L-4.3-1.4Z",
};

const LINE_WIDTH = 1.9;
const LABELLED = 14; // lines that can be named at their ends
let drawn = 0;

// Colours

function isDark() {
  return document.documentElement.dataset.theme === "dark";
}

/** A colour of the figures, on paper as it is and on a dark ground as much lighter as it takes to be seen. */
function shown(colour) {
  if (!isDark()) return colour;
  let parts = [1, 3, 5].map((start) => parseInt(colour.slice(start, start + 2), 16));
  if (Math.max(...parts) - Math.min(...parts) < 8) parts = parts.map((part) => 255 - 0.9 * part);
  while (luminance(parts) < 0.25) parts = parts.map((part) => part + 0.1 * (255 - part));
  return `rgb(${parts.map(Math.round).join(" ")})`;
}

function luminance(parts) {
  const [r, g, b] = parts.map((part) => (part / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** Anchors of cividis, whose brightness grows evenly: it reads the same for colour-blind readers and in grey. */
const RAMP = ["#00224e", "#123570", "#3b496c", "#575d6d", "#707173", "#8a8678", "#a59c74", "#c3b369", "#e1cc55", "#fee838"];

function ramp(share) {
  const place = Math.min(1, Math.max(0, share)) * (RAMP.length - 1);
  const from = Math.min(RAMP.length - 2, Math.floor(place));
  const channel = (colour, start) => parseInt(colour.slice(start, start + 2), 16);
  const mixed = [1, 3, 5].map((start) =>
    Math.round(channel(RAMP[from], start) + (place - from) * (channel(RAMP[from + 1], start) - channel(RAMP[from], start))),
  );
  return `rgb(${mixed.join(" ")})`;
}

function swatch(look) {
  const line = svg("path", { d: "M1 7H33", stroke: shown(look.colour), "stroke-width": LINE_WIDTH, "stroke-dasharray": dashes(look) });
  const marker = svg("path", { d: MARKERS[look.marker] ?? "", transform: "translate(17 7)", fill: shown(look.colour) });
  return svg("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" }, line, marker);
}

function dashes(look) {
  return look.dashes.length ? look.dashes.map((length) => length * LINE_WIDTH).join(" ") : null;
}

// Scales

function scale(axis, from, to) {
  const [low, high] = axis.range;
  const on = (x) => (axis.log ? Math.log(x) : x);
  const width = on(high) - on(low) || 1;
  return (x) => from + ((to - from) * (on(x) - on(low))) / width;
}

function extent(values) {
  return values.reduce(([low, high], x) => [Math.min(low, x), Math.max(high, x)], [Infinity, -Infinity]);
}

/** About `count` round numbers in a range. */
function roundTicks({ range: [low, high], log }, count) {
  if (log) return logTicks(low, high, count);
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high * (1 + 1e-9); k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.5) return roundTicks({ range: [low, high] }, count);
  const factors = decades < 1.5 ? [1, 1.5, 2, 3, 5, 7] : decades < 4 ? [1, 2, 5] : [1];
  const step = Math.max(1, Math.ceil(decades / count));
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += step)
    ticks.push(...factors.map((factor) => Number((factor * 10 ** power).toPrecision(6))));
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

// Drawing

const resized = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries)
    if (target.spec && Math.abs(contentRect.width - target.drawnAt) > 1) redraw(target);
});

function drawChart(box, spec) {
  box.spec = spec;
  redraw(box);
  resized.observe(box);
}

/** What is being read of a chart stays so when it is drawn anew, such as with newer data. */
function redraw(box) {
  const hadFocus = document.activeElement?.tagName === "svg" && box.contains(document.activeElement);
  const { cursor } = box;
  box.drawnAt = box.clientWidth;
  box.show = null;
  box.replaceChildren(...(box.clientWidth ? chartElements(box, box.spec) : []));
  if (hadFocus) box.querySelector("svg")?.focus({ preventScroll: true });
  if (cursor) box.show?.(cursor.column, cursor.place);
}

function chartElements(box, spec) {
  const series = spec.series.filter((one) => one.points.length || one.seeds?.length);
  if (!series.length) return [html("p", { class: "note" }, spec.empty ?? "Nothing to draw of what is chosen.")];
  const frame = framed(box, spec, series);
  const { x, y, left, right, top, bottom, width, height } = frame;
  const clip = `clip${++drawn}`;
  const plot = svg("g", { "clip-path": `url(#${clip})` });
  if (spec.bands) plot.append(...series.map((one) => band(one, frame)).filter(Boolean));
  for (const one of series) plot.append(...(one.seeds ?? []).map((points) => seedLine(one, points, frame)));
  plot.append(...series.map((one, place) => line(one, place, series.length, frame)));
  plot.append(...(spec.baselines ?? []).map((one) => baseline(one, frame)));
  const cursor = svg("g", { class: "cursor" });
  const named = [...(spec.rules ?? []).map((rule) => ruled(rule, frame))];
  const picture = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "application", "aria-roledescription": "chart", "aria-label": `${spec.label}. Arrow keys read it point by point.` },
    svg("clipPath", { id: clip }, svg("rect", { x: left - 6, y: top - 6, width: right - left + 12, height: bottom - top + 12 })),
    axes(spec, frame),
    ...named,
    plot,
    ...(frame.ends ?? []),
    cursor,
  );
  const tip = html("div", { class: "tip", role: "status", hidden: true });
  watch(box, picture, cursor, tip, spec, series, frame);
  return [picture, tip, frame.ends ? null : legend(series), baselineLegend(spec)].filter(Boolean);
}

/** Where things are, and the two scales. */
function framed(box, spec, series) {
  const width = box.clientWidth;
  const height = spec.height ?? (width < 500 ? 260 : 340);
  const all = series.flatMap((one) => [one.points, ...(one.seeds ?? [])].flat()).filter((point) => point.y !== null);
  const xs = extent(all.map((point) => point.x));
  const ys = extent([...all.map((point) => point.y), ...(spec.baselines ?? []).flatMap((one) => one.points.map((point) => point.y))].filter((y) => y !== null));
  const xAxis = { ...spec.x, range: spec.x.range ?? padded(xs, spec.x.log) };
  const yAxis = { ...spec.y, range: spec.y.range ?? padded([Math.min(ys[0], spec.y.from ?? Infinity), ys[1]], spec.y.log, spec.y.from) };
  const ticks = roundTicks(yAxis, 6);
  const left = 26 + 7 * Math.max(...ticks.map((tick) => (yAxis.format ?? number)(tick).length));
  const direct = !spec.legend && width >= 560 && series.length <= LABELLED && series.every((one) => !one.scatter);
  const longest = Math.max(...series.map((one) => one.name.length));
  const right = width - (direct ? Math.min(200, 18 + 6.7 * longest) : 14);
  const [top, bottom] = [spec.rules?.length ? 22 : 10, height - 42];
  const frame = { width, height, left, right, top, bottom, xAxis, yAxis, yTicks: ticks };
  frame.x = scale(xAxis, left, right);
  frame.y = scale(yAxis, bottom, top);
  if (direct) frame.ends = endLabels(series, frame);
  return frame;
}

function padded([low, high], log, from) {
  if (log) {
    const room = low === high ? 2 : (high / low) ** 0.03;
    return [from === undefined ? low / room : from / Math.min(1.02, room), high * room];
  }
  const room = (high - low || Math.abs(high) || 1) * 0.03;
  return [from === undefined ? low - room : from - room / 3, high + room];
}

function axes(spec, { x, y, left, right, top, bottom, xAxis, yAxis, yTicks }) {
  const group = svg("g", { class: "axis" });
  for (const tick of yTicks) {
    group.append(svg("line", { class: "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }));
    group.append(svg("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, (yAxis.format ?? number)(tick)));
  }
  const ticks = xAxis.ticks ?? roundTicks(xAxis, Math.max(3, (right - left) / 90));
  const texts = ticks.map((tick) => (xAxis.format ?? number)(tick));
  const numbered = roomFor(ticks.map(x), texts);
  ticks.forEach((tick, place) => {
    group.append(svg("line", { x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + (numbered.has(place) ? 5 : 3) }));
    if (numbered.has(place)) group.append(svg("text", { x: x(tick), y: bottom + 17, "text-anchor": "middle" }, texts[place]));
  });
  group.append(svg("path", { d: `M${left} ${top}V${bottom}H${right}` }));
  group.append(svg("text", { x: (left + right) / 2, y: bottom + 36, "text-anchor": "middle" }, xAxis.label));
  group.append(svg("text", { transform: `translate(13 ${(top + bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yAxis.label));
  return group;
}

/** Which of the texts at these places fit beside one another: the first, the last, then whichever still do. */
function roomFor(places, texts) {
  const shownAt = new Set();
  const order = [places.length - 1, ...places.keys()];
  for (const place of order) {
    const fits = [...shownAt].every(
      (other) => Math.abs(places[place] - places[other]) > 3.6 * (texts[place].length + texts[other].length) + 8,
    );
    if (fits) shownAt.add(place);
  }
  return shownAt;
}

/** The stretches of points without a gap. */
function stretches(points, has) {
  const found = [[]];
  for (const point of points) has(point) ? found.at(-1).push(point) : found.push([]);
  return found.filter((stretch) => stretch.length);
}

function pathOf(points, { x, y }) {
  return stretches(points, (point) => point.y !== null)
    .map((stretch) => `M${stretch.map((point) => `${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)}`).join("L")}`)
    .join("");
}

function band(one, { x, y }) {
  const at = (point, end) => `${x(point.x).toFixed(1)} ${y(end).toFixed(1)}`;
  const known = (point) => point.low !== null && point.low !== undefined && point.high !== null;
  const d = stretches(one.points, known)
    .map((part) => `M${part.map((p) => at(p, p.low)).join("L")}L${part.toReversed().map((p) => at(p, p.high)).join("L")}Z`)
    .join("");
  if (!d) return null;
  const colour = shown(one.look.colour);
  // Of a scatter, and of a single length, there is no area: bars.
  const bars = one.scatter || one.points.length === 1;
  const style = bars ? { stroke: colour, "stroke-width": 2, "stroke-opacity": 0.6 } : { fill: colour, "fill-opacity": 0.13 };
  return svg("path", { class: "band", "data-name": one.name, d, ...style });
}

function seedLine(one, points, frame) {
  const colour = shown(one.look.colour);
  const style = { class: "seed", "data-name": one.name };
  if (one.scatter || points.length === 1) {
    const dots = points.filter((point) => point.y !== null);
    return svg("g", style, ...dots.map((p) => svg("circle", { cx: frame.x(p.x), cy: frame.y(p.y), r: 2.5, fill: colour, "fill-opacity": 0.55 })));
  }
  return svg("path", { ...style, d: pathOf(points, frame), fill: "none", stroke: colour, "stroke-width": 1, "stroke-opacity": 0.55 });
}

/** About eight markers a line, each line's at places of its own: lines on top of one another can be told apart. */
function line(one, place, count, frame) {
  const colour = shown(one.look.colour);
  const step = Math.max(1, Math.round(one.points.length / 8));
  const marked = one.bare ? [] : one.points.filter((p, i) => p.y !== null && (one.points.length <= 8 || i % step === place % step));
  const stroke = one.scatter ? [] : [svg("path", { class: "line", d: pathOf(one.points, frame), fill: "none", stroke: colour, "stroke-width": LINE_WIDTH, "stroke-dasharray": dashes(one.look), "stroke-linejoin": "round" })];
  const markers = marked.map((p) => svg("path", { d: MARKERS[one.look.marker], class: "halo", transform: `translate(${frame.x(p.x).toFixed(1)} ${frame.y(p.y).toFixed(1)})`, fill: colour, "stroke-width": 0.7 }));
  return svg("g", { class: "series", "data-name": one.name }, ...stroke, ...markers);
}

function baseline(one, frame) {
  return svg("path", { class: "baseline", d: pathOf(one.points, frame), "stroke-width": 1.2, "stroke-dasharray": one.dashes });
}

function ruled(rule, { x, top, bottom, left, right }) {
  const at = x(rule.x);
  if (at < left - 1 || at > right + 1) return svg("g");
  const toLeft = at > (left + right) / 2;
  return svg(
    "g",
    { class: "axis" },
    svg("line", { class: "rule", x1: at, x2: at, y1: top - 12, y2: bottom }),
    svg("text", { x: at + (toLeft ? -5 : 5), y: top - 6, "text-anchor": toLeft ? "end" : "start" }, rule.name),
  );
}

/** The name of each line beside its end, as far apart as letters are high. */
function endLabels(series, { x, y, right, top, bottom }) {
  const ends = series.map((one) => {
    const last = one.points.findLast((point) => point.y !== null) ?? (one.seeds ?? [])[0]?.at(-1);
    return { one, x: last ? x(last.x) : right, y: last ? Math.min(bottom, Math.max(top, y(last.y))) : bottom };
  });
  ends.sort((a, b) => a.y - b.y);
  const gap = Math.min(15, (bottom - top + 20) / ends.length);
  const placed = ends.map((end) => end.y);
  for (let i = 1; i < placed.length; i++) placed[i] = Math.max(placed[i], placed[i - 1] + gap);
  const over = Math.max(0, (placed.at(-1) ?? 0) - bottom - 8);
  if (over) {
    placed[placed.length - 1] -= over;
    for (let i = placed.length - 2; i >= 0; i--) placed[i] = Math.min(placed[i], placed[i + 1] - gap);
  }
  return ends.map((end, i) =>
    svg(
      "g",
      { "data-name": end.one.name },
      svg("path", { class: "leader", d: `M${end.x + 6} ${end.y}L${right + 12} ${placed[i]}` }),
      svg("text", { class: "label", x: right + 15, y: placed[i] + 4 }, cut(end.one.name, 27)),
    ),
  );
}

function cut(text, length) {
  return text.length > length ? `${text.slice(0, length - 1)}…` : text;
}

function legend(series) {
  return html("ul", { class: "legend" }, ...series.map((one) => html("li", { "data-name": one.name }, swatch(one.look), one.name)));
}

function baselineLegend(spec) {
  if (!spec.baselines?.length) return null;
  const key = (one) =>
    svg("svg", { class: "swatch", viewBox: "0 0 34 14", "aria-hidden": "true" }, svg("path", { class: "baseline", d: "M1 7H33", "stroke-width": 1.2, "stroke-dasharray": one.dashes }));
  return html("ul", { class: "legend" }, ...spec.baselines.map((one) => html("li", {}, key(one), one.name)));
}

// Reading a chart, with the pointer or with the keyboard

/** Columns of x at which there are points; with each, the series that have one there, the highest first. */
function columnsOf(series) {
  const at = new Map();
  series.forEach((one, place) => {
    for (const point of one.points.length ? one.points : one.seeds.flat())
      if (point.y !== null) at.set(point.x, [...(at.get(point.x) ?? []), { place, point }]);
  });
  const columns = [...at].sort(([a], [b]) => a - b);
  for (const [, entries] of columns) entries.sort((a, b) => b.point.y - a.point.y);
  return columns;
}

function watch(box, picture, cursor, tip, spec, series, frame) {
  let columns = null; // worked out when first asked for: most charts are only looked at
  const known = () => (columns ??= columnsOf(series));

  const show = (column, place) => {
    if (column >= known().length) return;
    const [x, entries] = known()[column];
    const chosen = entries.find((entry) => entry.place === place) ?? entries[0];
    box.cursor = { column, place: chosen.place };
    const at = frame.x(x);
    cursor.replaceChildren(
      svg("line", { x1: at, x2: at, y1: frame.top, y2: frame.bottom }),
      svg("circle", { cx: at, cy: frame.y(chosen.point.y), r: 6, fill: "none", stroke: shown(series[chosen.place].look.colour), "stroke-width": 2 }),
    );
    tip.replaceChildren(...tipOf(spec, series, x, entries, chosen));
    tip.hidden = false;
    const beyond = at > (frame.left + frame.right) / 2;
    tip.style.left = beyond ? "auto" : `${at + 14}px`;
    tip.style.right = beyond ? `${frame.width - at + 14}px` : "auto";
    tip.style.top = `${frame.top}px`;
    highlight(series[chosen.place].name);
  };

  const hide = () => {
    box.cursor = null;
    cursor.replaceChildren();
    tip.hidden = true;
    highlight(null);
  };

  box.show = show;
  picture.addEventListener("pointermove", (event) => {
    const place = picture.getBoundingClientRect();
    const near = nearest(known(), frame, event.clientX - place.left, event.clientY - place.top);
    show(near.column, near.place);
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("blur", hide);
  picture.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return hide();
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    const turn = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (step === undefined && turn === undefined) return;
    event.preventDefault();
    const last = known().length - 1;
    if (!box.cursor) return show(step === -Infinity || step === undefined ? 0 : step === Infinity ? last : 0, null);
    const column = Math.min(last, Math.max(0, box.cursor.column + (step ?? 0)));
    const entries = known()[column][1];
    const rank = entries.findIndex((entry) => entry.place === box.cursor.place) + (turn ?? 0);
    show(column, entries[(rank + entries.length) % entries.length].place);
  });
}

function nearest(columns, frame, x, y) {
  const distance = ([at]) => Math.abs(frame.x(at) - x);
  let column = 0;
  for (let i = 1; i < columns.length; i++) if (distance(columns[i]) < distance(columns[column])) column = i;
  const entries = columns[column][1];
  const off = (entry) => Math.abs(frame.y(entry.point.y) - y);
  return { column, place: entries.reduce((best, entry) => (off(entry) < off(best) ? entry : best)).place };
}

/** What is said of a column: at most 12 lines about the chosen one. */
function tipOf(spec, series, x, entries, chosen) {
  const rank = entries.indexOf(chosen);
  const start = Math.max(0, Math.min(rank - 5, entries.length - 12));
  const rows = entries.slice(start, start + 12).map((entry) => {
    const one = series[entry.place];
    const { y, low, high, more } = entry.point;
    const format = spec.y.said ?? spec.y.format ?? number;
    const ends = low !== null && low !== undefined ? ` (${format(low)} to ${format(high)})` : "";
    return html("tr", { class: entry === chosen ? "on" : null }, html("td", {}, swatch(one.look)), html("td", {}, cut(one.name, 30)), html("td", {}, `${format(y)}${ends}${more ? `, ${more}` : ""}`));
  });
  const rest = entries.length - rows.length;
  return [
    html("strong", {}, (spec.heading ?? ((at) => `${spec.x.label} ${number(at)}`))(x)),
    html("table", {}, html("tbody", {}, ...rows)),
    rest > 0 ? html("div", { class: "note" }, `and ${rest} more`) : "",
  ];
}

/** Everything of another name steps back, in all charts. */
function highlight(name) {
  for (const element of document.querySelectorAll("[data-name]")) element.classList.toggle("dim", name !== null && element.dataset.name !== name);
}

// Heat maps

/** One map: columns and rows of cells, the first row at the bottom; cells[row][column] = {share, said} or null. */
function heatMap(title, columns, rows, cells, labels) {
  const [left, top, bottom] = [70, 4, 34];
  const [wide, high] = [284, Math.max(90, Math.min(170, 13 * rows.length))];
  const [w, h] = [(wide - left - 6) / columns.length, high / rows.length];
  const picture = svg("svg", { viewBox: `0 0 ${wide} ${high + top + bottom}`, role: "img", "aria-label": `${title}: ${labels.said}` });
  cells.forEach((row, r) =>
    row.forEach((cell, c) => {
      const place = { x: left + c * w, y: top + high - (r + 1) * h, width: w + 0.3, height: h + 0.3 };
      const rect = svg("rect", cell ? { ...place, class: "cell", "shape-rendering": "crispEdges", fill: ramp(cell.share) } : { ...place, class: "missing" });
      if (cell) rect.append(svg("title", {}, cell.said));
      picture.append(rect);
    }),
  );
  const axis = svg("g", { class: "axis" });
  const middles = columns.map((_, c) => left + (c + 0.5) * w);
  for (const c of roomFor(middles, columns)) axis.append(svg("text", { x: middles[c], y: top + high + 14, "text-anchor": "middle" }, columns[c]));
  const step = Math.max(1, Math.ceil(rows.length / (high / 15)));
  rows.forEach((text, r) => {
    if (r % step === 0) axis.append(svg("text", { x: left - 5, y: top + high - (r + 0.5) * h + 4, "text-anchor": "end" }, text));
  });
  axis.append(svg("text", { x: (left + wide) / 2, y: top + high + 29, "text-anchor": "middle" }, labels.x));
  axis.append(svg("text", { transform: `translate(11 ${top + high / 2}) rotate(-90)`, "text-anchor": "middle" }, labels.y));
  picture.append(axis);
  if (labels.boundary) {
    const x = left + labels.boundary * w;
    // White between two dark lines is seen on any colour.
    for (const [width, stroke] of [[3, "#000"], [1.4, "#fff"]])
      picture.append(svg("line", { x1: x, x2: x, y1: top, y2: top + high, "stroke-width": width, stroke }));
  }
  return html("figure", {}, html("figcaption", {}, title), picture);
}

function rampLegend(low, high, text) {
  const bar = svg("svg", { class: "ramp", viewBox: "0 0 150 12", "aria-hidden": "true" });
  for (let i = 0; i < 50; i++) bar.append(svg("rect", { x: i * 3, y: 0, width: 3.2, height: 12, fill: ramp(i / 49) }));
  return html("ul", { class: "legend" }, html("li", {}, low, bar, `${high} ${text}`));
}
