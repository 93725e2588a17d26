// Rules of alerts, in the alert panel: a form for a rule of the file, a test alert, and the change of the file.
// The process checks everything again before it sends or writes; the form only shows.

import { confirm, toast } from "./actions.js";
import { el, setProp, setText } from "./dom.js";
import { ask, button, checkbox, diff, field, select, splitList, textInput } from "./editor_parts.js";
import { confirmLoss } from "./navigation.js";

const MAIL = "e-mail";
const KINDS = [["json", "Webhook (JSON)"], ["slack", "Slack"], ["teams", "Teams"], [MAIL, "E-mail"]];
const KEPT = "Stored in a file of its own. Empty: the stored one, which is only used for the same host, port and user.";
const LIMITS = [
  ["lag_seconds", "Lag above (seconds)"],
  ["lag_for_seconds", "Lag for at least (seconds)"],
  ["away_seconds", "Failed: also away for (seconds)"],
];

export class AlertEditor {
  /** `saved` is called after a change of the file. */
  constructor(saved) {
    const by = (id) => document.getElementById(id);
    Object.assign(this, { node: by("alert-editor"), opener: by("edit-alerts"), saved, isDirty: false });
    this.opener.addEventListener("click", () => this.#leave(() => this.#open("")));
  }

  /** Go on if there is no draft with changes, or the user gives it up. */
  async #leave(go, stay = () => {}) {
    if (this.isDirty && !(await confirmLoss([this.draft.name || "a new rule"]))) return stay();
    this.isDirty = false;
    return go();
  }

  /** Load the rules of the file, and show the form for one of them. */
  async #open(name) {
    setProp(this.node, "hidden", false);
    const known = await ask(this.opener, this.node, "/api/edit/alerts/list", {}, (found) => this.#parts(found));
    if (!known) return setProp(this.node, "hidden", !this.node.childElementCount);
    this.#pick(known.rules.some((one) => one.name === name) ? name : (known.rules[0]?.name ?? ""));
    return this.heading.focus();
  }

