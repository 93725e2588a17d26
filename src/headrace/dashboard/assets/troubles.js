// Lists of a pipe: errors with position and remedy, running snapshots, schema changes.

import { copyButton, el, Keyed, setProp, setText, setVar } from "./dom.js";
import * as show from "./format.js";

const COPIES_SHOWN = 12;

export function asText(pipe, trouble) {
  const lines = [`${pipe}: ${trouble.message}`];
  if (trouble.place) lines.push(`at: ${trouble.place}`);
  if (trouble.remedy) lines.push(`remedy: ${trouble.remedy}`);
  if (trouble.at) lines.push(`time: ${new Date(trouble.at * 1000).toISOString()}`);
  return lines.join("\n");
}

/** The error that halted a pipe, or the wait it is in: complete, at the top. */
export class Halt {
  constructor(onSkip) {
    const by = (id) => document.getElementById(id);
    Object.assign(this, { node: by("halt"), title: by("halt-title"), message: by("halt-message"), place: by("halt-place"), remedy: by("halt-remedy") });
    this.skip = by("halt-skip");
    this.skip.addEventListener("click", onSkip);
    by("halt-tools").append(copyButton(() => asText(this.pipe.name, this.pipe.error ?? { message: this.pipe.waiting })));
  }

  update(pipe, now) {
    this.pipe = pipe;
    const waits = pipe.stage === "waiting" && pipe.waiting;
    const halted = pipe.error && (pipe.stage === "failed" || pipe.stage === "retrying" || pipe.stage === "starting");
    setProp(this.node, "hidden", !halted && !waits);
    if (!halted && !waits) return;
    const { error } = pipe;
    setProp(this.node, "className", `halt ${pipe.stage === "failed" ? "bad" : "warn"}`);
    setText(this.title, this.#title(pipe, now));
    setText(this.message, waits ? pipe.waiting : error.message);
    this.#line(this.place, waits ? "" : error.place);
    this.#line(this.remedy, waits ? "It goes on by itself as soon as there is an answer." : error.remedy);
    setProp(this.skip, "hidden", Boolean(waits) || !error.skippable);
  }

  #title(pipe, now) {
    if (pipe.stage === "waiting") return `Waiting for ${show.duration(pipe.waiting_s)}`;
    if (pipe.stage === "retrying") return `Tried again in ${show.duration(Math.max(0, pipe.next_try - now))}`;
    if (pipe.stage === "starting") return "Starting again after";
    return `Halted ${show.ago(pipe.error.at || pipe.since, now)}`;
  }

  #line(node, text) {
    setText(node.lastElementChild, text);
    setProp(node, "hidden", !text);
  }
}

/** Tables whose snapshot is running. */
export class Snapshot {
  constructor() {
    const by = (id) => document.getElementById(id);
    Object.assign(this, { node: by("snapshot"), says: by("snapshot-says"), bar: by("snapshot-bar"), more: by("snapshot-more") });
    this.list = new Keyed(by("snapshot-list"), copyLine, updateCopy);
  }

  update(pipe, now) {
    const copies = pipe.tables.filter((table) => table.copied !== null);
    const open = copies.filter((table) => !table.complete);
    const shown = open.length > 0 || (pipe.stage === "snapshot" && copies.length > 0);
    setProp(this.node, "hidden", !shown);
    if (!shown) return;
    const copied = copies.reduce((sum, table) => sum + table.copied, 0);
    const total = copies.reduce((sum, table) => sum + (table.complete ? table.copied : Math.max(table.estimate ?? 0, table.copied)), 0);
    const part = show.percent(copied, total, open.length === 0);
    const left = pipe.eta_s === null ? "" : `, about ${show.duration(pipe.eta_s)} left`;
    const pace = this.#pace(pipe.name, copied, now);
    setText(this.says, `${part}: ${show.count(copied)} of about ${show.count(total)} rows, ${copies.length - open.length} of ${show.plural(copies.length, "table")} done${left}${pace}`);
    setProp(this.bar, "value", total ? copied / total : 0);
    // Tables with progress first: users look for the running ones.
    const order = [...open.filter((table) => table.copied > 0), ...open.filter((table) => !table.copied)];
    this.list.set(order.slice(0, COPIES_SHOWN), (table) => table.name);
    setText(this.more, order.length > COPIES_SHOWN ? `and ${show.plural(order.length - COPIES_SHOWN, "table")} more` : "");
  }

