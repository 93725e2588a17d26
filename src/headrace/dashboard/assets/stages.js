// The stages of a pipe: their names, their appearance and their actions.

export const STAGES = new Map([
  ["failed", { icon: "failed", tone: "bad", says: "failed: needs a person" }],
  ["retrying", { icon: "retry", tone: "warn", says: "retrying by itself" }],
  ["waiting", { icon: "waiting", tone: "warn", says: "waiting for a peer" }],
  ["snapshot", { icon: "snapshot", tone: "busy", says: "copying rows" }],
  ["starting", { icon: "starting", tone: "busy", says: "starting" }],
  ["streaming", { icon: "streaming", tone: "good", says: "streaming" }],
  ["stopping", { icon: "stop", tone: "off", says: "stopping" }],
  ["paused", { icon: "pause", tone: "held", says: "paused" }],
  ["stopped", { icon: "stop", tone: "off", says: "stopped" }],
  ["disabled", { icon: "disabled", tone: "off", says: "disabled in the file" }],
]);

const UNKNOWN = { icon: "starting", tone: "off", says: "" };

export function stage(name) {
  return STAGES.get(name) ?? UNKNOWN;
}

const RESUMES = new Set(["paused", "stopped", "failed", "retrying"]);
const PAUSES = new Set(["starting", "snapshot", "streaming", "waiting"]);
const RUNS = new Set(["snapshot", "streaming", "waiting"]);

/** The action of the first button: `pause`, `resume`, or null if there is none. */
export function toggle(name) {
  if (RESUMES.has(name)) return "resume";
  return PAUSES.has(name) ? "pause" : null;
}

export function toggleLabel(name) {
  if (name === "failed" || name === "retrying") return "Try now";
  return toggle(name) === "resume" ? "Resume" : "Pause";
}

export function canStop(name) {
  return PAUSES.has(name) || name === "retrying" || name === "paused" || name === "failed";
}

export function runs(name) {
  return RUNS.has(name);
}

/** The lag of topics is counted in records. */
export function behindUnit(pipe) {
  return pipe.source.startsWith("kafka") ? "records" : "bytes";
}
