// Parts of the edit pages: fields with labels, findings of checks, errors, a diff, a grid, requests. Data is set as text, never as markup.

import { post, Refused } from "./actions.js";
import { el } from "./dom.js";
import { plural } from "./format.js";

let fields = 0;

/** A field with its label above it. Returns `{ row, input }`. */
export function field(label, input, hint = "") {
  fields += 1;
  input.id ||= `edit-field-${fields}`;
  const row = el("div", { class: "edit-field" }, el("label", { htmlFor: input.id, text: label }), input);
  if (hint) {
    const note = el("p", { class: "faint", id: `${input.id}-hint`, text: hint });
    input.setAttribute("aria-describedby", note.id);
    row.append(note);
  }
  return { row, input };
}

export function textInput(value = "", props = {}) {
  return el("input", { type: "text", value, autocomplete: "off", spellcheck: false, ...props });
}

export function checkbox(label, checked, change, text = label) {
  const input = el("input", { type: "checkbox", checked, attrs: { "aria-label": label }, on: { change: () => change(input.checked) } });
  return el("label", { class: "edit-check" }, input, el("span", { text }));
}

export function select(options, chosen) {
  const made = el("select");
  for (const [value, text] of options) made.append(el("option", { value, text, selected: value === chosen }));
  return made;
}

/** A panel with a heading and tools at its right. */
export function panel(title, ...tools) {
  fields += 1;
  const head = el("h2", { id: `edit-head-${fields}`, text: title });
  const body = el("div", { class: "edit-body" });
  const node = el("section", { class: "panel", attrs: { "aria-labelledby": head.id } }, el("header", {}, head, ...tools), body);
  return { node, body, head };
}

export function button(text, click, kind = "") {
  const made = el("button", { type: "button", class: kind, text });
  made.addEventListener("click", () => click(made));
  return made;
}

/** Send a request and show the answer, or why it was refused, in a box. Returns the answer; null if it was refused or is not current. */
export async function ask(pressed, box, path, body, show, isCurrent = () => true) {
  const focused = document.activeElement === pressed;
  if (pressed) pressed.disabled = true;
  box.setAttribute("aria-busy", "true");
  try {
    const answer = await post(path, body);
    if (answer === null || !isCurrent()) return null;
    box.replaceChildren(...show(answer));
    return answer;
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    box.replaceChildren(trouble(error));
    return null;
  } finally {
    if (pressed) pressed.disabled = false;
    // A disabled button loses the focus.
    if (focused && document.activeElement === document.body) pressed.focus();
    box.removeAttribute("aria-busy");
  }
}

/** The entries of a list that is separated by commas. */
export function splitList(text) {
  return text.split(",").map((entry) => entry.trim()).filter(Boolean);
}

export function trouble(error) {
  const box = el("div", { class: "query-error", attrs: { role: "alert" } }, el("pre", { text: error.message }));
  if (error.place) box.append(el("p", { class: "mono faint", text: error.place }));
  if (error.remedy) box.append(el("p", { class: "remedy", text: error.remedy }));
  return box;
}

const TONES = { ok: "good", warning: "warn", error: "bad" };

/** The findings of a check: those that are not ok come with their meaning and repair. */
export function findings(title, found) {
  const list = el("ul", { class: "edit-findings" });
  for (const one of found) {
    const item = el(
      "li",
      { class: TONES[one.level] ?? "off" },
      el("span", { class: "badge", text: one.level }),
      el("b", { text: one.name }),
      el("span", { class: "mono", text: one.value }),
    );
    if (one.meaning) item.append(el("p", { text: one.meaning }));
    if (one.repair) item.append(el("p", { class: "remedy" }, el("span", { class: "faint", text: "repair: " }), el("code", { text: one.repair })));
    list.append(item);
  }
  return el("div", { class: "edit-side" }, el("h3", {}, `${title}: `, ...counts(found)), list);
}

/** How many checks passed, warn and failed: "6 checks passed, 1 warning". */
function counts(found) {
  if (!found.length) return ["nothing to check"];
  const number = (level) => found.filter((one) => one.level === level).length;
  const [bad, warned] = [number("error"), number("warning")];
  const says = bad ? `${bad} of ${plural(found.length, "check")} failed` : `${plural(found.length - warned, "check")} passed`;
  const parts = [el("span", { class: bad ? "bad-text" : "good-text", text: says })];
  if (warned) parts.push(", ", el("span", { class: "warn-text", text: plural(warned, "warning") }));
  return parts;
}

export function diff(text) {
  const shown = el("pre", { class: "edit-diff", tabIndex: 0, attrs: { role: "region", "aria-label": "Change of the file" } });
  for (const line of text.split("\n")) {
    const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : "";
    shown.append(el("span", { class: kind, text: `${line}\n` }));
  }
  return shown;
}

export function grid({ columns, rows }) {
  const head = el("tr", {}, ...columns.map((name) => el("th", { text: name, attrs: { scope: "col" } })));
  const cell = (value) => {
    const text = value === null ? "NULL" : typeof value === "object" ? JSON.stringify(value) : String(value);
    return el("td", { class: value === null ? "null" : typeof value === "number" ? "num" : "", text });
  };
  const body = el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell))));
  const table = el("table", { class: "grid-table" }, el("thead", {}, head), body);
  return el("div", { class: "scroll result", tabIndex: 0, attrs: { role: "region", "aria-label": "First rows" } }, table);
}
