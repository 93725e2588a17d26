// The pages "New pipe" (`#/new`) and "Edit" (`#/edit/NAME`): a draft of a pipe, live checks, preview, and the change of the file.
// The process checks everything again before it writes; the page only shows.

import { confirm, post, Refused, toast } from "./actions.js";
import { el, setProp } from "./dom.js";
import { ask, button, checkbox, diff, field, findings, panel, select, textInput, trouble } from "./editor_parts.js";
import { columnsOf, escapeGlob, globFields, previewOf, TableTree } from "./editor_tables.js";

const ROUTE = /^#\/(?:(new)|edit\/(.+))$/;
const SINK = "chdb:./warehouse";

const EVERY_S = 5;

/** Whether this process lets the dashboard edit its file: a reload can change that. */
export class EditSwitch {
  /** `changed(isOn)` is called with each answer. */
  constructor(changed) {
    Object.assign(this, { changed, due: 0 });
  }

  update(now) {
    if (now < this.due && this.due - now <= 2 * EVERY_S) return;
    this.due = now + EVERY_S;
    this.#ask();
  }

  async #ask() {
    try {
      const answer = await fetch("/api/edit", { cache: "no-store", signal: AbortSignal.timeout(1000 * EVERY_S) });
      if (answer.ok) this.changed(Boolean((await answer.json()).edit));
    } catch {
      // The connection line shows that the process does not respond.
    }
  }
}

export class Editor {
  constructor(node) {
    Object.assign(this, { node, hash: null, draft: null, isDirty: false });
    // Before a field reports its change: the user may leave the page by a key.
    node.addEventListener("input", (event) => event.target.type === "search" || (this.isDirty = true));
  }

  /** Show the page that the address names; return whether it names one. */
  show(hash) {
    const named = ROUTE.exec(hash);
    if (!named) {
      this.hash = null;
      return false;
    }
    if (hash !== this.hash) {
      this.hash = hash;
      this.#load(named[1] ? "" : decodeURIComponent(named[2]));
    }
    return true;
  }

