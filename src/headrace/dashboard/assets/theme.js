// Runs before the first paint, so that the page does not flash in the other theme.
"use strict";
{
  let chosen = null;
  try {
    chosen = localStorage.getItem("headrace.theme");
  } catch {
    // The browser may forbid storage; then the system's theme applies.
  }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
}
