// The address that the page shows, as `#/…`. Invariant: a draft with changes is left only after the user has confirmed it.
// A browser reports a change of the address when it has happened, so a refused one is undone: each entry of the tab's history has its number
// in `history.state`, and the difference of two numbers is the way back.

import { confirm } from "./actions.js";

export class Navigation {
  /**
   * `arrived()` is called first, and may replace the address. `drafts()`: names of drafts that another address would discard;
   * `discard()`: gives them up; `moved()`: another address is shown.
   */
  constructor({ arrived, drafts, discard, moved }) {
    Object.assign(this, { arrived, drafts, discard, moved, hash: location.hash, at: history.state?.at ?? 0 });
    this.#number(this.at);
    window.addEventListener("hashchange", () => this.#changed());
  }

  #number(at) {
    this.at = at;
    history.replaceState({ at }, "");
  }

  async #changed() {
    this.arrived();
    // Only a new entry has no number.
    const at = history.state?.at ?? this.at + 1;
    const way = at - this.at;
    if (location.hash === this.hash || !way || !this.drafts().length) return this.#move(at);
    history.replaceState({ at }, "");
    history.go(-way);
    if (document.querySelector("dialog[open]") || !(await confirmLoss(this.drafts()))) return undefined;
    this.discard();
    return history.go(way);
  }

  #move(at) {
    this.#number(at);
    if (location.hash === this.hash) return;
    this.hash = location.hash;
    this.moved();
  }
}

/** Ask the user whether drafts may be lost. */
export function confirmLoss(names) {
  const text = "What was entered is not in the file, and is lost.";
  return confirm({ title: `Discard the draft of ${names.join(" and ")}?`, text, button: "Discard", danger: true });
}
