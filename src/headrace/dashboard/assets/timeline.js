// What happened to the pipes, newest first, also before the last restart: of all pipes, and of one.

import { el, Keyed, setProp, setText } from "./dom.js";
import * as show from "./format.js";
import { address } from "./overview.js";

const EVERY_S = 5;
const TONES = {
  failed: "bad", differences: "bad", error: "warn", waiting: "warn", failover: "warn", recovered: "good", verified: "good",
  snapshot_started: "busy", snapshot_finished: "good", schema_change: "busy", paused: "held", stopped: "off", started: "off",
};
const GROUPS = {
  all: () => true,
  troubles: (kind) => ["failed", "error", "waiting", "recovered", "failover"].includes(kind),
  runs: (kind) => ["started", "stopped", "paused"].includes(kind),
  snapshots: (kind) => kind.startsWith("snapshot"),
  "schema changes": (kind) => kind === "schema_change",
  verifications: (kind) => kind === "verified" || kind === "differences",
};

/** A panel of events. `limit`: how many are shown; `filtered`: whether kinds can be chosen. */
export class Timeline {
  constructor(place, { title, limit, filtered }) {
    this.limit = limit;
    this.pipe = null;
    this.known = [];
    this.due = 0;
    this.group = "all";
    this.items = el("ol", { class: "events timeline", tabIndex: 0, attrs: { "aria-label": title } });
    this.none = el("p", { class: "nothing", text: "Nothing has happened yet." });
    const head = el("header", {}, el("h2", { text: title }));
    if (filtered) head.append(this.#filter(title));
    this.node = el("section", { class: "panel", attrs: { "aria-label": title } }, head, this.items, this.none);
    place.append(this.node);
    this.list = new Keyed(this.items, (event) => this.#line(event), (node, event) => {
      setText(node.when, show.ago(event.at, this.now));
      setProp(node.when, "title", show.clock(event.at, this.now));
    });
  }

  #filter(title) {
    const node = el("select", { attrs: { "aria-label": `${title}: kinds` } }, ...Object.keys(GROUPS).map((name) => el("option", { value: name, text: name })));
    node.addEventListener("change", () => {
      this.group = node.value;
      this.#draw();
    });
    return node;
  }

  /** Draws what is known, and asks again now and then. `pipe`: its name; empty: all pipes. */
  update(pipe, now) {
    this.now = now;
    if (pipe !== this.pipe) Object.assign(this, { pipe, due: 0, known: [] });
    if (now >= this.due || this.due - now > 2 * EVERY_S) {
      this.due = now + EVERY_S;
      this.#ask(pipe);
    }
    this.#draw();
  }

  async #ask(pipe) {
    try {
      const query = new URLSearchParams({ ...(pipe ? { pipe } : {}), limit: this.limit });
      const answer = await fetch(`/api/events?${query}`, { cache: "no-store", signal: AbortSignal.timeout(1000 * EVERY_S) });
      if (!answer.ok) return;
      const { events } = await answer.json();
      if (pipe === this.pipe) this.known = events;
    } catch {
      // The line to the process says that it does not answer.
      return;
    }
    this.#draw();
  }

  #draw() {
    const chosen = this.known.filter((event) => GROUPS[this.group](event.kind));
    this.list.set(chosen, (event) => `${event.at} ${event.pipe} ${event.kind} ${event.text}`);
    setProp(this.none, "hidden", chosen.length > 0);
    setText(this.none, this.known.length ? "No such event." : "Nothing has happened yet.");
  }

  #line(event) {
    const when = el("time", { class: "faint", dateTime: new Date(event.at * 1000).toISOString() });
    const kind = el("span", { class: `kind ${TONES[event.kind] ?? "off"}`, text: event.kind.replace("_", " ") });
    const who = this.pipe ? [] : [el("a", { class: "event-pipe", href: address(event.pipe), text: event.pipe })];
    const node = el("li", { class: "event" }, el("p", { class: "event-head" }, kind, ...who, when));
    const about = event.kind === "schema_change" ? event.place : "";
    if (about) node.append(el("bdi", { class: "table-name", text: about }));
    node.append(el("p", { class: "message", text: event.text }));
    if (event.place && !about) node.append(el("p", { class: "mono faint", text: event.place }));
    if (event.remedy) node.append(el("p", { class: "remedy", text: event.remedy }));
    return Object.assign(node, { when });
  }
}
