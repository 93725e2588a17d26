// The tables of a source with checkboxes, the columns of one table, and the preview of its target.

import { el, setText } from "./dom.js";
import { button, checkbox, field, grid, textInput } from "./editor_parts.js";
import { effective, escapeGlob, isSelected, setDatabase, setTable } from "./editor_selection.js";
import * as show from "./format.js";

const SHOWN = 300;
const ROWS = 10;
const MASKS = ["", "null", "empty", "email", "first 4", "last 4", "text ***"];

/** Databases and tables with sizes. `page` has the draft, its source section, and `changed()`. */
export class TableTree {
  constructor(page, found, open) {
    Object.assign(this, { page, found, open });
    this.filter = el("input", { type: "search", placeholder: "Filter tables", attrs: { "aria-label": "Filter tables of the source" } });
    this.filter.addEventListener("input", () => this.draw());
    this.says = el("p", { class: "faint", attrs: { role: "status" } });
    this.list = el("div", { class: "edit-tree" });
    this.opened = new Set(found.databases.length === 1 ? [found.databases[0].name] : [found.database]);
    this.node = el("div", {}, this.filter, this.says, this.list);
    this.draw();
  }

  draw() {
    const { draft, source } = this.page;
    const globs = effective(draft, source, this.found.database);
    const wanted = this.filter.value.trim().toLowerCase();
    let [selected, all] = [0, 0];
    const focused = document.activeElement?.getAttribute("data-at") ?? document.activeElement?.getAttribute("aria-label");
    const nodes = this.found.databases.map((database) => {
      const names = database.tables.map((table) => ({ ...table, full: `${database.name}.${table.name}` }));
      const chosen = names.filter((table) => isSelected(globs, table.full));
      selected += chosen.length;
      all += names.length;
      return this.#database(database.name, names, new Set(chosen.map((table) => table.full)), wanted);
    });
    this.list.replaceChildren(...nodes);
    const same = (node) => focused !== null && (node.getAttribute("data-at") ?? node.getAttribute("aria-label")) === focused;
    [...this.list.querySelectorAll("[data-at], [aria-label]")].find(same)?.focus();
    const more = this.found.complete ? "" : " The source has more tables than are listed here.";
    setText(this.says, `${show.count(selected)} of ${show.plural(all, "table")} selected. Rows and sizes are the server's estimates.${more}`);
  }

  #database(name, tables, chosen, wanted) {
    const size = tables.reduce((sum, table) => sum + table.bytes, 0);
    const summary = el("summary", { attrs: { "data-at": `database ${name}` } }, el("b", { text: name }), el("span", { class: "faint num", text: ` ${chosen.size} of ${show.plural(tables.length, "table")}, ${show.bytes(size)}` }));
    const node = el("details", { open: this.opened.has(name) || Boolean(wanted) }, summary);
    node.addEventListener("toggle", () => {
      if (node.open === this.opened.has(name) || wanted) return;
      if (node.open) this.opened.add(name);
      else this.opened.delete(name);
      this.draw();
    });
    if (!node.open) return node;
    const all = checkbox(`All tables of ${name}`, chosen.size === tables.length, (on) => {
      setDatabase(this.page.draft, this.page.source, this.found.database, name, on);
      this.page.changed();
    });
    all.querySelector("input").indeterminate = chosen.size > 0 && chosen.size < tables.length;
    const visible = tables.filter((table) => !wanted || table.full.toLowerCase().includes(wanted));
    const rows = visible.slice(0, SHOWN).map((table) => this.#table(table, chosen.has(table.full)));
    node.append(all, el("ul", {}, ...rows));
    if (visible.length > SHOWN) node.append(el("p", { class: "faint", text: `${show.count(visible.length - SHOWN)} more: filter to see them.` }));
    return node;
  }

  #table(table, selected) {
    const box = checkbox(table.full, selected, (on) => {
      setTable(this.page.draft, this.page.source, this.found.database, table.full, on);
      this.page.changed();
    }, table.name);
    const kind = table.kind === "BASE TABLE" ? "" : table.kind.toLowerCase();
    const rows = table.rows === null ? kind : `${show.short(table.rows)} rows`;
    const columns = button("Columns", () => this.open(table.full), "quiet");
    columns.setAttribute("aria-label", `Columns of ${table.full}`);
    return el("li", {}, box, el("span", { class: "faint num", text: rows }), el("span", { class: "faint num", text: show.bytes(table.bytes) }), columns);
  }
}

