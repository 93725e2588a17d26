// The log of one pipe, newest line last: of a level and above, with a text, page by page back to the oldest line that is stored.
// Invariant: the page holds a limited number of lines. An answer to an older request than the last one is dropped.

import { el, Keyed, setAttr, setProp, setText } from "./dom.js";
import * as show from "./format.js";

const EVERY_S = 2;
const PAGE = 200;
const KEPT = 2000;
const TYPED_MS = 300;
const LEVELS = [["", "all levels"], ["info", "info and above"], ["warning", "warnings and errors"], ["error", "errors"]];
const TONES = { critical: "bad", error: "bad", warning: "warn", info: "off", debug: "off" };

export class PipeLog {
  constructor(place) {
    Object.assign(this, { pipe: null, lines: [], before: null, newest: null, due: 0, asked: 0, following: true, end: 0, now: 0 });
    this.says = el("span", { class: "says", attrs: { role: "status" } });
    this.level = el("select", { attrs: { "aria-label": "Log: level" } }, ...LEVELS.map(([value, text]) => el("option", { value, text })));
    this.search = el("input", { type: "search", placeholder: "Search the whole log", autocomplete: "off", spellcheck: false, attrs: { "aria-label": "Search the log" } });
    this.follow = el("button", { type: "button", class: "quiet", text: "Follow", title: "Show new lines as they come", on: { click: () => this.#setFollow(!this.following) } });
    this.older = el("button", { type: "button", class: "quiet log-older", text: "Older lines", hidden: true, on: { click: () => this.#ask(this.before) } });
    this.items = el("ol", { class: "log-lines" });
    this.none = el("p", { class: "nothing", hidden: true });
    this.scroll = el("div", { class: "log-scroll", tabIndex: 0, attrs: { role: "region", "aria-label": "Log lines" } }, this.older, this.items, this.none);
    const head = el("header", {}, el("h2", { text: "Log" }), this.says, el("div", { class: "log-tools" }, this.level, this.search, this.follow));
    place.append(el("section", { class: "panel", attrs: { "aria-label": "Log" } }, head, this.scroll));
    this.list = new Keyed(this.items, line, () => {});
    this.level.addEventListener("change", () => this.#restart());
    this.search.addEventListener("input", () => {
      clearTimeout(this.typed);
      this.typed = setTimeout(() => this.#restart(), TYPED_MS);
    });
    this.scroll.addEventListener("scroll", () => this.#noticeReader());
    this.#setFollow(true);
  }

  update(pipe, now) {
    this.now = now;
    if (pipe !== this.pipe) {
      Object.assign(this, { pipe });
      this.search.value = "";
      this.#restart();
    } else if (this.following && (now >= this.due || this.due - now > 2 * EVERY_S)) this.#ask(null);
  }

  #restart() {
    Object.assign(this, { lines: [], before: null, newest: null });
    this.#setFollow(true);
    this.#ask(null);
  }

  #setFollow(on) {
    this.following = on;
    setAttr(this.follow, "aria-pressed", String(on));
    if (on) this.#toEnd();
  }

  #toEnd() {
    this.scroll.scrollTop = this.scroll.scrollHeight;
    this.end = this.scroll.scrollTop;
  }

  /** A user who scrolls up is reading: new lines must not move the text. */
  #noticeReader() {
    if (this.following && this.scroll.scrollTop < this.end - 5) this.#setFollow(false);
  }

  async #ask(before) {
    this.due = this.now + EVERY_S;
    this.asked += 1;
    const { asked } = this;
    const given = { pipe: this.pipe, limit: PAGE, level: this.level.value, search: this.search.value.trim(), ...(before === null ? {} : { before }) };
    if (before === null && this.newest !== null) given.after = this.newest;
    try {
      const answer = await fetch(`/api/log?${new URLSearchParams(given)}`, { cache: "no-store", signal: AbortSignal.timeout(30_000) });
      const page = await answer.json();
      if (asked !== this.asked) return;
      if (answer.ok) this.#add(page, before);
      else setText(this.says, page.error.message);
    } catch {
      // The line to the process says that it does not answer.
    }
  }

  #add(page, before) {
    // The event of the last scroll may still be on its way.
    this.#noticeReader();
    const height = this.scroll.scrollHeight;
    if (before !== null) {
      this.lines = [...page.lines, ...this.lines];
      this.before = page.before;
    } else {
      const isFirst = this.newest === null;
      this.newest = page.newest;
      // More new lines than a page holds: the older ones are behind the button again.
      const missed = isFirst || page.before !== null;
      this.lines = missed ? page.lines : [...this.lines, ...page.lines];
      if (missed) this.before = page.before;
      if (this.lines.length > KEPT) {
        this.lines = this.lines.slice(-KEPT);
        this.before = this.lines[0].position;
      }
    }
    this.list.set(this.lines, (one) => one.position);
    setProp(this.older, "hidden", this.before === null);
    setText(this.older, this.lines.length ? "Older lines" : "Search older lines");
    const filtered = this.level.value || this.search.value.trim();
    setProp(this.none, "hidden", this.lines.length > 0);
    setText(this.none, this.before !== null ? "No line so far." : filtered ? "No such line." : "No line yet.");
    setText(this.says, this.lines.length ? show.plural(this.lines.length, "line") : "");
    if (this.following && before === null) this.#toEnd();
    else if (before !== null) this.scroll.scrollTop += this.scroll.scrollHeight - height;
  }
}

function line({ at, level, message, place, remedy, exception }) {
  const time = Date.parse(at) / 1000;
  const when = el("time", { class: "faint", title: at, text: Number.isNaN(time) ? at : show.clock(time) });
  const words = el("div", { class: "log-words" }, el("span", { class: "log-message", text: message }));
  if (place) words.append(el("span", { class: "faint", text: `at ${place}` }));
  if (remedy) words.append(el("span", { class: "remedy", text: `remedy: ${remedy}` }));
  if (exception) words.append(el("pre", { text: exception }));
  return el("li", { class: `log-line ${TONES[level] ?? "off"}` }, when, el("span", { class: "log-level", text: level }), words);
}
