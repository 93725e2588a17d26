// The databases, tables and columns of a pipe's sink. A click on a name puts it into the query.
// They are read by the same read-only queries that users run, when the list or a table is opened.

import { post, Refused } from "./actions.js";
import { el, setProp, setText } from "./dom.js";
import { quoted, quotedName } from "./sql_names.js";
import * as token from "./token.js";

const MAX_TABLES = 1000;
const HIDDEN = "'system', 'information_schema', 'INFORMATION_SCHEMA'";

/** A text in SQL: as hexadecimal digits, it needs no escapes, and no word in it means anything. */
function literal(text) {
  const digits = [...new TextEncoder().encode(text)].map((byte) => byte.toString(16).padStart(2, "0"));
  return `unhex('${digits.join("")}')`;
}

export function tablesQuery(database) {
  return `SELECT database, name, engine FROM system.tables WHERE database NOT IN (${HIDDEN}) ORDER BY database = ${literal(database)} DESC, database, name LIMIT ${MAX_TABLES}`;
}

export function columnsQuery(database, table) {
  return `SELECT name, type, comment FROM system.columns WHERE database = ${literal(database)} AND table = ${literal(table)} ORDER BY position LIMIT ${MAX_TABLES}`;
}

export class SchemaBrowser {
  constructor(onChoose) {
    Object.assign(this, { onChoose, pipe: null, shown: null, tables: [] });
    this.filter = el("input", { type: "search", placeholder: "Find a table", autocomplete: "off", spellcheck: false, attrs: { "aria-label": "Find a table of the sink" } });
    this.says = el("span", { class: "says", attrs: { role: "status" } });
    this.tree = el("div", { class: "schema-tree" });
    this.again = el("button", { class: "quiet", type: "button", text: "Read again", on: { click: () => this.#load() } });
    const head = el("div", { class: "schema-head" }, this.filter, this.says, this.again);
    this.node = el("section", { class: "query-more", id: "query-schema", hidden: true, attrs: { "aria-label": "Tables and columns of the sink" } }, head, this.tree);
    this.filter.addEventListener("input", () => this.#draw());
  }

  /** Draw the tables of a pipe's sink if the list is open. `opened`: the user opened it, so the page may ask for the token. */
  draw(pipe, opened) {
    this.pipe = pipe;
    if (this.node.hidden || this.shown === pipe.name) return;
    if (opened || token.token()) this.#load();
    else {
      Object.assign(this, { shown: null, tables: [] });
      this.#draw();
      setText(this.says, "");
    }
  }

  async #load() {
    const { pipe } = this;
    Object.assign(this, { shown: pipe.name, tables: [] });
    setText(this.says, "reading …");
    this.tree.replaceChildren();
    const target = pipe.tables.find((one) => one.target)?.target ?? "";
    const rows = await this.#rows(pipe, tablesQuery(target.slice(0, Math.max(0, target.indexOf(".")))));
    if (rows === null || this.shown !== pipe.name) return;
    this.tables = rows.map(([database, name, engine]) => ({ database, name, engine }));
    this.#draw();
  }

  async #rows(pipe, sql) {
    try {
      const answer = await post("/api/query", { pipe: pipe.name, sql });
      if (answer) return answer.rows;
      setText(this.says, "The list needs the token.");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      setText(this.says, error.message);
    }
    this.shown = null;
    return null;
  }

  #draw() {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const left = this.tables.filter(({ database, name }) => words.every((word) => `${database}.${name}`.toLowerCase().includes(word)));
    const databases = new Map();
    for (const table of left) databases.set(table.database, [...(databases.get(table.database) ?? []), table]);
    const isOpen = databases.size === 1 || words.length > 0;
    this.tree.replaceChildren(...[...databases].map(([name, tables], index) => this.#database(name, tables, isOpen || index === 0)));
    const more = this.tables.length >= MAX_TABLES ? `, the first ${MAX_TABLES}` : "";
    setText(this.says, left.length === this.tables.length ? `${left.length} tables${more}` : `${left.length} of ${this.tables.length} tables${more}`);
  }

  #database(name, tables, isOpen) {
    const summary = el("summary", {}, el("bdi", { text: name }), el("span", { class: "faint", text: ` ${tables.length}` }));
    return el("details", { class: "schema-database", open: isOpen }, summary, ...tables.map((table) => this.#table(table)));
  }

  #table({ database, name, engine }) {
    const columns = el("ul", { class: "schema-columns" });
    const node = el("details", { class: "schema-table" }, el("summary", {}, el("bdi", { text: name }), el("span", { class: "faint", text: ` ${engine}` })), columns);
    node.addEventListener("toggle", () => {
      if (node.open && !columns.childElementCount) this.#columns(columns, database, name);
    });
    return node;
  }

  async #columns(list, database, table) {
    list.replaceChildren(el("li", { class: "faint", text: "reading …" }));
    const rows = await this.#rows(this.pipe, columnsQuery(database, table));
    const whole = this.#name(table, "the whole name", quoted(`${database}.${table}`), `Put the name of the table ${table} into the query`);
    const names = (rows ?? []).map(([name, type, comment]) => this.#name(name, type, quotedName(name), comment || `Put the column ${name} into the query`));
    list.replaceChildren(...(rows === null ? [] : [whole, ...names]));
  }

  #name(name, about, inserted, title) {
    const button = el("button", { class: "quiet schema-name", type: "button", title }, el("bdi", { text: name }), el("span", { class: "faint", text: about }));
    button.addEventListener("click", () => this.onChoose(inserted));
    return el("li", {}, button);
  }
}

/** A button that opens and closes a node. `onOpen` is called when it opens. */
export function toggleButton(text, node, onOpen) {
  const button = el("button", { class: "quiet", type: "button", text, attrs: { "aria-expanded": "false", "aria-controls": node.id } });
  button.addEventListener("click", () => {
    setProp(node, "hidden", !node.hidden);
    button.setAttribute("aria-expanded", String(!node.hidden));
    if (!node.hidden) onOpen();
  });
  return button;
}
