"use strict";
(function () {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("figures").textContent);
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"] };
  const drawn = new Map();  // holders, and the figure that each shows
  let chosen = null;
  let waiting = library();
  try { chosen = window.localStorage.getItem("coterie-theme"); } catch (e) { /* a file may have no storage */ }

  // The plotting library lies in the page compressed, where it is not loaded from elsewhere.
  async function library() {
    const packed = document.getElementById("plotly");
    if (!packed) { return; }
    const bytes = Uint8Array.from(atob(packed.textContent), function (c) { return c.charCodeAt(0); });
    const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.text = await new Response(unpacked).text();
    packed.replaceWith(script);
  }

  function theme() { return chosen === "dark" || chosen === "light" ? chosen : system.matches ? "dark" : "light"; }

  function layout(figure) {
    const narrow = window.innerWidth < 640;
    const out = Object.assign({}, figure.layout, { template: data.templates[theme()], autosize: true, uirevision: "kept" });
    if (narrow) {
      out.margin = figure.layout.margin || { l: 44, r: 12, t: 56, b: 50 };
      out.font = { size: 11 };
      out.title = Object.assign({}, figure.layout.title, { font: { size: 14 } });
    }
    return out;
  }

  function draw(holder) {
    const figure = data.figures[holder.id];
    if (!figure || drawn.get(holder) === figure) { return Promise.resolve(); }
    drawn.set(holder, figure);
    return Plotly.react(holder, figure.data, layout(figure), config).then(function () { holder.dataset.drawn = "yes"; });
  }

  // One after the other with a breath between them: the page can be read and scrolled from the first one on.
  function drawAll() {
    [...document.querySelectorAll(".chart")].filter(function (h) { return !closed(h); }).forEach(function (holder) {
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
    drawn.forEach(function (_, holder) {
      waiting = waiting.then(function () { return Plotly.relayout(holder, { template: data.templates[theme()] }); });
    });
  }

  button.addEventListener("click", function () {
    chosen = theme() === "dark" ? "light" : "dark";
    try { window.localStorage.setItem("coterie-theme", chosen); } catch (e) { /* as above */ }
    repaint();
  });
  system.addEventListener("change", repaint);
  document.addEventListener("toggle", function (event) { if (event.target.open) { drawAll(); } }, true);

  // A served page: what has changed replaces what was there; charts, open runs and ticked boxes stay.
  function replaceMain(html) {
    const main = document.querySelector("main");
    const fresh = document.createElement("main");
    fresh.innerHTML = html;
    fresh.querySelectorAll(".chart").forEach(function (holder) {
      const old = document.getElementById(holder.id);
      if (!old || !drawn.has(old)) { return; }
      old.style.height = holder.style.height;
      old.setAttribute("aria-label", holder.getAttribute("aria-label"));
      holder.replaceWith(old);
    });
    fresh.querySelectorAll("details").forEach(function (box) {
      const old = document.getElementById(box.id);
      box.open = Boolean(old && old.open);
    });
    const ticked = new Set([...main.querySelectorAll("input:checked")].map(function (box) { return box.value; }));
    fresh.querySelectorAll("input").forEach(function (box) { box.checked = ticked.has(box.value); });
    const focused = main.contains(document.activeElement) ? document.activeElement : null;
    main.replaceWith(fresh);
    if (focused && focused.name) {
      const again = fresh.querySelector("[name=" + focused.name + "][value=" + CSS.escape(focused.value) + "]");
      if (again) { again.focus({ preventScroll: true }); }
    }
    drawn.forEach(function (_, holder) { if (!document.contains(holder)) { drawn.delete(holder); } });
  }

  async function look() {
    const lost = document.getElementById("lost");
    try {
      const answer = await fetch(data.live.address + "&seen=" + data.live.state);
      const now = await answer.json();
      lost.textContent = "";
      if (now.state !== data.live.state) {
        data.live.state = now.state;
        Object.keys(now.figures).forEach(function (name) {
          const same = JSON.stringify(now.figures[name]) === JSON.stringify(data.figures[name]);
          if (same) { now.figures[name] = data.figures[name]; }
        });
        data.figures = now.figures;
        replaceMain(now.main);
        await drawAll();
      }
    } catch (error) {
      lost.textContent = " The dashboard does not answer; this page shows what it last said.";
    }
    setTimeout(look, 2000);
  }

  show();
  drawAll().then(function () {
    root.dataset.ready = String(Math.round(performance.now()));
    if (data.live) { setTimeout(look, 2000); }
  });
})();
