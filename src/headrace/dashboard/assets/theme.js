// Runs before the first paint, so that a chosen theme does not flash in the other one.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("headrace.theme");
  } catch {
    // Storage may be forbidden; then the system's theme counts.
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
