// Keyboard shortcuts: plain keys, inactive while the user types. The help (`?`) lists all of them.
// In a form of the editor only those work that change nothing: another one could discard a draft or act on a pipe by mistake.

const TYPING = "input:not([type=checkbox]), textarea, select, [contenteditable]";

const IN_FORMS = new Set(["t", "?"]);

/** `isEditing()`: whether a form of the editor is shown. */
export function listen(commands, isEditing) {
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
    if (!command || (isEditing() && !IN_FORMS.has(event.key))) return;
    if (command() !== false) event.preventDefault();
  });
}

function leave(field) {
  if (field.type === "search" && field.value) {
    field.value = "";
    field.dispatchEvent(new Event("input", { bubbles: true }));
  } else field.blur();
}
