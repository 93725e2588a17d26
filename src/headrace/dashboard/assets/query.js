// The query box: read-only SQL on a pipe's sink, with the result as a table or a chart. A result belongs to the pipe that was queried.

import { post, Refused } from "./actions.js";
import { copyButton, el, setAttr, setProp, setText } from "./dom.js";
import * as show from "./format.js";
import { QueryHistory } from "./query_history.js";
import { plan, ResultChart } from "./result_chart.js";
import { SchemaBrowser, toggleButton } from "./schema_browser.js";
import { quoted } from "./sql_names.js";

const SHOWN = 1000;

export class Query {
  constructor() {
    const by = (id) => document.getElementById(id);
    Object.assign(this, { box: by("sql"), run: by("query-run"), result: by("query-result"), says: by("query-says"), pipe: null, asked: 0 });
    this.texts = new Map();
    this.results = new Map();
    this.copied = copyButton(() => this.#tabbed(), "Copy as TSV");
    this.copied.hidden = true;
    by("query-tools").append(this.copied);
    this.schema = new SchemaBrowser((name) => this.#insert(name));
    this.history = new QueryHistory((sql) => this.#replace(sql));
    this.chart = new ResultChart();
    this.charted = false;
    this.chartSwitch = el("button", { class: "quiet", type: "button", text: "Chart", hidden: true, attrs: { "aria-pressed": "false" } });
    this.chartSwitch.addEventListener("click", () => {
      this.charted = !this.charted;
      this.#draw();
    });
    const tables = toggleButton("Tables", this.schema.node, () => this.schema.draw(this.pipe, true));
    const past = toggleButton("History", this.history.node, () => this.history.draw());
    this.result.before(el("div", { class: "query-switches" }, tables, past, this.chartSwitch), this.schema.node, this.history.node, this.chart.node);
    this.run.addEventListener("click", () => this.ask());
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.ask();
      }
    });
  }

  /** Switch to another pipe and restore its text and result. */
  show(pipe) {
    if (this.pipe?.name === pipe.name) {
      this.pipe = pipe;
      return;
    }
    if (this.pipe) this.texts.set(this.pipe.name, this.box.value);
    this.pipe = pipe;
    this.box.value = this.texts.get(pipe.name) ?? this.#first(pipe);
    this.schema.draw(pipe, false);
    this.#draw();
  }

  /** Put a name where the cursor is. */
  #insert(name) {
    this.box.setRangeText(name, this.box.selectionStart, this.box.selectionEnd, "end");
    this.box.focus();
  }

  #replace(sql) {
    this.box.value = sql;
    this.box.focus();
  }

  fill(sql) {
    this.box.value = sql;
    this.box.scrollIntoView({ block: "center", behavior: "smooth" });
    this.box.focus({ preventScroll: true });
    this.ask();
  }

  table(table) {
    this.fill(`SELECT * FROM ${quoted(table.target)} FINAL LIMIT 20`);
  }

  deadLetters() {
    const pipe = this.pipe.name.replaceAll("\\", "\\\\").replaceAll("'", "\\'");
    const columns = "failed_at, table, key, column, reason, operation, position, tries, row";
    this.fill(`SELECT ${columns} FROM headrace.errors FINAL WHERE pipe = '${pipe}' AND state = 'waiting' ORDER BY failed_at DESC LIMIT 50`);
  }

  #first(pipe) {
    const table = pipe.tables.find((one) => one.target);
    return table ? `SELECT count() FROM ${quoted(table.target)} FINAL` : "SELECT 1";
  }

  async ask() {
    const { pipe } = this;
    const sql = this.box.value.trim();
    if (!sql || this.run.disabled) return;
    this.run.disabled = true;
    setText(this.says, "asking …");
    const began = performance.now();
    let result = null;
    try {
      const answer = await post("/api/query", { pipe: pipe.name, sql });
      if (answer) result = { ...answer, ms: performance.now() - began };
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      result = { error };
    } finally {
      this.run.disabled = false;
    }
    if (result) {
      this.results.set(pipe.name, result);
      this.history.add(pipe.name, sql);
    }
    this.#draw();
  }

  #draw() {
    const result = this.results.get(this.pipe.name);
    setProp(this.copied, "hidden", !result?.columns);
    const planned = result?.columns ? plan(result) : null;
    setProp(this.chartSwitch, "hidden", !planned);
    setAttr(this.chartSwitch, "aria-pressed", String(this.charted));
    setProp(this.chart.node, "hidden", !planned || !this.charted);
    setProp(this.result, "hidden", Boolean(planned) && this.charted);
    if (planned && this.charted) this.chart.show(planned);
    this.says.classList.toggle("bad", Boolean(result?.error));
    if (!result) {
      setText(this.says, "Ctrl+Enter runs it. Reading only; in time and rows it is bounded.");
      this.result.replaceChildren();
    } else if (result.error) {
      setText(this.says, "It was refused:");
      this.result.replaceChildren(failure(result.error));
    } else {
      setText(this.says, `${show.plural(result.rows.length, "row")} in ${show.lag(result.ms / 1000)}${result.rows.length > SHOWN ? `, the first ${show.count(SHOWN)} are shown` : ""}`);
      this.result.replaceChildren(grid(result));
    }
  }

  #tabbed() {
    const { columns, rows } = this.results.get(this.pipe.name);
    const escaped = (value) => (value === null ? "\\N" : text(value).replaceAll("\\", "\\\\").replaceAll("\t", "\\t").replaceAll("\n", "\\n"));
    return [columns, ...rows].map((row) => row.map(escaped).join("\t")).join("\n");
  }
}

function text(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : String(value);
}

function failure(error) {
  const box = el("div", { class: "query-error", attrs: { role: "alert" } }, el("pre", { text: error.message }));
  if (error.place) box.append(el("p", { class: "mono faint", text: error.place }));
  if (error.remedy) box.append(el("p", { class: "remedy", text: error.remedy }));
  return box;
}

function grid({ columns, rows }) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { text: name, attrs: { scope: "col" } })));
  const body = el("tbody");
  for (const row of rows.slice(0, SHOWN)) {
    body.append(
      el("tr", {}, ...row.map((value) => el("td", { class: value === null ? "null" : typeof value === "number" ? "num" : "", text: value === null ? "NULL" : text(value) }))),
    );
  }
  return el("table", { class: "grid-table" }, el("thead", {}, head), body);
}