/** The columns of one table: which the sink gets, and how they are masked. */
export function columnsOf(page, found) {
  const chosen = page.tableDraft(found.table, found);
  const body = el("tbody");
  const masks = el("datalist", { id: "edit-masks" }, ...MASKS.map((value) => el("option", { value })));
  for (const column of found.columns) {
    const mask = textInput(chosen.mask[column.name] ?? "", { placeholder: "no mask", attrs: { list: "edit-masks", "aria-label": `Mask of ${column.name}` } });
    mask.addEventListener("change", () => {
      if (mask.value.trim()) chosen.mask[column.name] = mask.value.trim();
      else delete chosen.mask[column.name];
      page.setTable(found.table, chosen);
    });
    const kept = checkbox(`Replicate ${column.name}`, !chosen.drop.includes(column.name), (on) => {
      chosen.drop = on ? chosen.drop.filter((name) => name !== column.name) : [...chosen.drop, column.name];
      mask.disabled = !on;
      page.setTable(found.table, chosen);
    }, column.name);
    mask.disabled = chosen.drop.includes(column.name);
    body.append(
      el("tr", {}, el("td", {}, kept), el("td", { class: "mono faint", text: `${column.type}${column.nullable ? "" : " NOT NULL"}${column.key ? ", key" : ""}` }), el("td", {}, mask)),
    );
  }
  const head = el("tr", {}, ...["column", "type", "mask"].map((text) => el("th", { text, attrs: { scope: "col" } })));
  const table = el("table", { class: "edit-columns" }, el("thead", {}, head), body);
  const hint = "A column without a tick is not replicated. A mask is null, empty, email, first N, last N or text ANYTHING.";
  return el("div", {}, el("p", { class: "faint", text: hint }), masks, el("div", { class: "scroll" }, table));
}

export function previewOf(found) {
  const parts = found.statements.map((sql) => el("pre", { class: "edit-ddl", tabIndex: 0, text: `${sql};` }));
  if (!parts.length) parts.push(el("p", { class: "faint", text: "This sink has no tables: nothing is created." }));
  if (found.statements.length) parts.push(...existing(found));
  const rows = found.rows.length ? [grid(found)] : [];
  const note = passed(found);
  if (note) rows.push(el("p", { class: "faint", text: note }));
  return el("div", {}, el("h3", { text: "Target" }), ...parts, el("h3", { text: "First rows, as the sink gets them" }), ...rows);
}

/** Whether the statements above create anything. */
function existing(found) {
  if (!found.existing) return [el("p", { class: "faint", text: "Whether the target exists already is not known: the sink does not run, or does not answer." })];
  return found.existing.map((name) => el("p", { class: "warn-text", text: `${name} exists already: the pipe checks its columns, and does not create it.` }));
}

/** What the preview has read, if it shows fewer rows than it could. */
function passed({ rows, scanned, complete }) {
  if (!scanned) return "The table has no rows.";
  if (rows.length === scanned || rows.length >= ROWS) return "";
  const pass = rows.length > 1 ? "pass" : "passes";
  const some = rows.length || "None";
  if (complete) return `${some} of the ${show.plural(scanned, "row")} of the table ${pass} the filter.`;
  return `${some} of the first ${show.plural(scanned, "row")} ${pass} the filter. The rows after them were not read.`;
}

/** The globs of a draft as lists of lines. */
export function globFields(page) {
  const area = (key, label, hint) => {
    const input = el("textarea", { rows: 3, spellcheck: false, value: page.draft[key].join("\n") });
    input.addEventListener("change", () => {
      page.draft[key] = input.value.split("\n").map((line) => line.trim()).filter(Boolean);
      page.changed();
    });
    return { ...field(label, input, hint), key };
  };
  const areas = [
    area("include", "Tables to replicate", "One glob a line, such as shop.*; nothing means what the source says."),
    area("exclude", "Tables to leave out", "One glob a line."),
  ];
  const refresh = () => areas.forEach(({ input, key }) => (input.value = page.draft[key].join("\n")));
  return { node: el("div", { class: "edit-pair" }, ...areas.map(({ row }) => row)), refresh };
}

export { escapeGlob };
