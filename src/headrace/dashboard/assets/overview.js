// The list of all pipes: totals, stages as a filter, one line per pipe. Suitable for many pipes.

import { Sparkline } from "./chart.js";
import { el, icon, Keyed, setAttr, setIcon, setProp, setText } from "./dom.js";
import * as show from "./format.js";
import { behindUnit, stage, STAGES } from "./stages.js";

export function address(name) {
  return `#/pipes/${encodeURIComponent(name)}`;
}

export function badge() {
  return el("span", { class: "badge" }, icon("starting"), el("span"));
}

export function setBadge(node, name) {
  const known = stage(name);
  if (node.dataset.stage === name) return;
  node.dataset.stage = name;
  node.className = `badge ${known.tone}`;
  setIcon(node.firstElementChild, known.icon);
  setText(node.lastElementChild, name);
  setProp(node, "title", known.says);
}

/** Whether a pipe that should be close to its source lags behind. */
export function late(pipe) {
  return (pipe.lag_s ?? 0) > 60 && !["paused", "stopping", "stopped", "disabled"].includes(pipe.stage);
}

export function behind(pipe) {
  if (pipe.lag_bytes === null) return "–";
  return behindUnit(pipe) === "records" ? `${show.short(pipe.lag_bytes)} rec` : show.bytes(pipe.lag_bytes);
}

function pipeLine() {
  const parts = {
    badge: badge(),
    name: el("span", { class: "pipe-name" }),
    route: el("span", { class: "pipe-route faint" }),
    note: el("span", { class: "pipe-note" }),
    spark: new Sparkline(),
    lagSpark: new Sparkline({ name: "lag-spark", value: 2, reduce: "max" }),
    rate: el("span", { class: "num rate" }),
    lag: el("span", { class: "num lag" }),
    bytes: el("span", { class: "num behind" }),
    changes: el("span", { class: "num changes" }),
    troubles: el("span", { class: "num troubles" }),
  };
  const link = el(
    "a",
    { class: "pipe" },
    parts.badge,
    el("span", { class: "pipe-who" }, parts.name, parts.route, parts.note),
    parts.spark.node,
    parts.lagSpark.node,
    parts.rate,
    parts.lag,
    parts.bytes,
    parts.changes,
    parts.troubles,
  );
  const node = el("li", {}, link);
  return Object.assign(node, { parts, link });
}

/** The text of a line next to its figures. */
function noteOf(pipe, now) {
  if (pipe.stage === "failed" && pipe.error) return pipe.error.message;
  if (pipe.stage === "retrying") return `again in ${show.duration(pipe.next_try - now)}: ${pipe.error?.message ?? ""}`;
  if (pipe.stage === "waiting") return pipe.waiting;
  if (pipe.stage === "snapshot") return snapshotNote(pipe);
  return "";
}

function snapshotNote(pipe) {
  const copies = pipe.tables.filter((table) => table.copied !== null);
  if (!copies.length) return "";
  const copied = copies.reduce((sum, table) => sum + table.copied, 0);
  const total = copies.reduce((sum, table) => sum + Math.max(table.estimate ?? 0, table.copied), 0);
  const parts = [show.percent(copied, total, copies.length > 0 && copies.every((table) => table.complete))];
  if (pipe.snapshot_rate >= 1) parts.push(`${show.rate(Math.round(pipe.snapshot_rate))} rows/s`);
  if (pipe.eta_s !== null) parts.push(`${show.duration(pipe.eta_s)} left`);
  return parts.join(" · ");
}

function updateLine(node, { pipe, samples, now, selected }) {
  const { parts, link } = node;
  setBadge(parts.badge, pipe.stage);
  setText(parts.name, pipe.name);
  setText(parts.route, `${pipe.source} → ${pipe.sink}`);
  const note = noteOf(pipe, now);
  setText(parts.note, note);
  setProp(parts.note, "hidden", !note);
  setProp(parts.route, "hidden", Boolean(note));
  parts.spark.draw(samples, now);
  const lagged = parts.lagSpark.draw(samples, now);
  parts.lagSpark.say(lagged === null ? "no lag known of the last 5 minutes" : `lag at most ${show.lag(lagged)} in the last 5 minutes`);
  setText(parts.rate, show.rate(pipe.rate));
  setText(parts.lag, show.lag(pipe.lag_s));
  parts.lag.classList.toggle("warn", late(pipe));
  setText(parts.bytes, behind(pipe));
  setText(parts.changes, show.short(pipe.changes));
  const troubles = [pipe.dead_letters && `${show.short(pipe.dead_letters)} dead`, pipe.skipped && `${show.short(pipe.skipped)} skipped`, pipe.unreadable && `${show.short(pipe.unreadable)} unreadable`, pipe.late_rows && `${show.short(pipe.late_rows)} late`, pipe.errors && show.plural(pipe.errors, "error")];
  setText(parts.troubles, troubles.filter(Boolean).join(" · ") || "–");
  setAttr(link, "href", address(pipe.name));
  setAttr(link, "aria-current", selected ? "page" : null);
  setProp(link, "title", `${pipe.source} → ${pipe.sink}`);
  node.dataset.stage = pipe.stage;
}

