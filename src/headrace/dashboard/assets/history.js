// Stored measurements of a pipe, for charts over longer than the page and the process have run.

const RANGES = new Map([[3600, "1h"], [86400, "1d"], [2592000, "30d"]]);
const EVERY_S = 30;

export class History {
  constructor() {
    this.known = new Map();
    this.onAnswer = () => {};
  }

  /** `[at, rate, lag_s, lag_bytes, snapshot rows/s]` over a span in seconds, oldest first; `live`: the samples of the last hour. */
  samples(pipe, span, live, now) {
    const range = span <= 3600 ? 3600 : span;
    const stored = this.#stored(pipe, range, now);
    if (range === 3600) {
      const first = live.length ? live[0][0] : now;
      return [...stored.filter((sample) => sample[0] < first), ...live];
    }
    const last = stored.length ? stored[stored.length - 1][0] : 0;
    return [...stored, ...live.filter((sample) => sample[0] > last).slice(-1)];
  }

  /** Snapshot rows/s: the samples of the process's memory do not have them. */
  copied(pipe, span, live, now) {
    const stored = this.#stored(pipe, span <= 3600 ? 3600 : span, now);
    const last = stored.length ? stored[stored.length - 1][0] : 0;
    return [...stored, ...live.filter((sample) => sample[0] > last && sample[4] !== undefined)];
  }

  #stored(pipe, range, now) {
    const key = `${range} ${pipe}`;
    let entry = this.known.get(key);
    if (!entry) this.known.set(key, (entry = { samples: [], due: 0 }));
    if (now >= entry.due || entry.due - now > 2 * EVERY_S) {
      entry.due = now + EVERY_S;
      this.#ask(entry, pipe, RANGES.get(range));
    }
    return entry.samples;
  }

  async #ask(entry, pipe, range) {
    try {
      const answer = await fetch(`/api/history?${new URLSearchParams({ pipe, range })}`, { cache: "no-store", signal: AbortSignal.timeout(1000 * EVERY_S) });
      if (!answer.ok) return;
      entry.samples = (await answer.json()).samples;
    } catch {
      // The line to the process says that it does not answer.
      return;
    }
    this.onAnswer();
  }
}
