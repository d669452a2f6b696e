"use strict";
// In the page's head, before anything is painted: the theme that was chosen, or else the system's.
(function () {
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");

  function chosen() {
    try { return window.localStorage.getItem("coterie-theme"); } catch (e) { return null; }  // storage may be forbidden
  }

  function now() {
    const word = chosen();
    const theme = word === "dark" || word === "light" ? word : system.matches ? "dark" : "light";
    document.documentElement.dataset.theme = theme;
    return { theme: theme, narrow: narrow.matches };
  }

  function toggle() {
    const other = now().theme === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("coterie-theme", other); } catch (e) { /* then it is forgotten */ }
    return now();
  }

  window.coterieLook = { now: now, toggle: toggle, watch: [system, narrow] };
  now();
})();
