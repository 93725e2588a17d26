// Formats numbers and times. Widths are constant: figures have tabular digits, units are short.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const NONE = "–";

export function count(n) {
  return n === null || n === undefined ? NONE : whole.format(n);
}

/** 950, 12.3 k, 4.56 M */
export function short(n) {
  if (n === null || n === undefined) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (Math.abs(n) >= size) {
      const divided = unit === "k" ? n / 1e3 : n / size;
      return `${digits(divided)} ${unit}`;
    }
  }
  return whole.format(n);
}

function digits(n) {
  const size = Math.abs(n);
  return n.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}

export function rate(n) {
  if (n === null || n === undefined) return NONE;
  return n > 0 && n < 10 && n % 1 ? n.toFixed(1) : short(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return NONE;
  if (n < 1024) return `${Math.round(n)} B`;
  let size = n;
  for (const unit of ["KiB", "MiB", "GiB", "TiB", "PiB"]) {
    size /= 1024;
    if (size < 1024 || unit === "PiB") return `${size < 10 ? size.toFixed(1) : Math.round(size)} ${unit}`;
  }
  return NONE;
}

/** A lag; with tenths of a second below ten seconds. */
export function lag(s) {
  if (s === null || s === undefined) return NONE;
  if (s < 0.1) return `${Math.max(0, s).toFixed(2)} s`;
  if (s < 10) return `${s.toFixed(1)} s`;
  return duration(s);
}

/** 42 s, 3 min 10 s, 2 h 5 min, 3 d 4 h */
export function duration(s) {
  if (s === null || s === undefined || !Number.isFinite(s)) return NONE;
  const seconds = Math.max(0, Math.round(s));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return both(seconds, 60, "min", 1, "s");
  if (seconds < 86400) return both(seconds, 3600, "h", 60, "min");
  return both(seconds, 86400, "d", 3600, "h");
}

function both(seconds, large, largeUnit, small, smallUnit) {
  const first = Math.floor(seconds / large);
  const second = Math.floor((seconds % large) / small);
  return second ? `${first} ${largeUnit} ${second} ${smallUnit}` : `${first} ${largeUnit}`;
}

/** The shortest form: 13 s, 13 min, 5 h, 3 d */
export function coarse(s) {
  const [size, unit] = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]].find(([seconds]) => s >= seconds) ?? [1, "s"];
  return `${Math.max(0, Math.floor(s / size))} ${unit}`;
}

export function ago(at, now) {
  if (!at) return NONE;
  const s = now - at;
  if (s < 1.5) return "now";
  return `${coarse(s)} ago`;
}

const two = (n) => String(n).padStart(2, "0");

/** The time of day, with the date if it is not today. */
export function clock(at, now = Date.now() / 1000) {
  if (!at) return NONE;
  const date = new Date(at * 1000);
  const time = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  const sameDay = new Date(now * 1000).toDateString() === date.toDateString();
  return sameDay ? time : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

export function percent(part, total, done) {
  if (done) return "100 %";
  if (!total) return NONE;
  // The source only estimates the total: 100 % is shown only at the end.
  return `${Math.min(99, Math.floor((100 * part) / total))} %`;
}

export function plural(n, one, many = `${one}s`) {
  return `${whole.format(n)} ${n === 1 ? one : many}`;
}
