// Small charts over time, drawn as SVG: axes with round values, a line with its area, values under the pointer or by arrow keys.

import { el, setAttr, setProp, setText, svg } from "./dom.js";
import { clock } from "./format.js";

const HEIGHT = 150;
const LEFT = 52;
const RIGHT = 8;
const TOP = 10;
const BOTTOM = 20;
const SECONDS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 43200, 86400];
/** How far apart the times of the axis are, by the longest span that it is for. */
const TICKS = [[300, 60], [3600, 600], [86400, 14400], [Infinity, 432000]];
let made = 0;

/** The distance between two grid lines of the axis: about four grid lines. */
export function step(max, kind) {
  const rough = max / 4;
  if (kind === "seconds" && rough <= SECONDS[SECONDS.length - 1]) return SECONDS.find((value) => value >= rough);
  const base = kind === "bytes" ? 1024 ** Math.max(0, Math.floor(Math.log(rough) / Math.log(1024))) : 1;
  const size = rough / base;
  const power = 10 ** Math.floor(Math.log10(size));
  return base * power * [1, 2, 2.5, 5, 10].find((value) => value * power >= size * 0.999999);
}

/** A value of the axis: round values have a short text. */
function onAxis(value, unit) {
  if (!value) return "0";
  if (unit.kind !== "seconds" || value < 60) return unit.show(value).replace(/\.0+(?= |$)/, "");
  const [size, word] = value >= 7200 || value % 3600 === 0 ? [3600, "h"] : value >= 120 || value % 60 === 0 ? [60, "min"] : [1, "s"];
  return `${Number((value / size).toFixed(1))} ${word}`;
}

/** Points of a time range: at most one per `width` of time, null for a gap. */
export function points(samples, value, from, to, width, reduce) {
  const out = [];
  const gap = Math.max(10, 3 * spacing(samples));
  let last = null;
  let start = firstFrom(samples, from - width);
  while (start < samples.length && samples[start][0] <= to) {
    const bucket = Math.floor(samples[start][0] / width);
    let total = 0;
    let most = -Infinity;
    let seen = 0;
    let at = 0;
    let end = start;
    while (end < samples.length && Math.floor(samples[end][0] / width) === bucket) {
      const one = samples[end][value];
      if (one !== null && one !== undefined) {
        total += one;
        most = Math.max(most, one);
        seen += 1;
      }
      at = samples[end][0];
      end += 1;
    }
    if (last !== null && at - last > gap + width) out.push(null);
    if (seen) out.push([at, reduce === "mean" ? total / seen : most]);
    else if (out.length && out[out.length - 1] !== null) out.push(null);
    last = at;
    start = end;
  }
  return out;
}

