// A chart of a query's result: its numeric columns over the first column, which is a time, a number or a category.
// Invariant: the number of series, bars and points is bounded. The table with all values stays one click away.

import { step } from "./chart.js";
import { el, svg } from "./dom.js";
import * as show from "./format.js";

const MAX_SERIES = 6;
const MAX_CATEGORIES = 60;
const HEIGHT = 280;
const LEFT = 64;
const RIGHT = 12;
const TOP = 12;
const BOTTOM = 34;
const NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/;
const TIME = /^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?$/;

/** Large integers and decimals arrive as text. */
function number(value) {
  if (typeof value === "number") return value;
  return typeof value === "string" && NUMBER.test(value) ? Number(value) : null;
}

function isNumeric(rows, at) {
  return rows.some((row) => row[at] !== null) && rows.every((row) => row[at] === null || number(row[at]) !== null);
}

function time(value) {
  if (typeof value !== "string" || !TIME.test(value)) return null;
  const at = Date.parse(value.length === 10 ? `${value}T00:00Z` : `${value.replace(" ", "T")}Z`);
  return Number.isNaN(at) ? null : at / 1000;
}

/** What can be drawn of a result: `{ kind, label, names, points: [[x, [y, …]], …] }`; null if nothing can. */
export function plan({ columns, rows }) {
  if (columns.length < 2 || !rows.length) return null;
  const numeric = columns.map((_, at) => at).filter((at) => at > 0 && isNumeric(rows, at)).slice(0, MAX_SERIES);
  if (!numeric.length) return null;
  const first = rows.map((row) => row[0]);
  const kind = first.every((value) => time(value) !== null) ? "time" : first.every((value) => number(value) !== null) ? "number" : "category";
  const read = { time, number, category: (value) => (value === null ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value)) }[kind];
  const points = rows.map((row) => [read(row[0]), numeric.map((at) => number(row[at]))]);
  if (kind === "category") points.splice(MAX_CATEGORIES);
  else points.sort((one, other) => one[0] - other[0]);
  return { kind, label: columns[0], names: numeric.map((at) => columns[at]), points, cut: kind === "category" ? rows.length - points.length : 0 };
}

