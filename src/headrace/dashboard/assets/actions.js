// Actions on pipes: sent to the control API with the token; the result is shown to the user.

import { el, setText } from "./dom.js";
import { plural } from "./format.js";
import * as token from "./token.js";

export class Refused extends Error {
  constructor(message, place = "", remedy = "") {
    super(message);
    Object.assign(this, { place, remedy });
  }
}

/** Send a POST request with the token. Returns the response, or null if the user gave no token. Throws `Refused`. */
export async function post(path, body) {
  let given = token.token() || (await token.ask("This changes something, or reads rows: it needs the process's token."));
  while (given) {
    const answer = await send(path, body, given);
    if (answer.status !== 401) return read(answer);
    token.forget();
    given = await token.ask("That token was refused. A new run of the process has a new one.");
  }
  return null;
}

async function send(path, body, given) {
  try {
    return await fetch(path, {
      method: "POST",
      headers: { "Content-Type": "application/json", Authorization: `Bearer ${given}` },
      body: JSON.stringify(body),
    });
  } catch {
    throw new Refused("the process does not answer", location.host, "see whether `headrace run` is still there");
  }
}

async function read(answer) {
  let document = null;
  try {
    document = await answer.json();
  } catch {
    // The response is not from Headrace (a proxy's page, for example). The status line shows that.
  }
  if (answer.ok && document) return document;
  const error = document?.error;
  throw error ? new Refused(error.message, error.place, error.remedy) : new Refused(`the answer was ${answer.status} ${answer.statusText}`);
}

/** Show a message. Errors stay until the user closes them. */
export function toast(text, trouble = null) {
  const list = document.getElementById("toasts");
  const note = el("div", { class: trouble ? "toast bad" : "toast", attrs: { role: trouble ? "alert" : "status" } }, el("p", { text }));
  if (trouble?.place) note.append(el("p", { class: "mono faint", text: trouble.place }));
  if (trouble?.remedy) note.append(el("p", { class: "remedy", text: trouble.remedy }));
  const close = el("button", { class: "quiet close", type: "button", text: "×", attrs: { "aria-label": "Close" }, on: { click: () => note.remove() } });
  note.append(close);
  list.append(note);
  while (list.childElementCount > 4) list.firstElementChild.remove();
  if (!trouble) setTimeout(() => note.remove(), 5000);
}

/** Ask the user for confirmation. */
export function confirm({ title, text, detail = "", items = [], button, danger = false }) {
  const dialog = document.getElementById("confirm-dialog");
  setText(document.getElementById("confirm-title"), title);
  setText(document.getElementById("confirm-text"), text);
  const shown = document.getElementById("confirm-detail");
  setText(shown, detail);
  shown.hidden = !detail;
  const list = document.getElementById("confirm-items");
  list.replaceChildren(...items.map((item) => el("li", { text: item })));
  list.hidden = !items.length;
  const go = document.getElementById("confirm-go");
  setText(go, button);
  go.className = danger ? "danger" : "primary";
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue === "go"), { once: true }));
}

const DONE = {
  pause: "pauses after the current batch",
  resume: "goes on",
  stop: "stops after the current batch",
  verify: "is being compared with its source",
  resync: "reads tables again",
  skip: "goes on after the event",
};

const asking = new Set();

/** Run one action per pipe at a time. Returns whether it was done. */
export async function act(pipe, action, body = {}) {
  const key = `${action} ${pipe.name}`;
  if (asking.has(key)) return false;
  asking.add(key);
  try {
    const answer = await post(`/api/pipes/${encodeURIComponent(pipe.name)}/${action}`, body);
    if (answer === null) return false;
    toast(answer.skipped ? `${pipe.name}: ${answer.skipped}` : `${pipe.name} ${DONE[action]}`);
    return true;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    toast(`${pipe.name}: ${error.message}`, error);
    return false;
  } finally {
    asking.delete(key);
  }
}

export async function stop(pipe) {
  const text = "It ends after the current batch, and stays so until it is resumed or the process starts again. Nothing is lost: it goes on where it was.";
  if (await confirm({ title: `Stop ${pipe.name}?`, text, button: "Stop" })) await act(pipe, "stop");
}

export async function resync(pipe, tables) {
  const all = tables.length === pipe.tables.length;
  const text = "Their rows are read again from the source, beside the stream; what is there stays readable meanwhile.";
  const title = all ? `Read all ${plural(tables.length, "table")} of ${pipe.name} again?` : `Read ${plural(tables.length, "table")} of ${pipe.name} again?`;
  return (await confirm({ title, text, items: tables, button: "Resync", danger: all })) && act(pipe, "resync", { tables });
}

export async function skip(pipe) {
  const place = pipe.error?.skippable;
  if (!place) return;
  const text = "The event below is left out for good and recorded as skipped: what it would have changed stays as it is in the sink. Verify its table afterwards.";
  const detail = `${place}\n${pipe.error.message}`;
  if (await confirm({ title: `Skip one event of ${pipe.name}?`, text, detail, button: "Skip this event", danger: true })) await act(pipe, "skip", { place });
}