  #close() {
    this.node.replaceChildren();
    setProp(this.node, "hidden", true);
    this.opener.focus();
  }

  #parts(known) {
    this.known = known;
    this.heading = el("h3", { tabIndex: -1, text: "Rules of the file" });
    this.rules = select([...known.rules.map((one) => [one.name, `${one.name}: ${one.url}`]), ["", "A new rule …"]], "");
    this.rules.addEventListener("change", () => {
      const { value } = this.rules;
      this.#leave(() => this.#pick(value), () => (this.rules.value = this.picked));
    });
    this.form = el("div", { class: "edit-body" });
    this.result = el("div", { class: "edit-result", attrs: { "aria-live": "polite" } });
    this.save = button("Save and reload", (pressed) => this.#save(pressed), "primary");
    this.remove = button("Delete the rule …", () => this.#delete(), "danger");
    const plan = button("Show the change", (pressed) => this.#plan(pressed));
    const test = button("Send a test alert", (pressed) => this.#test(pressed));
    const close = button("Close", () => this.#leave(() => this.#close()));
    const tools = el("div", { class: "edit-tools" }, plan, test, this.save, close, this.remove);
    return [this.heading, el("p", { class: "faint mono", text: known.file }), field("Rule", this.rules).row, this.form, this.result, tools];
  }

  /** Show the form of a rule; of a new one if the name is empty. */
  #pick(name) {
    const { known } = this;
    const rule = known.rules.find((one) => one.name === name);
    const { has_secret: hasSecret, ...draft } = rule ?? { name: "", kind: "json", url: "", ...known.defaults };
    this.draft = { ...draft, secret: "", is_new: !rule };
    this.rules.value = this.picked = name;
    setProp(this.remove, "hidden", !rule);
    this.form.replaceChildren(...this.#fields(Boolean(hasSecret)));
    this.#changed();
    this.isDirty = false;
  }

  /** The draft has changed: what was planned is out of date. */
  #changed() {
    this.isDirty = true;
    this.result.replaceChildren();
    setProp(this.save, "disabled", true);
  }

  #text(key, label, hint, { list = false, ...props } = {}) {
    const { draft } = this;
    const input = textInput(list ? draft[key].join(", ") : String(draft[key]), props);
    input.addEventListener("input", () => {
      draft[key] = list ? splitList(input.value) : input.value.trim();
      this.#changed();
    });
    return field(label, input, hint);
  }

  #limit([key, label]) {
    const input = textInput(String(this.draft[key]), { inputMode: "decimal" });
    input.addEventListener("input", () => {
      this.draft[key] = input.value.trim() ? Number(input.value) : null;
      this.#changed();
    });
    return field(label, input).row;
  }

  #fields(hasSecret) {
    const { draft, known } = this;
    const kind = select(KINDS, draft.kind);
    const url = this.#text("url", "Address", "A webhook's path and query, and a password, are stored in files of their own.");
    const secret = el("input", { type: "password", autocomplete: "new-password" });
    const secretField = field("Token", secret, hasSecret ? KEPT : "Optional. Stored in a file of its own.");
    const mail = el("div", { class: "edit-pair" }, this.#text("to", "Recipients", "Separated by commas.", { list: true }).row, this.#text("sender", "Sender", "").row);
    const show = () => {
      const isMail = draft.kind === MAIL;
      setText(secretField.row.querySelector("label"), isMail ? "Password" : "Token");
      setProp(url.input, "placeholder", isMail ? "smtp://user@host:587" : "https://host/path");
      setProp(mail, "hidden", !isMail);
    };
    kind.addEventListener("change", () => {
      draft.kind = kind.value;
      show();
      this.#changed();
    });
    secret.addEventListener("input", () => {
      draft.secret = secret.value;
      this.#changed();
    });
    show();
    const first = draft.is_new ? [this.#text("name", "Name of the rule", "Letters, digits, _ and -.").row] : [];
    return [
      ...first,
      el("div", { class: "edit-pair" }, field("Receiver", kind).row, url.row),
      secretField.row,
      mail,
      this.#events(known.events),
      this.#text("pipes", "Pipes", "Globs of names, separated by commas.", { list: true }).row,
      el("div", { class: "edit-pair" }, ...LIMITS.map((one) => this.#limit(one)), this.#text("low_disk", "Free space below", "Bytes, or a number with K, M or G.").row),
    ];
  }

  #events(names) {
    const { draft } = this;
    const boxes = names.map((name) =>
      checkbox(name.replace("_", " "), draft.events.includes(name), (on) => {
        draft.events = names.filter((one) => (one === name ? on : draft.events.includes(one)));
        this.#changed();
      }),
    );
    return el("fieldset", { class: "edit-events" }, el("legend", { text: "Events" }), ...boxes);
  }

  #ask(pressed, action, more, show) {
    return ask(pressed, this.result, `/api/edit/alerts/${action}`, more, show);
  }

  async #plan(pressed) {
    await this.#ask(pressed, "plan", { draft: this.draft }, (found) => {
      this.save.disabled = !found.changed;
      if (!found.changed) return [el("p", { class: "faint", text: "The draft changes nothing." })];
      return [el("h3", { text: "Change" }), diff(found.diff), el("h3", { text: "The rule then" }), el("pre", { class: "edit-ddl", tabIndex: 0, text: found.toml })];
    });
  }

  async #test(pressed) {
    await this.#ask(pressed, "test", { draft: this.draft }, (found) => [el("p", { class: "good-text", text: `Sent to ${found.receiver}: ${found.answer}` })]);
  }

  async #save(pressed) {
    const { name } = this.draft;
    this.#done(`${name}: saved`, name, await this.#ask(pressed, "save", { draft: this.draft, digest: this.known.digest }, () => []));
  }

  async #delete() {
    const { name } = this.draft;
    const text = "Its section is removed from the file.";
    if (!(await confirm({ title: `Delete the rule ${name}?`, text, button: "Delete", danger: true }))) return;
    this.#done(`${name}: deleted`, "", await this.#ask(null, "delete", { rule: name, digest: this.known.digest }, () => []));
  }

  #done(what, name, answer) {
    if (!answer) return;
    this.isDirty = false;
    toast(`${what}; ${answer.summary.join("; ")}`);
    this.saved();
    this.#open(name);
  }
}
