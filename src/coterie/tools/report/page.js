"use strict";
(function () {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("figures").textContent);
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const drawn = new Set();
  let chosen = null;
  let waiting = Promise.resolve();
  try { chosen = window.localStorage.getItem("coterie-theme"); } catch (e) { /* a file may have no storage */ }

  function theme() { return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light"; }

  function layout(figure) {
    const narrow = window.innerWidth < 640;
    const out = Object.assign({}, figure.layout, { template: data.templates[theme()], autosize: true });
    if (narrow) {
      out.margin = figure.layout.margin || { l: 44, r: 12, t: 56, b: 50 };
      out.font = { size: 11 };
      out.title = Object.assign({}, figure.layout.title, { font: { size: 14 } });
    }
    return out;
  }

  function draw(holder) {
    if (drawn.has(holder)) { return Promise.resolve(); }
    drawn.add(holder);
    const figure = data.figures[holder.id];
    return Plotly.newPlot(holder, figure.data, layout(figure), config).then(function () { holder.dataset.drawn = "yes"; });
  }

  // One after the other with a breath between them: the page can be read and scrolled from the first one on.
  function drawAll(holders) {
    holders.forEach(function (holder) {
      waiting = waiting.then(function () { return new Promise(function (next) { setTimeout(next, 0); }); })
        .then(function () { return draw(holder); });
    });
    return waiting;
  }

  function closed(holder) { return holder.closest("details:not([open])") !== null; }

  function show() {
    root.dataset.theme = theme();
    button.textContent = theme() === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", "Switch to the " + (theme() === "dark" ? "light" : "dark") + " theme");
  }

  function repaint() {
    show();
    drawn.forEach(function (holder) {
      waiting = waiting.then(function () { return Plotly.relayout(holder, { template: data.templates[theme()] }); });
    });
  }

  button.addEventListener("click", function () {
    chosen = theme() === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("coterie-theme", chosen); } catch (e) { /* as above */ }
    repaint();
  });
  system.addEventListener("change", repaint);
  document.querySelectorAll("details").forEach(function (box) {
    box.addEventListener("toggle", function () {
      if (box.open) { drawAll([...box.querySelectorAll(".chart")].filter(function (h) { return !closed(h); })); }
    });
  });
  show();
  drawAll([...document.querySelectorAll(".chart")].filter(function (h) { return !closed(h); })).then(function () {
    root.dataset.ready = String(Math.round(performance.now()));
  });
})();
