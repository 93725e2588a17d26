// The samples of the charts: the last hour of each pipe, first from the process's history and then from the stream.

const KEPT_S = 3660;
const AT_ONCE = 4;

export class Samples {
  constructor() {
    this.pipes = new Map();
    this.asked = new Map();
    this.waiting = [];
    this.running = 0;
  }

  /** `[at, rate, lag_s, lag_bytes]`, oldest first; those from the stream also have the snapshot's rows/s. */
  of(name) {
    return this.pipes.get(name) ?? [];
  }

  add(pipe, now) {
    const list = this.#list(pipe.name);
    const last = list.length ? list[list.length - 1][0] : 0;
    if (now - last < 0.5) return;
    list.push([now, pipe.rate, pipe.lag_s, pipe.lag_bytes, pipe.snapshot_rate]);
    let old = 0;
    while (list[old][0] < now - KEPT_S) old += 1;
    if (old > 60) list.splice(0, old);
  }

  /** Request the history of a pipe once per connection: few at a time, the latest requests first. */
  want(name, connection) {
    if (this.asked.get(name) === connection) return;
    this.asked.set(name, connection);
    this.waiting.push(name);
    this.#next();
  }

  #list(name) {
    let list = this.pipes.get(name);
    if (!list) this.pipes.set(name, (list = []));
    return list;
  }

  async #next() {
    if (this.running >= AT_ONCE || !this.waiting.length) return;
    const name = this.waiting.pop();
    this.running += 1;
    try {
      const answer = await fetch(`/api/pipes/${encodeURIComponent(name)}/history`, { cache: "no-store" });
      if (answer.ok) this.#merge(name, (await answer.json()).samples);
    } catch {
      // The connection is lost: request the history again after the reconnect. Until then only the stream's samples are shown.
    } finally {
      this.running -= 1;
      this.#next();
    }
  }

  #merge(name, history) {
    const end = history.length ? history[history.length - 1][0] : 0;
    const newer = this.of(name).filter((sample) => sample[0] > end + 0.5);
    this.pipes.set(name, [...history, ...newer]);
  }
}
