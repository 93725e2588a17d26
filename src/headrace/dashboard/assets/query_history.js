// The queries that were run in this browser, newest first.
// Invariant: the list is bounded. It has texts of queries only, never a result, and never a text that contains the token.

import { el, setProp } from "./dom.js";
import * as show from "./format.js";
import * as token from "./token.js";

const KEY = "headrace.queries";
const MAX_QUERIES = 50;
const MAX_CHARACTERS = 10_000;

function read() {
  try {
    const stored = JSON.parse(localStorage.getItem(KEY) ?? "[]");
    const isQuery = (one) => typeof one?.sql === "string" && typeof one.pipe === "string" && Number.isFinite(one.at);
    return Array.isArray(stored) ? stored.filter(isQuery).slice(0, MAX_QUERIES) : [];
  } catch {
    // The browser forbids storage, or another program wrote there.
    return [];
  }
}

function write(queries) {
  try {
    if (queries.length) localStorage.setItem(KEY, JSON.stringify(queries));
    else localStorage.removeItem(KEY);
  } catch {
    // The browser forbids storage, or it is full: there is no history.
  }
}

export class QueryHistory {
  constructor(onChoose) {
    this.onChoose = onChoose;
    this.items = el("ol", { class: "query-list" });
    this.none = el("p", { class: "nothing", text: "No query has been run in this browser." });
    this.clear = el("button", { class: "quiet", type: "button", text: "Clear the history", on: { click: () => this.#clear() } });
    this.node = el("section", { class: "query-more", id: "query-history", hidden: true, attrs: { "aria-label": "Queries that were run" } }, this.items, this.none, this.clear);
  }

  add(pipe, sql) {
    const given = token.token();
    if (sql.length > MAX_CHARACTERS || (given && sql.includes(given))) return;
    const others = read().filter((one) => one.sql !== sql || one.pipe !== pipe);
    write([{ sql, pipe, at: Math.round(Date.now() / 1000) }, ...others].slice(0, MAX_QUERIES));
    this.draw();
  }

  draw() {
    if (this.node.hidden) return;
    const queries = read();
    this.items.replaceChildren(...queries.map((one) => this.#line(one)));
    setProp(this.none, "hidden", queries.length > 0);
    setProp(this.clear, "hidden", queries.length === 0);
  }

  #line({ sql, pipe, at }) {
    const about = el("span", { class: "faint", text: `${pipe}, ${show.clock(at)}` });
    const button = el("button", { class: "quiet query-past", type: "button", title: sql.slice(0, 1000) }, el("code", { text: sql.slice(0, 300) }), about);
    button.addEventListener("click", () => this.onChoose(sql));
    return el("li", {}, button);
  }

  #clear() {
    write([]);
    this.draw();
  }
}
