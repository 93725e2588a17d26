// The tables of a pipe: sorted, filtered, selected. Five hundred tables are a normal number.
// Invariant: lines that the user is busy with (pointer, focus, selection) keep their place while their figures change.

import { busy, el, icon, Keyed, setAttr, setIcon, setProp, setText, setVar } from "./dom.js";
import * as show from "./format.js";
import { TableCharts } from "./table_charts.js";

const VERDICTS = new Map([
  ["equal", { icon: "equal", tone: "good" }],
  ["different", { icon: "failed", tone: "bad" }],
  ["undecided", { icon: "unknown", tone: "warn" }],
  ["running", { icon: "starting", tone: "busy" }],
]);
/** Rows of a comparison with another result than "equal". */
const COUNTS = ["different", "missing", "extra", "undecided", "repaired"];
/** Lines that change their place every second are unreadable. */
const RESORT_S = 5;
const WEIGHT = new Map([["different", 4], ["undecided", 3], ["running", 2], ["equal", 1]]);

/** The sort order of each column; descending where users look for the largest values. */
const ORDERS = {
  name: { key: (table) => table.name, first: 1 },
  target: { key: (table) => table.target, first: 1 },
  rows: { key: (table) => table.rows ?? table.copied ?? -1, first: -1 },
  changes: { key: (table) => table.changes, first: -1 },
  rate: { key: (table) => table.rate, first: -1 },
  last: { key: (table) => table.last_change, first: -1 },
  verify: { key: (table) => (WEIGHT.get(table.verify?.verdict) ?? 0) * 1e12 + (table.verify?.differences ?? 0), first: -1 },
};