function firstFrom(samples, at) {
  let low = 0;
  let high = samples.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (samples[middle][0] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The interval of the older samples; the newer ones arrive every second. */
function spacing(samples) {
  const looked = Math.min(samples.length - 1, 20);
  return looked > 0 ? (samples[looked][0] - samples[0][0]) / looked : 1;
}

function path(list, x, y) {
  let line = "";
  let pen = "M";
  for (const point of list) {
    if (point === null) pen = "M";
    else {
      line += `${pen}${x(point[0]).toFixed(1)} ${y(point[1]).toFixed(1)}`;
      pen = "L";
    }
  }
  return line;
}

function area(list, x, y, floor) {
  let shape = "";
  let run = [];
  const close = () => {
    if (run.length > 1) shape += `${path(run, x, y)}L${x(run[run.length - 1][0]).toFixed(1)} ${floor}L${x(run[0][0]).toFixed(1)} ${floor}Z`;
    run = [];
  };
  for (const point of list) {
    if (point === null) close();
    else run.push(point);
  }
  close();
  return shape;
}

/** A line without axes, for lists, of the last five minutes. */
export class Sparkline {
  /** `value`: index of the figure in a sample; `reduce`: of the samples of a point, `mean` or `max`; `least`: the lowest end of the axis. */
  constructor({ name = "spark", value = 1, reduce = "mean", least = 1 } = {}) {
    Object.assign(this, { value, reduce, least });
    this.line = svg("path", { class: "line" });
    this.area = svg("path", { class: "area" });
    this.node = svg("svg", { class: name, viewBox: "0 0 120 24", preserveAspectRatio: "none", "aria-hidden": "true" }, this.area, this.line);
  }

  /** Returns the largest value; null if there is none. */
  draw(samples, now) {
    const list = points(samples, this.value, now - 300, now, 5, this.reduce);
    const values = list.filter(Boolean).map((point) => point[1]);
    const most = Math.max(this.least, ...values);
    const x = (at) => 120 - ((now - at) / 300) * 120;
    const y = (value) => 22.5 - (value / most) * 20;
    setAttr(this.line, "d", path(list, x, y));
    setAttr(this.area, "d", area(list, x, y, 24));
    return values.length ? Math.max(...values) : null;
  }

  /** Give the line a text for screen readers. */
  say(text) {
    setAttr(this.node, "aria-hidden", null);
    setAttr(this.node, "role", "img");
    setAttr(this.node, "aria-label", text);
  }
}

export class Chart {
  /** `kind`: `number`, `seconds` or `bytes`; `value`: reads the figure from a sample; `show`: formats it; `least`: the lowest end of the axis. */
  constructor({ title, className, aside }) {
    made += 1;
    const id = `chart-${made}`;
    this.unit = { value: 1, kind: "number", reduce: "mean", show: String, least: 10, suffix: "" };
    this.grid = svg("g", { class: "grid" });
    this.clip = svg("rect", { x: LEFT, y: 0, height: HEIGHT });
    this.area = svg("path", { class: "area", "clip-path": `url(#${id}-clip)` });
    this.line = svg("path", { class: "line", "clip-path": `url(#${id}-clip)` });
    this.cross = svg("line", { class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.dot = svg("circle", { class: "dot", r: 3.5, visibility: "hidden" });
    this.picture = svg(
      "svg",
      { class: "chart-picture", height: HEIGHT, role: "img", tabindex: "0", "aria-labelledby": `${id}-title ${id}-now` },
      svg("defs", {}, svg("clipPath", { id: `${id}-clip` }, this.clip)),
      this.grid,
      this.area,
      this.line,
      this.cross,
      this.dot,
    );
    this.current = el("span", { class: "chart-now", id: `${id}-now` }, el("b", { text: "–" }), el("span", { class: "faint" }));
    this.tip = el("div", { class: "tip", hidden: true });
    this.empty = el("p", { class: "chart-empty", text: "no figures yet" });
    this.node = el(
      "figure",
      { class: `chart ${className}` },
      el("figcaption", {}, el("span", { class: "chart-title", id: `${id}-title`, text: title }), this.current, ...aside),
      el("div", { class: "chart-box" }, this.picture, this.empty, this.tip),
    );
    this.width = 0;
    this.list = [];
    this.at = null;
    this.onHover = () => {};
    new ResizeObserver(([entry]) => {
      this.width = Math.floor(entry.contentRect.width);
      this.#draw();
    }).observe(this.node.querySelector(".chart-box"));
    this.picture.addEventListener("pointermove", (event) => this.#point(event.clientX));
    this.picture.addEventListener("pointerdown", (event) => this.#point(event.clientX));
    this.picture.addEventListener("pointerleave", () => this.#hover(null));
    this.picture.addEventListener("blur", () => this.#hover(null));
    this.picture.addEventListener("keydown", (event) => this.#key(event));
  }

  show(samples, span, now, unit) {
    Object.assign(this, { samples, span, now, unit });
    this.#draw();
  }

  /** The current values as text. */
  say(text, more = "", warn = false) {
    setText(this.current.firstElementChild, text);
    setText(this.current.lastElementChild, more);
    this.current.classList.toggle("warn", warn);
  }

  /** Show the values at a time; null hides them. */
  mark(at) {
    this.at = at;
    this.#mark();
  }

  #draw() {
    if (!this.width || !this.samples) return;
    const { width, span, now, unit } = this;
    setAttr(this.picture, "width", String(width));
    setAttr(this.clip, "width", String(Math.max(0, width - LEFT - RIGHT + 4)));
    const inner = Math.max(50, width - LEFT - RIGHT);
    this.list = points(this.samples, unit.value, now - span, now, Math.max(0.5, span / (inner / 2)), unit.reduce);
    let most = unit.least;
    for (const point of this.list) if (point && point[1] > most) most = point[1];
    const each = step(most, unit.kind);
    const top = Math.ceil((most / each) * 0.999999) * each;
    this.x = (at) => LEFT + inner * (1 - (now - at) / span);
    this.y = (value) => HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * (value / top);
    this.#axes(each, top);
    setAttr(this.line, "d", path(this.list, this.x, this.y));
    setAttr(this.area, "d", area(this.list, this.x, this.y, HEIGHT - BOTTOM));
    setProp(this.empty, "hidden", this.list.some(Boolean));
    this.#mark();
  }

  #axes(each, top) {
    const { now, span, width, unit } = this;
    const wanted = [];
    for (let value = 0; value <= top * 1.000001; value += each) {
      const y = this.y(value).toFixed(1);
      wanted.push({ x1: LEFT, x2: width - RIGHT, y1: y, y2: y, tx: LEFT - 8, ty: Number(y) + 4, anchor: "end", text: onAxis(value, unit) });
    }
    const every = TICKS.find(([longest]) => span <= longest)[1];
    const zone = new Date(now * 1000).getTimezoneOffset() * 60;
    for (let at = Math.ceil((now - span - zone) / every) * every + zone; at <= now; at += every) {
      const x = this.x(at);
      if (x < LEFT + 14 || x > width - 22) continue;
      const shown = x.toFixed(1);
      wanted.push({ x1: shown, x2: shown, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4, tx: shown, ty: HEIGHT - 4, anchor: "middle", text: span > 86400 ? clock(at, 0).slice(5, 10) : clock(at, at).slice(0, 5) });
    }
    while (this.grid.childElementCount < wanted.length) this.grid.append(svg("g", {}, svg("line"), svg("text")));
    while (this.grid.childElementCount > wanted.length) this.grid.lastElementChild.remove();
    wanted.forEach((tick, index) => {
      const [line, text] = this.grid.children[index].children;
      for (const name of ["x1", "x2", "y1", "y2"]) setAttr(line, name, String(tick[name]));
      setAttr(text, "x", String(tick.tx));
      setAttr(text, "y", String(tick.ty));
      setAttr(text, "text-anchor", tick.anchor);
      setText(text, tick.text);
    });
  }

  #point(clientX) {
    const x = clientX - this.picture.getBoundingClientRect().left;
    const inner = Math.max(50, this.width - LEFT - RIGHT);
    this.#hover(this.now - this.span * (1 - (x - LEFT) / inner));
  }

  #hover(at) {
    this.onHover(at);
  }

  #key(event) {
    const drawn = this.list.filter(Boolean);
    if (event.key === "Escape" && this.at !== null) {
      event.preventDefault(); // The key moves only the mark, not the page.
      return this.#hover(null);
    }
    if (!drawn.length || !["ArrowLeft", "ArrowRight", "Home", "End"].includes(event.key)) return undefined;
    event.preventDefault();
    const here = this.at === null ? drawn.length : nearest(drawn, this.at);
    const moved = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: drawn.length - 1 }[event.key];
    return this.#hover(drawn[Math.max(0, Math.min(drawn.length - 1, moved))][0]);
  }

  #mark() {
    const drawn = this.at === null ? [] : this.list.filter(Boolean);
    const shown = drawn.length > 0;
    for (const node of [this.cross, this.dot]) setAttr(node, "visibility", shown ? "visible" : "hidden");
    setProp(this.tip, "hidden", !shown);
    if (!shown) return;
    const [at, value] = drawn[nearest(drawn, this.at)];
    const x = this.x(at);
    setAttr(this.cross, "x1", x.toFixed(1));
    setAttr(this.cross, "x2", x.toFixed(1));
    setAttr(this.dot, "cx", x.toFixed(1));
    setAttr(this.dot, "cy", this.y(value).toFixed(1));
    setText(this.tip, `${this.unit.show(value)}${this.unit.suffix} at ${clock(at, this.now)}`);
    const left = Math.max(0, Math.min(this.width - this.tip.offsetWidth, x - this.tip.offsetWidth / 2));
    this.tip.style.transform = `translateX(${Math.round(left)}px)`;
  }
}

function nearest(list, at) {
  let best = 0;
  list.forEach((point, index) => {
    if (Math.abs(point[0] - at) < Math.abs(list[best][0] - at)) best = index;
  });
  return best;
}
