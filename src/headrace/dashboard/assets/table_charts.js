// Changes/s of the busiest tables of a pipe over the last hour, as a small line in each row.

import { setAttr, svg } from "./dom.js";

const EVERY_S = 10;
const WIDTH = 60;
const HEIGHT = 20;

export class TableCharts {
  constructor() {
    Object.assign(this, { pipe: null, due: 0, step: EVERY_S, changes: {} });
  }

  update(pipe, now) {
    if (pipe !== this.pipe) Object.assign(this, { pipe, due: 0, changes: {} });
    if (now < this.due && this.due - now <= 2 * EVERY_S) return;
    this.due = now + EVERY_S;
    this.#ask(pipe);
  }

  async #ask(pipe) {
    try {
      const answer = await fetch(`/api/table_rates?${new URLSearchParams({ pipe })}`, { cache: "no-store", signal: AbortSignal.timeout(1000 * EVERY_S) });
      if (!answer.ok) return;
      const { step_s: step, changes } = await answer.json();
      if (pipe === this.pipe) Object.assign(this, { step, changes });
    } catch {
      // The line to the process says that it does not answer.
    }
  }

  /** The empty chart of a row. */
  line() {
    const path = svg("path", { class: "line" });
    const node = svg("svg", { class: "table-chart", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" }, path);
    return { node, path, drawn: null };
  }

  draw(chart, table) {
    // A table may have the name of a property of every object.
    const points = Object.hasOwn(this.changes, table) ? this.changes[table] : null;
    // A row is drawn every second, its points change every ten.
    if (chart.drawn === points) return;
    chart.drawn = points;
    if (!points) {
      setAttr(chart.path, "d", "");
      return;
    }
    const most = Math.max(1, ...points);
    const hour = 3600 / this.step;
    const x = (at) => WIDTH - ((points.length - 1 - at) / (hour - 1)) * WIDTH;
    setAttr(chart.path, "d", points.map((value, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`).join(""));
  }
}