export class ResultChart {
  constructor() {
    this.picture = svg("svg", { class: "result-picture", height: HEIGHT, role: "img" });
    this.legend = el("ul", { class: "result-legend" });
    this.node = el("figure", { class: "result-chart", hidden: true }, this.legend, this.picture);
    this.plan = null;
    new ResizeObserver(() => this.#draw()).observe(this.node);
  }

  show(planned) {
    this.plan = planned;
    const entries = planned.names.map((name, at) => el("li", { class: `series-${at}` }, el("i"), el("span", { text: name })));
    if (planned.cut) entries.push(el("li", { class: "faint", text: `the first ${MAX_CATEGORIES} rows` }));
    this.legend.replaceChildren(...entries);
    this.picture.setAttribute("aria-label", `Chart of ${planned.names.join(", ")} by ${planned.label}: ${show.plural(planned.points.length, "point")}`);
    this.#draw();
  }

  #draw() {
    const width = Math.floor(this.node.clientWidth) - 28;
    if (!this.plan || width < 100) return;
    const { kind, points } = this.plan;
    const values = points.flatMap(([, list]) => list).filter((value) => value !== null);
    let most = Math.max(0, ...values);
    let least = Math.min(0, ...values);
    if (most === least) most = 1;
    const each = step(most - least, "number");
    most = Math.ceil((most / each) * 0.999999) * each;
    least = Math.floor((least / each) * 0.999999) * each;
    this.inner = width - LEFT - RIGHT;
    this.y = (value) => HEIGHT - BOTTOM - ((value - least) / (most - least)) * (HEIGHT - BOTTOM - TOP);
    const drawn = kind === "category" ? this.#bars() : this.#lines();
    const grid = [];
    for (let value = least; value <= most + each / 2; value += each) {
      const y = this.y(value).toFixed(1);
      grid.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y }), label(LEFT - 8, Number(y) + 4, "end", axisNumber(value, each)));
    }
    this.picture.setAttribute("width", String(width));
    this.picture.replaceChildren(svg("g", { class: "grid" }, ...grid, ...drawn.labels), ...drawn.shapes);
  }

  #bars() {
    const { points, names } = this.plan;
    const room = this.inner / points.length;
    const wide = Math.max(1, (room * 0.8) / names.length);
    const every = Math.ceil(70 / room);
    const letters = Math.max(4, Math.floor((room * every) / 7));
    const shapes = points.flatMap(([name, list], index) =>
      list.map((value, at) => {
        if (value === null) return "";
        const [top, bottom] = [this.y(Math.max(0, value)), this.y(Math.min(0, value))];
        const bar = svg("rect", { class: `bar-shape series-${at}`, x: (LEFT + room * index + room * 0.1 + wide * at).toFixed(1), width: wide.toFixed(1), y: top.toFixed(1), height: Math.max(0.5, bottom - top).toFixed(1) });
        bar.append(named(`${name}: ${value}`));
        return bar;
      }),
    );
    const labels = points.map(([name], index) => (index % every ? "" : label(LEFT + room * (index + 0.5), HEIGHT - 14, "middle", name.length > letters ? `${name.slice(0, letters - 1)}…` : name)));
    return { shapes: shapes.filter(Boolean), labels: labels.filter(Boolean) };
  }

  #lines() {
    const { points, names, kind } = this.plan;
    const [from, to] = [points[0][0], points[points.length - 1][0]];
    const x = (value) => LEFT + (to === from ? this.inner / 2 : ((value - from) / (to - from)) * this.inner);
    const shapes = [];
    names.forEach((_, at) => {
      let line = "";
      let pen = "M";
      for (const [where, list] of points) {
        if (list[at] === null) pen = "M";
        else {
          line += `${pen}${x(where).toFixed(1)} ${this.y(list[at]).toFixed(1)}`;
          pen = "L";
        }
      }
      shapes.push(svg("path", { class: `line-shape series-${at}`, d: line }));
      if (points.length > 120) return;
      for (const [where, list] of points) {
        if (list[at] === null) continue;
        const dot = svg("circle", { class: `dot-shape series-${at}`, cx: x(where).toFixed(1), cy: this.y(list[at]).toFixed(1), r: 3 });
        dot.append(named(`${kind === "time" ? utc(where, 0) : where}: ${list[at]}`));
        shapes.push(dot);
      }
    });
    const ticks = to === from ? [from] : [0, 1, 2, 3, 4].map((part) => from + ((to - from) * part) / 4);
    const anchor = (at) => (ticks.length === 1 ? "middle" : at === 0 ? "start" : at === ticks.length - 1 ? "end" : "middle");
    const crowded = this.inner < 480;
    const labels = ticks.map((value, at) => (crowded && at % 2 ? "" : label(x(value), HEIGHT - 14, anchor(at), kind === "time" ? utc(value, to - from) : axisNumber(value, (to - from) / 4 || 1))));
    return { shapes, labels: labels.filter(Boolean) };
  }
}

function named(text) {
  const node = svg("title");
  node.textContent = text;
  return node;
}

function label(x, y, anchor, text) {
  const node = svg("text", { x: x.toFixed(1), y, "text-anchor": anchor });
  node.textContent = text;
  return node;
}

function axisNumber(value, each) {
  if (Math.abs(value) >= 1e15) return value.toExponential(1);
  if (Math.abs(value) >= 10_000) return show.short(Math.round(value));
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(each))) + (each % 1 ? 1 : 0));
  return value.toLocaleString("en-US", { maximumFractionDigits: digits });
}

/** As ClickHouse sent it, in UTC: days alone where the axis spans many. */
function utc(at, span) {
  const text = new Date(at * 1000).toISOString().replace("T", " ");
  if (span === 0) return text.slice(0, 19);
  return span >= 5 * 86_400 ? text.slice(0, 10) : span >= 86_400 ? text.slice(5, 16) : text.slice(11, 19);
}
