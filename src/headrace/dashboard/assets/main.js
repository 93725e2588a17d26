// The page: which view is shown, and how it receives updates. The address names the pipe (`#/pipes/NAME`).

import { AlertEditor } from "./alert_editor.js";
import { Alerts } from "./alerts.js";
import { Detail, announcement } from "./detail.js";
import { setAttr, setProp, setText } from "./dom.js";
import { EditSwitch, Editor } from "./editor.js";
import * as show from "./format.js";
import { listen } from "./keys.js";
import { PipeLog } from "./log.js";
import { Navigation } from "./navigation.js";
import { address, Overview } from "./overview.js";
import { Samples } from "./samples.js";
import { toggle } from "./stages.js";
import { Stream } from "./stream.js";
import { Timeline } from "./timeline.js";
import * as token from "./token.js";
import { act } from "./actions.js";

const by = (id) => document.getElementById(id);
const samples = new Samples();
const overview = new Overview();
const alerts = new Alerts();
const detail = new Detail();
const recent = new Timeline(by("recent-events"), { title: "Recent events", limit: 40, filtered: false });
const events = new Timeline(by("pipe-events"), { title: "Events", limit: 500, filtered: true });
const log = new PipeLog(by("pipe-log"));
const editor = new Editor(by("editor"));
const alertEditor = new AlertEditor(() => (alerts.due = 0));
const editSwitch = new EditSwitch((isOn) => {
  alerts.isEditable = isOn;
  ["new-pipe", "do-edit", "edit-alerts"].forEach((id) => setProp(by(id), "hidden", !isOn));
});
const stream = new Stream(onStatus, onLine);

let status = null;
let now = 0;
let line = "connecting";
let connection = 0;
let stages = new Map();
let cpu = [];

/** The pipe that the address names; the only pipe if the process has one. */
function selected() {
  const named = /^#\/pipes\/(.*)$/.exec(navigation.hash);
  if (named) {
    try {
      return decodeURIComponent(named[1]);
    } catch {
      return named[1];
    }
  }
  return status?.pipes.length === 1 ? status.pipes[0].name : null;
}

function onStatus(fresh, at) {
  status = fresh;
  now = at;
  for (const pipe of status.pipes) samples.add(pipe, now);
  tellChanges();
  draw();
}

function onLine(state) {
  if (state === "live" && line !== "live") connection += 1;
  line = state;
  drawLine();
}

/** Draw only the visible view; a hidden page only sets its title. */
function draw() {
  if (!status) return undefined;
  drawTitle();
  if (document.hidden) return undefined;
  editSwitch.update(now);
  if (editor.show(navigation.hash)) {
    document.body.dataset.view = "editor";
    setProp(by("welcome"), "hidden", true);
    return drawProcess();
  }
  const name = selected();
  const pipe = status.pipes.find((one) => one.name === name) ?? null;
  const lost = name !== null && !pipe;
  document.body.dataset.view = pipe ? "pipe" : lost ? "lost" : "overview";
  document.body.dataset.pipes = status.pipes.length === 1 ? "one" : "many";
  setProp(by("welcome"), "hidden", true);
  if (lost) setText(by("lost-text"), `There is no pipe called ${name} in this process.`);
  for (const one of status.pipes) samples.want(one.name, connection);
  if (pipe) samples.want(pipe.name, connection);
  overview.update(status, samples, now, name);
  if (pipe) detail.update(pipe, samples.of(pipe.name), now);
  if (pipe) log.update(pipe.name, now);
  if (pipe) events.update(pipe.name, now);
  else recent.update("", now);
  alerts.update(now);
  if (pipe) setAttr(by("do-edit"), "href", `#/edit/${encodeURIComponent(pipe.group)}`);
  return drawProcess();
}

function drawTitle() {
  const failed = status.pipes.filter((pipe) => pipe.stage === "failed").length;
  const name = selected();
  const title = `${failed ? `${failed} failed · ` : ""}${name ? `${name} · ` : ""}Headrace`;
  if (document.title !== title) document.title = title;
}

function drawProcess() {
  setText(by("file"), status.file.split("/").pop());
  setProp(by("file"), "title", status.file);
  setText(by("version"), status.version);
  setText(by("pid"), String(status.pid));
  setText(by("uptime"), show.coarse(now - status.started));
  setText(by("memory"), show.bytes(status.memory_bytes));
  // The process updates its count at intervals: the rate over ten seconds is correct.
  if (cpu[0]?.pid !== status.pid) cpu = [];
  cpu.push({ pid: status.pid, at: now, used: status.cpu_s });
  while (cpu.length > 2 && now - cpu[1].at >= 10) cpu.shift();
  if (now - cpu[0].at >= 3) setText(by("cpu"), `${Math.max(0, Math.round((100 * (status.cpu_s - cpu[0].used)) / (now - cpu[0].at)))} %`);
}

