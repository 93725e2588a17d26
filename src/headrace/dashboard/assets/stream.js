// The connection to the process: receives every status and tracks the state of the connection.
// Invariant: a connection that is silent for longer than SILENT_MS counts as lost, even if the browser reports it open. It is retried forever.

const SILENT_MS = 6000;
const WAITS_MS = [500, 1000, 2000, 4000, 8000];
const HIDDEN_MS = 15000;

export class Stream {
  /** `onStatus(status, now)`: `now` is the process's clock, in seconds. `onLine(state)`: `live`, `connecting` or `lost`. */
  constructor(onStatus, onLine) {
    Object.assign(this, { onStatus, onLine, skew: 0, ended: false, tries: 0, source: null, timer: 0, watchdog: 0, next: 0 });
  }

  start() {
    document.addEventListener("visibilitychange", () => this.#shown());
    this.#open();
  }

  now() {
    return Date.now() / 1000 + this.skew;
  }

  /** Reconnect now instead of at the scheduled time. */
  again() {
    this.#close();
    this.tries = 0;
    this.#open();
  }

  async #open() {
    clearTimeout(this.timer);
    if (this.tries === 0) this.onLine("connecting");
    // Start with a plain request: its response has the process's clock, or the cause of an error.
    if (!(await this.#once())) return this.#lost();
    if (document.hidden) return this.#later();
    const source = new EventSource("/api/stream");
    this.source = source;
    source.addEventListener("status", (event) => {
      // A plain response does not clear this: a process that is stopping may still send one.
      this.ended = false;
      this.#alive();
      this.onStatus(JSON.parse(event.data), this.now());
    });
    source.addEventListener("end", () => {
      this.ended = true;
      this.#lost();
    });
    source.addEventListener("error", () => {
      if (this.source === source) this.#lost();
    });
    this.#listen();
    return undefined;
  }

  async #once() {
    const asked = Date.now();
    let status;
    try {
      const answer = await fetch("/api/status", { cache: "no-store", signal: AbortSignal.timeout(SILENT_MS) });
      if (!answer.ok) return false;
      this.#learnClock(answer.headers.get("Date"), asked);
      status = await answer.json();
    } catch {
      return false;
    }
    // Outside the try block: an error while drawing is not a lost connection.
    this.#alive();
    this.onStatus(status, this.now());
    return true;
  }

  #learnClock(date, asked) {
    const server = Date.parse(date ?? "");
    if (Number.isNaN(server)) return;
    // The header has whole seconds: only a larger difference is significant.
    const skew = (server + 500 - (asked + Date.now()) / 2) / 1000;
    this.skew = Math.abs(skew) < 2 ? 0 : skew;
  }

  #alive() {
    this.tries = 0;
    this.onLine("live");
    if (this.source) this.#listen();
  }

  #listen() {
    clearTimeout(this.watchdog);
    this.watchdog = setTimeout(() => this.#lost(), SILENT_MS);
  }

  #close() {
    clearTimeout(this.watchdog);
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  #lost() {
    this.#close();
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
    this.tries += 1;
    this.next = Date.now() + wait;
    this.onLine("lost");
    this.timer = setTimeout(() => this.#open(), wait);
  }

  /** A hidden page closes its connection (browsers allow six per server) and polls at long intervals, for its title. */
  #shown() {
    if (document.hidden) {
      this.#close();
      this.#later();
    } else this.again();
  }

  #later() {
    this.timer = setTimeout(() => this.#open(), HIDDEN_MS);
  }
}
