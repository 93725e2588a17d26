// All details of one pipe.

import { act, resync, skip, stop } from "./actions.js";
import { Chart } from "./chart.js";
import { copy, el, setAttr, setIcon, setProp, setText } from "./dom.js";
import * as show from "./format.js";
import { History } from "./history.js";
import { late, setBadge } from "./overview.js";
import { Query } from "./query.js";
import { behindUnit, canStop, runs, stage, toggle, toggleLabel } from "./stages.js";
import { Tables } from "./tables.js";
import { Halt, RecentErrors, SchemaChanges, Snapshot } from "./troubles.js";

const RATE = { value: 1, kind: "number", reduce: "mean", show: show.rate, least: 10, suffix: " /s" };
const COPIED = { value: 4, kind: "number", reduce: "mean", show: show.rate, least: 10, suffix: " rows/s" };
const LAG_S = { value: 2, kind: "seconds", reduce: "max", show: show.lag, least: 1, suffix: "" };
const LAG_BYTES = { value: 3, kind: "bytes", reduce: "max", show: show.bytes, least: 1024, suffix: "" };
const LAG_RECORDS = { value: 3, kind: "number", reduce: "max", show: show.short, least: 10, suffix: " records" };

/** A selector with few options. */
function choice(label, options, onChange) {
  const node = el("span", { class: "choice", attrs: { role: "group", "aria-label": label } });
  for (const [value, text] of options) {
    node.append(el("button", { type: "button", class: "quiet", value, text, on: { click: () => onChange(value) } }));
  }
  return node;
}

function setChoice(node, value) {
  for (const button of node.children) setAttr(button, "aria-pressed", String(button.value === value));
}

export class Detail {
  constructor() {
    const by = (id) => document.getElementById(id);
    this.pipe = null;
    this.span = "300";
    this.lagIn = "seconds";
    this.nodes = Object.fromEntries(["pipe-title", "pipe-badge", "pipe-since", "pipe-source", "pipe-sink", "pipe-position", "do-toggle", "do-stop", "do-verify", "do-resync"].map((id) => [id, by(id)]));
    this.halt = new Halt(() => skip(this.pipe));
    this.snapshot = new Snapshot();
    this.tables = new Tables();
    this.schemaChanges = new SchemaChanges();
    this.errors = new RecentErrors();
    this.query = new Query();
    this.history = new History();
    this.history.onAnswer = () => this.#draw();
    this.#charts(by("charts"));
    this.#buttons();
    this.tables.onQuery = (table) => this.query.table(table);
    this.tables.onChoose = (n) => this.#chosen(n);
    by("tile-dead").addEventListener("click", () => this.query.deadLetters());
  }

