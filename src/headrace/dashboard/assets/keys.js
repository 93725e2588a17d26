// Shortcuts: plain keys, only when nobody types; all of them are in the help (`?`).

const TYPING = "input:not([type=checkbox]), textarea, select, [contenteditable]";

export function listen(commands) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target instanceof Element && event.target.matches(TYPING);
    if (typing) {
      // Out of a filter: empty it first, then leave it.
      if (event.key === "Escape") leave(event.target);
      return;
    }
    const command = commands[event.key];
    if (!command) return;
    if (command() !== false) event.preventDefault();
  });
}

function leave(field) {
  if (field.type === "search" && field.value) {
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  } else field.blur();
}
