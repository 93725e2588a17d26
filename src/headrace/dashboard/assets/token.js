// The token that changes require: taken from the link and stored for this tab only. The user is asked for it if it is missing or rejected.

import { setIcon, setProp, setText } from "./dom.js";

const KEPT = "headrace.token";
let memory = "";

function read() {
  try {
    return sessionStorage.getItem(KEPT) ?? "";
  } catch {
    return memory;
  }
}

function write(token) {
  memory = token;
  try {
    if (token) sessionStorage.setItem(KEPT, token);
    else sessionStorage.removeItem(KEPT);
  } catch {
    // The browser forbids storage: the token lasts until the page is closed.
  }
  show();
}

export function token() {
  return read();
}

export function forget() {
  write("");
}

/** Take the token from `#token=…` and remove it from the address bar: history and screenshots keep addresses. */
export function takeFromAddress() {
  const words = new URLSearchParams(location.hash.replace(/^#\/?\??/, ""));
  const given = words.get("token");
  if (given) {
    history.replaceState(history.state, "", `${location.pathname}#/`);
    write(given);
  }
  show();
  return Boolean(given);
}

function show() {
  const button = document.getElementById("unlock");
  const has = Boolean(read());
  setText(button.querySelector("span"), has ? "Unlocked" : "Read-only");
  setIcon(button.querySelector("svg"), has ? "unlocked" : "locked");
  setProp(button, "title", has ? "This tab has the token. Click to forget it." : "Looking is free; changing needs the process's token. Click to give it.");
  button.classList.toggle("has-token", has);
}

/** Ask the user for the token; returns it, or "" if the user gave none. */
export function ask(reason) {
  const dialog = document.getElementById("token-dialog");
  const field = document.getElementById("token-field");
  setText(document.getElementById("token-reason"), reason);
  field.value = "";
  if (!dialog.open) dialog.showModal();
  field.focus();
  return new Promise((done) => {
    const close = () => {
      const given = dialog.returnValue === "given" ? field.value.trim() : "";
      field.value = "";
      dialog.returnValue = "";
      if (given) write(given);
      done(given);
    };
    dialog.addEventListener("close", close, { once: true });
  });
}