  #charts(place) {
    this.spans = choice("How far back", [["300", "5 min"], ["3600", "1 h"], ["86400", "1 d"], ["2592000", "30 d"]], (value) => this.setSpan(value));
    this.units = choice("Lag in", [["seconds", "time"], ["bytes", "size"]], (value) => {
      this.lagIn = value;
      this.#draw();
    });
    this.rate = new Chart({ title: "Changes/s", className: "rate", aside: [this.spans] });
    this.lag = new Chart({ title: "Lag", className: "lag", aside: [this.units] });
    this.copied = new Chart({ title: "Snapshot rows/s", className: "copied", aside: [] });
    const all = [this.rate, this.lag, this.copied];
    for (const chart of all) chart.onHover = (at) => all.forEach((each) => each.mark(at));
    place.append(...all.map((chart) => chart.node));
  }

  #buttons() {
    this.nodes["do-toggle"].addEventListener("click", () => this.toggle());
    this.nodes["do-stop"].addEventListener("click", () => stop(this.pipe));
    this.nodes["do-verify"].addEventListener("click", () => this.verify());
    this.nodes["do-resync"].addEventListener("click", () => resync(this.pipe, this.tables.meant()));
    this.nodes["pipe-position"].addEventListener("click", async () => {
      const node = this.nodes["pipe-position"];
      if (await copy(this.pipe.position)) node.classList.add("copied");
      setTimeout(() => node.classList.remove("copied"), 1200);
    });
  }

  toggle() {
    const action = this.pipe && toggle(this.pipe.stage);
    return action ? act(this.pipe, action) : Promise.resolve(false);
  }

  verify() {
    const body = this.tables.chosen.size ? { tables: this.tables.meant() } : {};
    return act(this.pipe, "verify", body);
  }

  setSpan(value) {
    this.span = value;
    this.#draw();
  }

  #chosen(n) {
    setText(this.nodes["do-verify"].lastElementChild, n ? `Verify ${n}` : "Verify");
    setText(this.nodes["do-resync"].lastElementChild, n ? `Resync ${n}…` : "Resync…");
  }

  update(pipe, samples, now) {
    Object.assign(this, { pipe, samples, now });
    this.#head(pipe, now);
    this.#tiles(pipe);
    this.halt.update(pipe, now);
    this.snapshot.update(pipe, now);
    this.tables.update(pipe, now);
    this.schemaChanges.update(pipe, now);
    this.errors.update(pipe, now);
    this.query.show(pipe);
    this.#draw();
  }

  #head(pipe, now) {
    const { nodes } = this;
    setText(nodes["pipe-title"], pipe.name);
    setBadge(nodes["pipe-badge"], pipe.stage);
    setText(nodes["pipe-since"], pipe.since ? `for ${show.duration(now - pipe.since)}` : "");
    setText(nodes["pipe-source"], pipe.source);
    setText(nodes["pipe-sink"], pipe.sink);
    setText(nodes["pipe-position"], pipe.position || "–");
    const next = toggle(pipe.stage);
    setText(nodes["do-toggle"].lastElementChild, toggleLabel(pipe.stage));
    setIcon(nodes["do-toggle"].firstElementChild, next === "resume" ? "streaming" : "pause");
    setProp(nodes["do-toggle"], "disabled", next === null);
    nodes["do-toggle"].classList.toggle("primary", next === "resume");
    setProp(nodes["do-stop"], "disabled", !canStop(pipe.stage));
    setProp(nodes["do-verify"], "disabled", !runs(pipe.stage) && pipe.stage !== "paused" && pipe.stage !== "stopped");
    setProp(nodes["do-resync"], "disabled", pipe.stage === "disabled" || !pipe.tables.length);
  }

  #tiles(pipe) {
    const figures = {
      "fig-changes": show.short(pipe.changes),
      "fig-bytes": show.bytes(pipe.bytes),
      "fig-batches": show.short(pipe.batches),
      "fig-relay": show.bytes(pipe.relay_bytes),
      "fig-errors": show.count(pipe.errors),
      "fig-retries": show.count(pipe.retries),
      "fig-dead": show.count(pipe.dead_letters),
      "fig-skipped": show.count(pipe.skipped),
      "fig-unreadable": show.count(pipe.unreadable),
      "fig-filtered": show.short(pipe.filtered),
    };
    for (const [id, text] of Object.entries(figures)) setText(document.getElementById(id), text);
    setProp(document.getElementById("fig-changes"), "title", show.count(pipe.changes));
    for (const [id, bad] of [["tile-errors", pipe.stage === "failed"], ["tile-dead", pipe.dead_letters > 0], ["tile-skipped", pipe.skipped > 0], ["tile-unreadable", pipe.unreadable > 0]]) {
      document.getElementById(id).classList.toggle("warn", Boolean(bad));
    }
    setProp(document.getElementById("tile-dead"), "disabled", !pipe.dead_letters);
  }

  #draw() {
    if (!this.pipe) return;
    setChoice(this.spans, this.span);
    setChoice(this.units, this.lagIn);
    const span = Number(this.span);
    const { pipe } = this;
    const samples = this.history.samples(pipe.name, span, this.samples, this.now);
    this.rate.show(samples, span, this.now, RATE);
    const size = behindUnit(pipe) === "records" ? LAG_RECORDS : LAG_BYTES;
    this.lag.show(samples, span, this.now, this.lagIn === "seconds" ? LAG_S : size);
    const copied = this.history.copied(pipe.name, span, this.samples, this.now);
    setProp(this.copied.node, "hidden", pipe.stage !== "snapshot" && !copied.some((sample) => sample[4] > 0 && sample[0] > this.now - span));
    this.copied.show(copied, span, this.now, COPIED);
    this.copied.say(show.rate(pipe.snapshot_rate));
    this.rate.say(show.rate(pipe.rate));
    this.lag.say(show.lag(pipe.lag_s), pipe.lag_bytes === null ? "" : `${size.show(pipe.lag_bytes)}${size.suffix} behind`, late(pipe));
  }
}

/** The announcement for screen readers when a pipe enters another stage. */
export function announcement(before, pipe) {
  const cause = pipe.stage === "failed" && pipe.error ? `: ${pipe.error.message}` : "";
  return `${pipe.name} was ${before}, is ${stage(pipe.stage).says}${cause}`;
}