export class Tables {
  constructor() {
    const by = (id) => document.getElementById(id);
    this.body = by("tables-body");
    this.filter = by("table-filter");
    this.summary = by("tables-count");
    this.none = by("no-tables");
    this.all = by("tables-all");
    this.chosen = new Set();
    this.order = null;
    this.direction = 1;
    this.pipe = null;
    this.now = 0;
    this.sorted = 0;
    this.rows = new Keyed(this.body, (item) => this.#row(item), (node, item) => this.#update(node, item));
    this.charts = new TableCharts();
    this.onChoose = () => {};
    this.onQuery = () => {};
    this.filter.addEventListener("input", () => this.#show(true));
    this.all.addEventListener("change", () => this.#chooseAll(this.all.checked));
    for (const head of document.querySelectorAll("#tables th[data-order]")) {
      head.querySelector("button").addEventListener("click", () => this.#sort(head.dataset.order));
    }
  }

  update(pipe, now) {
    const other = this.pipe?.name !== pipe.name;
    if (other) {
      this.chosen.clear();
      this.filter.value = "";
    }
    Object.assign(this, { pipe, now });
    this.charts.update(pipe.name, now);
    this.#show(other);
  }

  /** The tables to which an action applies: the selected ones, or all. */
  meant() {
    return this.pipe.tables.map((table) => table.name).filter((name) => !this.chosen.size || this.chosen.has(name));
  }

  #left() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const left = this.pipe.tables.filter((table) => {
      const text = `${table.name} ${table.target} ${table.verify?.verdict ?? ""}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    if (!this.order) return left;
    const { key } = ORDERS[this.order];
    return left
      .map((table, index) => [key(table), index, table])
      .sort((a, b) => (a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : 0) * this.direction || a[1] - b[1])
      .map(([, , table]) => table);
  }

  #show(asked) {
    if (!this.pipe) return;
    const left = this.#left();
    const known = new Set(this.pipe.tables.map((table) => table.name));
    for (const name of this.chosen) if (!known.has(name)) this.chosen.delete(name);
    const settled = asked || (this.now - this.sorted >= RESORT_S && !busy(this.body));
    if (settled) this.sorted = this.now;
    this.rows.set(left, (table) => table.name, !settled);
    const total = this.pipe.tables.length;
    setText(this.summary, left.length === total ? show.plural(total, "table") : `${show.count(left.length)} of ${show.plural(total, "table")}`);
    setProp(this.none, "hidden", left.length > 0);
    setText(this.none, total ? "No table matches the filter." : "No tables yet.");
    const chosenHere = left.filter((table) => this.chosen.has(table.name)).length;
    setProp(this.all, "checked", left.length > 0 && chosenHere === left.length);
    setProp(this.all, "indeterminate", chosenHere > 0 && chosenHere < left.length);
    this.onChoose(this.chosen.size);
  }

  #sort(name) {
    if (this.order !== name) [this.order, this.direction] = [name, ORDERS[name].first];
    else if (this.direction === ORDERS[name].first) this.direction = -this.direction;
    else this.order = null;
    for (const head of document.querySelectorAll("#tables th[data-order]")) {
      const here = head.dataset.order === this.order;
      setAttr(head, "aria-sort", here ? (this.direction > 0 ? "ascending" : "descending") : "none");
    }
    this.#show(true);
  }

  #chooseAll(yes) {
    for (const table of this.#left()) {
      if (yes) this.chosen.add(table.name);
      else this.chosen.delete(table.name);
    }
    this.#show(false);
  }

  #row(table) {
    const cell = (className, label, ...children) => el("td", { class: className, attrs: { role: "cell", "data-label": label } }, ...children);
    const check = el("input", { type: "checkbox" });
    check.addEventListener("change", () => {
      if (check.checked) this.chosen.add(table.name);
      else this.chosen.delete(table.name);
      this.#show(false);
    });
    const name = el("bdi", { class: "table-name" });
    const target = el("bdi");
    const query = el("button", { class: "quiet query-table", type: "button", title: "Query this table" }, icon("query"));
    query.addEventListener("click", () => this.onQuery(row.table));
    const rows = el("span");
    const bar = el("span", { class: "bar", hidden: true }, el("i"));
    const charts = this.charts.line();
    const rate = el("span", { class: "num" });
    const verdict = el("span", { class: "verdict" }, icon("unknown"), el("span"));
    const cells = {
      changes: cell("num", "changes"),
      rate: cell("rate", "changes/s", charts.node, rate),
      last: cell("num last", "last change"),
    };
    const row = el(
      "tr",
      { attrs: { role: "row" } },
      cell("pick", "", check),
      cell("name", "", name),
      cell("target faint", "target", target, query),
      cell("num rows", "rows", rows, bar),
      cells.changes,
      cells.rate,
      cells.last,
      cell("verify", "verify", verdict),
    );
    return Object.assign(row, { parts: { check, name, target, query, rows, bar, verdict, charts, now: rate, ...cells } });
  }

  #update(row, table) {
    const { parts } = row;
    row.table = table;
    setProp(parts.check, "checked", this.chosen.has(table.name));
    setAttr(parts.check, "aria-label", `Choose ${table.name}`);
    setText(parts.name, table.name);
    setProp(parts.name, "title", table.name);
    setText(parts.target, table.target || "–");
    setProp(parts.query, "hidden", !table.target);
    setAttr(parts.query, "aria-label", `Query ${table.target}`);
    const copying = !table.complete && table.copied !== null;
    const speed = copying && table.snapshot_rate >= 1 ? `, ${show.short(Math.round(table.snapshot_rate))}/s` : "";
    setText(parts.rows, copying ? `${show.short(table.copied)} of ≈${show.short(table.estimate)}${speed}` : show.count(table.rows));
    setText(parts.now, table.rate > 0 ? show.rate(table.rate) : "–");
    this.charts.draw(parts.charts, table.name);
    setProp(parts.bar, "hidden", !copying);
    if (copying) setVar(parts.bar, "--part", String(Math.min(1, table.copied / Math.max(1, table.estimate ?? 0, table.copied))));
    setText(parts.changes, show.count(table.changes));
    setText(parts.last, show.ago(table.last_change, this.now));
    setProp(parts.last, "title", table.last_change ? show.clock(table.last_change, this.now) : "no change came yet");
    this.#verdict(parts.verdict, table);
  }

  #verdict(node, { verify, complete }) {
    const known = VERDICTS.get(verify?.verdict);
    node.className = `verdict ${known?.tone ?? "none"}`;
    setIcon(node.firstElementChild, known?.icon ?? "unknown");
    setAttr(node.firstElementChild, "hidden", known ? null : "");
    let text = complete ? "–" : "not yet";
    if (verify?.verdict === "different") text = `${show.count(verify.differences)} differ`;
    else if (verify) text = verify.verdict === "running" ? "comparing" : verify.verdict;
    setText(node.lastElementChild, text);
    const rows = COUNTS.filter((kind) => verify?.[kind]).map((kind) => `, ${show.count(verify[kind])} ${kind}`).join("");
    const excluded = verify?.excluded ? `, ${show.count(verify.excluded)} excluded by the filter,` : "";
    const others = `${verify?.partial ? `; ${verify.partial}` : ""}${verify?.pipe_stopped ? "; the pipe was stopped" : ""}`;
    setProp(node, "title", verify ? `${show.count(verify.rows)} rows compared${rows}${excluded} at ${show.clock(verify.at, this.now)}${others}` : "not compared yet");
  }
}