  async #load(name) {
    const hash = this.hash;
    this.isDirty = false;
    this.node.replaceChildren(el("p", { class: "nothing", text: "Asking the process …" }));
    try {
      const known = await post("/api/edit/read", name ? { pipe: name } : {});
      if (hash !== this.hash) return;
      if (known === null) this.node.replaceChildren(el("p", { class: "nothing" }, "This page needs the process's token. ", el("a", { href: "#/", text: "All pipes" })));
      else this.#start(known);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      this.node.replaceChildren(trouble(error), el("p", { class: "nothing" }, el("a", { href: "#/", text: "All pipes" })));
    }
  }

  #start(known) {
    const pipe = known.pipe;
    this.known = known;
    this.found = null;
    this.draft = pipe
      ? { ...pipe, is_new: false, source: { name: pipe.source }, sink: { name: pipe.sink } }
      : { name: "", is_new: true, source: { name: "" }, sink: { name: "" }, include: [], exclude: [], tables: {}, enabled: true };
    this.result = panel("The file");
    this.#draw();
    this.isDirty = false;
  }

  /** The section of the source in the file. */
  get source() {
    return this.known.sources.find((one) => one.name === this.draft.source.name);
  }

  /** What the draft says about a table's columns. */
  tableDraft(name, found) {
    return {
      drop: found.columns.filter((column) => column.drop).map((column) => column.name),
      mask: Object.fromEntries(found.columns.filter((column) => column.mask).map((column) => [column.name, column.mask])),
      ...this.draft.tables[escapeGlob(name)],
    };
  }

  setTable(name, chosen) {
    this.draft.tables[escapeGlob(name)] = chosen;
    this.changed();
  }

  /** The draft has changed: what was planned is out of date. */
  changed() {
    this.isDirty = true;
    this.tree?.draw();
    this.globs?.refresh();
    this.result.body.replaceChildren();
    setProp(this.save, "disabled", true);
  }

  #draw() {
    const { draft } = this;
    const title = el("h1", { class: "h1", id: "editor-title", text: draft.is_new ? "New pipe" : `Edit ${draft.name}` });
    const about = el("p", { class: "faint mono", text: this.known.file });
    const parts = [el("header", { class: "edit-head" }, el("a", { href: draft.is_new ? "#/" : `#/pipes/${encodeURIComponent(draft.name)}`, text: "Back" }), title, about)];
    const general = panel("Pipe");
    if (draft.is_new) {
      const name = textInput("", { required: true });
      name.addEventListener("input", () => ((draft.name = name.value.trim()), this.changed()));
      general.body.append(field("Name of the pipe", name, "Letters, digits, _ and -.").row);
    }
    general.body.append(checkbox("Runs", draft.enabled, (on) => ((draft.enabled = on), this.changed()), "The pipe runs"));
    const ends = el("div", { class: "edit-pair" }, this.#endpoint("source", this.known.sources), this.#endpoint("sink", this.known.sinks));
    parts.push(general.node, ends, this.#checks(), this.#tables(), this.#file());
    this.node.replaceChildren(...parts);
  }

  #endpoint(side, sections) {
    const label = side === "source" ? "Source" : "Sink";
    const made = panel(label);
    const endpoint = this.draft[side];
    const chosen = select([...sections.map((one) => [one.name, `${one.name}: ${one.url}`]), ["", `A new ${side} …`]], endpoint.name);
    const name = textInput("", { attrs: { "aria-label": `Name of the new ${side}` } });
    const url = textInput("", { placeholder: side === "source" ? "mysql://user@host:3306/database" : "clickhouse://user@host:8123/" });
    const password = el("input", { type: "password", autocomplete: "new-password" });
    const naming = field(`Name of the ${side}`, name, "Of the section in the file.");
    const pick = () => {
      const section = sections.find((one) => one.name === chosen.value);
      naming.row.hidden = Boolean(section);
      url.value = section?.url ?? (side === "sink" ? SINK : "");
      name.value = section ? "" : side === "sink" ? "warehouse" : "";
      password.value = "";
      // A new pipe uses a section as it is: other pipes may use it, too.
      url.disabled = password.disabled = this.draft.is_new && Boolean(section);
      take();
    };
    const take = () => {
      this.draft[side] = { name: chosen.value || name.value.trim(), url: url.value.trim(), password: password.value };
      if (this.save) this.changed();
    };
    chosen.addEventListener("change", pick);
    for (const input of [name, url, password]) input.addEventListener("input", take);
    made.body.append(
      field(`${label} section`, chosen).row,
      naming.row,
      field("Address", url, "A password in it is stored like one in the next field.").row,
      field("Password", password, "Stored in a file of its own. Empty: the stored one, which is only used for the same host, port and user.").row,
    );
    pick();
    return made.node;
  }

  #checks() {
    const made = panel("Checks");
    made.head.after(button("Check source and sink", (pressed) => this.#ask(pressed, made.body, "check", {}, (found) => [findings("Source", found.source), findings("Sink", found.sink)])));
    return made.node;
  }

  #tables() {
    const made = panel("Tables");
    const tree = el("div");
    const columns = el("div", { class: "edit-table", attrs: { "aria-live": "polite" } });
    this.globs = globFields(this);
    this.tree = null;
    const list = async (pressed) => {
      const found = await this.#ask(pressed, tree, "tables", {}, (answer) => {
        this.tree = new TableTree(this, answer, (table) => this.#columns(columns, table));
        return [this.tree.node];
      });
      if (found) columns.replaceChildren();
    };
    made.head.after(button("List tables", list));
    made.body.append(this.globs.node, tree, columns);
    return made.node;
  }

  async #columns(box, table) {
    await this.#ask(null, box, "columns", { table }, (found) => {
      const shown = el("div");
      const preview = button(`Preview ${table}`, (pressed) => this.#ask(pressed, shown, "preview", { table }, (answer) => [previewOf(answer)]));
      return [el("h3", { tabIndex: -1, text: `Columns of ${table}` }), columnsOf(this, found), preview, shown];
    });
    box.querySelector("h3")?.focus();
  }

  #file() {
    this.result = panel("The file");
    this.save = button("Save and reload", (pressed) => this.#save(pressed), "primary");
    this.save.disabled = true;
    const plan = button("Show the change", (pressed) => this.#plan(pressed));
    const tools = el("div", { class: "edit-tools" }, plan, this.save);
    if (!this.draft.is_new) tools.append(button("Delete the pipe …", () => this.#delete(), "danger"));
    const node = el("div", { class: "edit-last" }, this.result.node, tools);
    return node;
  }

  async #plan(pressed) {
    await this.#ask(pressed, this.result.body, "plan", {}, (found) => {
      this.save.disabled = !found.changed;
      if (!found.changed) return [el("p", { class: "faint", text: "The draft changes nothing." })];
      return [el("h3", { text: "Change" }), diff(found.diff), el("h3", { text: "The pipe then" }), el("pre", { class: "edit-ddl", tabIndex: 0, text: found.toml })];
    });
  }

  async #save(pressed) {
    const answer = await this.#ask(pressed, this.result.body, "save", { digest: this.known.digest }, () => []);
    if (!answer) return;
    this.isDirty = false;
    toast(`${this.draft.name}: saved; ${answer.summary.join("; ")}`);
    location.hash = `#/pipes/${encodeURIComponent(this.draft.name)}`;
  }

  async #delete() {
    const { name } = this.draft;
    const text = "It stops after the current batch, and its section is removed from the file. Its source, its sink, its state and the rows in the sink stay.";
    if (!(await confirm({ title: `Delete ${name}?`, text, button: "Delete", danger: true }))) return;
    const answer = await this.#ask(null, this.result.body, "delete", { digest: this.known.digest, pipe: name }, () => [], false);
    if (!answer) return;
    this.isDirty = false;
    toast(`${name}: deleted; ${answer.summary.join("; ")}`);
    location.hash = "#/";
  }

  /** Send the draft for an action and show the answer in a box. Returns the answer; null if it was refused. */
  #ask(pressed, box, action, more, show, drafted = true) {
    const { hash } = this;
    return ask(pressed, box, `/api/edit/${action}`, drafted ? { draft: this.draft, ...more } : more, show, () => hash === this.hash);
  }
}
