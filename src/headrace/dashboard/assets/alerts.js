// Alerts, below all pipes: the rules of the process, the alerts that are active, and the last deliveries.

import { el, Keyed, setProp, setText } from "./dom.js";
import * as show from "./format.js";

const EVERY_S = 5;
const TONES = { recovered: "good", schema_change: "busy" };

export class Alerts {
  constructor() {
    const by = (id) => document.getElementById(id);
    Object.assign(this, { node: by("alert-panel"), says: by("alert-says"), noOpen: by("no-alert-open"), noDeliveries: by("no-alert-deliveries"), noRules: by("no-alert-rules") });
    Object.assign(this, { due: 0, known: null, isEditable: false });
    this.rules = new Keyed(by("alert-rules"), ruleLine, updateRule);
    this.open = new Keyed(by("alert-open"), openLine, (node, alert) => setText(node.when, show.ago(alert.since, this.now)));
    this.deliveries = new Keyed(by("alert-deliveries"), deliveryLine, (node, done) => setText(node.when, show.ago(done.at, this.now)));
  }

  /** Draws the known state and requests it again at long intervals: it does not change from second to second. */
  update(now) {
    this.now = now;
    if (now >= this.due || this.due - now > 2 * EVERY_S) {
      this.due = now + EVERY_S;
      this.#ask();
    }
    this.#draw();
  }

  async #ask() {
    try {
      const answer = await fetch("/api/alerts", { cache: "no-store", signal: AbortSignal.timeout(1000 * EVERY_S) });
      if (answer.ok) this.known = await answer.json();
    } catch {
      // The connection line shows that the process does not respond.
      return;
    }
    this.#draw();
  }

  #draw() {
    const { known } = this;
    setProp(this.node, "hidden", !known || !(known.rules.length || this.isEditable));
    if (!known) return;
    const waiting = known.rules.reduce((sum, rule) => sum + rule.queued, 0);
    setText(this.says, waiting ? `${show.plural(waiting, "alert")} not sent yet` : "");
    this.rules.set(known.rules, (rule) => rule.name);
    setProp(this.noRules, "hidden", known.rules.length > 0);
    this.open.set(known.open, (alert) => alert.id);
    setProp(this.noOpen, "hidden", known.open.length > 0);
    this.deliveries.set(known.deliveries, (done) => `${done.at} ${done.receiver} ${done.summary}`);
    setProp(this.noDeliveries, "hidden", known.deliveries.length > 0);
  }
}

const word = (kind) => kind.replace("_", " ");

function kindMark(kind) {
  return el("span", { class: `kind ${TONES[kind] ?? "bad"}`, text: word(kind) });
}

function ruleLine() {
  const parts = { events: el("p"), limits: el("p", { class: "faint" }), error: el("p", { class: "alert-error" }) };
  const head = { name: el("bdi", { class: "table-name" }), address: el("span", { class: "mono faint" }) };
  const node = el("li", { class: "event" }, el("p", { class: "event-head" }, head.name, head.address), parts.events, parts.limits, parts.error);
  return Object.assign(node, { parts: { ...parts, ...head } });
}

function updateRule({ parts }, rule) {
  setText(parts.name, rule.name);
  setText(parts.address, `${rule.receiver} · ${rule.address}`);
  setText(parts.events, `${rule.events.map(word).join(", ")} of ${rule.pipes.join(", ")}`);
  setText(parts.limits, `lag above ${show.duration(rule.lag_seconds)} for ${show.duration(rule.lag_for_seconds)} · away for ${show.duration(rule.away_seconds)} · less than ${show.bytes(rule.low_disk)} free`);
  setText(parts.error, rule.error ? `not sent: ${rule.error}` : "");
  setProp(parts.error, "hidden", !rule.error);
}

function openLine(alert) {
  const when = el("time", { class: "faint" });
  return Object.assign(el("li", { class: "event" }, el("p", { class: "event-head" }, kindMark(alert.kind), when), el("p", { class: "message", text: alert.summary })), { when });
}

function deliveryLine(done) {
  const when = el("time", { class: "faint" });
  const tries = done.attempts > 1 ? `, ${done.attempts} attempts` : "";
  const node = el(
    "li",
    { class: "event" },
    el("p", { class: "event-head" }, kindMark(done.kind), el("bdi", { text: done.receiver }), when),
    el("p", { class: "message", text: done.summary }),
    el("p", { class: done.outcome.startsWith("sent") ? "faint" : "alert-error", text: `${done.outcome}${tries}` }),
  );
  return Object.assign(node, { when });
}