  /** Rows per second over about the last ten seconds. */
  #pace(name, copied, now) {
    if (this.marks?.[0]?.name !== name) this.marks = [];
    this.marks.push({ name, copied, now });
    while (this.marks.length > 2 && now - this.marks[1].now >= 10) this.marks.shift();
    const [first] = this.marks;
    const pace = (copied - first.copied) / (now - first.now);
    return now - first.now >= 2 && pace > 0 ? `, ${show.rate(Math.round(pace))} rows/s` : "";
  }
}

function copyLine() {
  const parts = { who: el("bdi", { class: "table-name" }), bar: el("span", { class: "bar" }, el("i")), done: el("span", { class: "num" }), rows: el("span", { class: "num faint" }) };
  return Object.assign(el("li", {}, ...Object.values(parts)), { parts });
}

function updateCopy({ parts }, table) {
  const total = Math.max(table.estimate ?? 0, table.copied);
  setText(parts.who, table.name);
  setVar(parts.bar, "--part", String(total ? Math.min(1, table.copied / total) : 0));
  setText(parts.done, show.percent(table.copied, table.estimate, table.complete));
  setText(parts.rows, table.estimate === null ? show.count(table.copied) : `${show.count(table.copied)} of ≈${show.count(table.estimate)}`);
}

export class SchemaChanges {
  constructor() {
    this.none = document.getElementById("no-schema-changes");
    this.list = new Keyed(document.getElementById("schema-changes"), changeLine, (node, change) => {
      setText(node.when, show.ago(change.at, this.now));
      setProp(node.when, "title", show.clock(change.at, this.now));
    });
  }

  update(pipe, now) {
    this.now = now;
    this.list.set(pipe.schema_changes, (change) => `${pipe.name} ${change.at} ${change.table} ${change.statement} ${change.outcome}`);
    setProp(this.none, "hidden", pipe.schema_changes.length > 0);
  }
}

function changeLine(change) {
  const when = el("time", { class: "faint" });
  const node = el(
    "li",
    { class: "event" },
    el("p", { class: "event-head" }, el("bdi", { class: "table-name", text: change.table }), when),
    el("pre", { class: "statement", text: change.statement }),
    el("p", { class: "outcome", text: change.outcome }),
  );
  return Object.assign(node, { when });
}

export class RecentErrors {
  constructor() {
    this.none = document.getElementById("no-errors");
    this.list = new Keyed(document.getElementById("errors"), (item) => errorLine(item), (node, { trouble }) => {
      setText(node.when, show.ago(trouble.at, this.now));
      setProp(node.when, "title", show.clock(trouble.at, this.now));
    });
  }

  update(pipe, now) {
    this.now = now;
    this.list.set(pipe.recent_errors.map((trouble) => ({ trouble, pipe: pipe.name })), ({ trouble }) => `${pipe.name} ${trouble.at} ${trouble.place} ${trouble.message}`);
    setProp(this.none, "hidden", pipe.recent_errors.length > 0);
  }
}

function errorLine({ trouble, pipe }) {
  const when = el("time", { class: "faint" });
  const kind = el("span", { class: trouble.transient ? "kind warn" : "kind bad", text: trouble.transient ? "passing" : "definite" });
  const node = el(
    "li",
    { class: "event" },
    el("p", { class: "event-head" }, kind, when, copyButton(() => asText(pipe, trouble))),
    el("p", { class: "message", text: trouble.message }),
  );
  if (trouble.place) node.append(el("p", { class: "mono faint", text: trouble.place }));
  if (trouble.remedy) node.append(el("p", { class: "remedy", text: trouble.remedy }));
  return Object.assign(node, { when });
}