function drawLine() {
  const known = { live: "Live", connecting: "Connecting", lost: "Connection lost" };
  setAttr(by("line"), "data-line", line);
  setText(by("line-says"), known[line]);
  setProp(by("offline"), "hidden", line !== "lost");
  document.body.classList.toggle("stale", line === "lost");
  if (line === "lost") {
    const last = status ? ` What you see is from ${show.clock(now)}.` : "";
    const why = stream.ended ? "The process has ended." : "The process does not answer.";
    setText(by("offline-says"), `${why} It is tried again.${last}`);
  }
}

/** Announce changed stages to screen readers, failures immediately. */
function tellChanges() {
  const fresh = new Map(status.pipes.map((pipe) => [pipe.name, pipe.stage]));
  for (const pipe of status.pipes) {
    const before = stages.get(pipe.name);
    if (before && before !== pipe.stage) setText(by(pipe.stage === "failed" ? "alerts" : "announcements"), announcement(before, pipe));
  }
  stages = fresh;
}

function go(name) {
  location.hash = name === null ? "#/" : address(name);
}

/** Select the next or previous pipe among those that match the filter. */
function walk(by_) {
  if (!status) return false;
  const names = overview.chosen(status.pipes).map((pipe) => pipe.name);
  if (!names.length) return false;
  if (document.body.dataset.view === "overview") return walkLines(by_);
  const here = names.indexOf(selected());
  go(names[here < 0 ? 0 : Math.max(0, Math.min(names.length - 1, here + by_))]);
  return true;
}

function walkLines(by_) {
  const links = [...document.querySelectorAll("#list a.pipe")];
  const here = links.indexOf(document.activeElement);
  links[here < 0 ? 0 : Math.max(0, Math.min(links.length - 1, here + by_))]?.focus();
  return true;
}

/** The pipe to which a key applies: the open one, or the one whose line has the focus. */
function meant() {
  if (document.body.dataset.view === "pipe") return detail.pipe;
  const index = [...document.querySelectorAll("#list a.pipe")].indexOf(document.activeElement);
  return index < 0 ? null : overview.chosen(status.pipes)[index];
}

function focusOn(id) {
  const node = by(id);
  node.focus();
  node.select?.();
  node.scrollIntoView({ block: "nearest" });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("headrace.theme", theme);
  } catch {
    // The browser forbids storage: the choice lasts until the page is closed.
  }
}

function otherTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  setTheme(dark === "dark" ? "light" : "dark");
}

const inPipe = (command) => () => (document.body.dataset.view === "pipe" ? command() : false);

listen({
  j: () => walk(1),
  k: () => walk(-1),
  u: () => go(null),
  Escape: () => (document.body.dataset.view === "pipe" && document.body.dataset.pipes === "many" ? go(null) : false),
  p: () => {
    const pipe = meant();
    const action = pipe && toggle(pipe.stage);
    return action ? act(pipe, action) : false;
  },
  v: inPipe(() => detail.verify()),
  q: inPipe(() => focusOn("sql")),
  "/": () => focusOn(document.body.dataset.view === "pipe" ? "table-filter" : "pipe-filter"),
  f: () => focusOn("pipe-filter"),
  r: inPipe(() => detail.setSpan(detail.span === "300" ? "3600" : "300")),
  t: otherTheme,
  "?": () => by("help").showModal(),
}, () => document.body.dataset.view === "editor" || alertEditor.node.checkVisibility());

overview.onFilter = draw;
by("theme").addEventListener("click", otherTheme);
by("help-open").addEventListener("click", () => by("help").showModal());
by("line-again").addEventListener("click", () => stream.again());
by("unlock").addEventListener("click", () => (token.token() ? token.forget() : token.ask("Looking is free. To change something or to query, give the process's token.")));
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close(""));
// A link to `#main` would be an address of the page.
document.querySelector(".skip-link").addEventListener("click", (event) => {
  event.preventDefault();
  by("main").focus();
});
window.addEventListener("beforeunload", (event) => {
  if (editor.isDirty || alertEditor.isDirty) event.preventDefault();
});
document.addEventListener("visibilitychange", draw);

token.takeFromAddress();
const navigation = new Navigation({
  arrived: () => token.takeFromAddress(),
  drafts: () => (editor.isDirty ? [editor.draft.name || "a new pipe"] : []),
  discard: () => (editor.isDirty = false),
  moved: () => {
    draw();
    window.scrollTo(0, 0);
    by("main").focus({ preventScroll: true });
  },
});
stream.start();
