// Keyboard shortcuts: plain keys, inactive while the user types. The help (`?`) lists all of them.

const TYPING = "input:not([type=checkbox]), textarea, select, [contenteditable]";

export function listen(commands) {
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    const typing = event.target instanceof Element && event.target.matches(TYPING);
    if (typing) {
      // Escape in a filter clears it first and then leaves it.
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