export class Overview {
  constructor() {
    this.only = null;
    this.nodes = new Map(["list", "pipe-filter", "chips", "totals", "pipe-count", "no-pipes"].map((id) => [id, document.getElementById(id)]));
    this.list = new Keyed(this.nodes.get("list"), pipeLine, updateLine);
    this.chips = new Keyed(this.nodes.get("chips"), (chip) => this.#chip(chip), (node, chip) => this.#updateChip(node, chip));
    this.nodes.get("pipe-filter").addEventListener("input", () => this.onFilter());
    this.onFilter = () => {};
  }

  /** The pipes that match the filters: the failed ones, then the others, in the file's order. */
  chosen(pipes) {
    const words = this.nodes.get("pipe-filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const failedFirst = [...pipes].sort((one, other) => (other.stage === "failed") - (one.stage === "failed"));
    return failedFirst.filter((pipe) => {
      const text = `${pipe.name} ${pipe.stage} ${pipe.source} ${pipe.sink}`.toLowerCase();
      return (!this.only || pipe.stage === this.only) && words.every((word) => text.includes(word));
    });
  }

  update(status, samples, now, selected) {
    const { pipes } = status;
    const counts = new Map([...STAGES.keys()].map((name) => [name, 0]));
    for (const pipe of pipes) counts.set(pipe.stage, (counts.get(pipe.stage) ?? 0) + 1);
    if (this.only && !counts.get(this.only)) this.only = null;
    this.chips.set([...counts].filter(([, n]) => n).map(([name, n]) => ({ name, n })), (chip) => chip.name);
    const chosen = this.chosen(pipes);
    this.list.set(chosen.map((pipe) => ({ pipe, samples: samples.of(pipe.name), now, selected: pipe.name === selected })), (item) => item.pipe.name);
    const nobody = this.nodes.get("no-pipes");
    setProp(nobody, "hidden", chosen.length > 0);
    setText(nobody, pipes.length ? "No pipe matches the filter." : `There are no pipes in ${status.file}.`);
    setText(this.nodes.get("pipe-count"), chosen.length === pipes.length ? show.plural(pipes.length, "pipe") : `${chosen.length} of ${pipes.length} pipes`);
    this.#totals(pipes);
  }

  #totals(pipes) {
    const sum = (key) => pipes.reduce((total, pipe) => total + (pipe[key] || 0), 0);
    const lags = pipes.filter((pipe) => pipe.lag_s !== null && pipe.stage !== "disabled" && pipe.stage !== "paused" && pipe.stage !== "stopped");
    const worst = lags.reduce((most, pipe) => (most === null || pipe.lag_s > most.lag_s ? pipe : most), null);
    const figures = {
      "total-rate": show.rate(sum("rate")),
      "total-lag": worst ? show.lag(worst.lag_s) : "–",
      "total-changes": show.short(sum("changes")),
      "total-tables": show.count(pipes.reduce((total, pipe) => total + pipe.tables.length, 0)),
      "total-dead": show.count(sum("dead_letters")),
      "total-errors": show.count(sum("errors")),
    };
    for (const [id, text] of Object.entries(figures)) setText(document.getElementById(id), text);
    setText(document.getElementById("total-lag-who"), worst && pipes.length > 1 ? worst.name : "");
  }

  #chip({ name }) {
    const node = el("button", { class: `chip ${stage(name).tone}`, type: "button" }, icon(stage(name).icon), el("span"), el("span", { class: "chip-word", text: name }));
    node.addEventListener("click", () => {
      this.only = this.only === name ? null : name;
      this.onFilter();
    });
    return node;
  }

  #updateChip(node, { name, n }) {
    setText(node.children[1], String(n));
    setAttr(node, "aria-label", `${n} ${name}`);
    setProp(node, "title", `${n} ${name}`);
    setAttr(node, "aria-pressed", String(this.only === name));
  }
}
