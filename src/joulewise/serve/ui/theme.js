// Light or dark, before the first paint: what was chosen here, else what the system prefers.
// No module, since those wait until the page has been read.
(function () {
  "use strict";
  let chosen = null;
  try {
    chosen = localStorage.getItem("joulewise-theme");
  } catch {
    // a browser that keeps nothing: the system's own it is
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
