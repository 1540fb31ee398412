// Numbers and elements.

function number(x, digits = 3) {
  if (x === null || x === undefined || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return "∞";
  if (Number.isInteger(x) && Math.abs(x) < 1e6) return x.toLocaleString("en");
  const size = Math.abs(x);
  if (size >= 1e6 || (size < 1e-3 && size > 0)) return x.toExponential(digits - 1).replace(/\.?0*e\+?/, "e");
  return size >= 100 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(digits)));
}

/** Accuracies have the same number of places throughout, so that they can be read down a column. */
function measured(metric, x) {
  return metric.share && x !== null ? x.toFixed(3) : number(x, 4);
}

function multiple(ratio) {
  return `${Number(ratio.toPrecision(3))}×`;
}

function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds < 120) return `${number(seconds)} s`;
  return seconds < 7200 ? `${number(seconds / 60)} min` : `${number(seconds / 3600)} h`;
}

function range(start, stop) {
  return start === stop ? number(start) : `${number(start)} to ${number(stop)}`;
}

/** `1 seed`, `3 seeds`, `1 to 3 seeds`. */
function seedCount(counts) {
  const [fewest, most] = [Math.min(...counts), Math.max(...counts)];
  return `${fewest === most ? "" : `${fewest} to `}${most} seed${most === 1 ? "" : "s"}`;
}

const SVG = "http://www.w3.org/2000/svg";

function filled(element, attributes, children) {
  for (const [name, text] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), text);
    else if (text !== null && text !== undefined && text !== false) element.setAttribute(name, text === true ? "" : text);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

/** Makes a select offer these [value, text] pairs; returns what is chosen: `wanted` if it is among them. */
function offer(select, options, wanted) {
  const offered = JSON.stringify(options);
  if (select.dataset.offered !== offered) {
    select.replaceChildren(...options.map(([value, text]) => html("option", { value }, text)));
    select.dataset.offered = offered;
  }
  const found = options.some(([value]) => value === wanted) ? wanted : (options[0] ?? [""])[0];
  select.value = found;
  return found;
}

/** A table of rows of text; of every column, [title, whether it holds numbers]. */
function table(columns, rows) {
  const kind = (place) => (columns[place][1] ? "number" : null);
  return html(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": "numbers" },
    html(
      "table",
      {},
      html("thead", {}, html("tr", {}, ...columns.map(([title], place) => html("th", { scope: "col", class: kind(place) }, title)))),
      html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map((cell, place) => html("td", { class: kind(place) }, cell))))),
    ),
  );
}

/** Fills the disclosure `Numbers` of a section, at once if it is open and else when it is opened. */
function numbersOf(section, columns, rows) {
  const details = section.querySelector(".numbers");
  const fill = () => {
    details.querySelector(".scroll")?.remove();
    if (details.open) details.append(table(columns, rows()));
  };
  details.ontoggle = fill;
  fill();
}
