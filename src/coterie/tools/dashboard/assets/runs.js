"use strict";
// The list of runs as a native table: sorted, filtered and selected here, so that it answers at once and keeps its focus.
// All that comes from files is set as text. The selection is the address and nothing else.
(function () {
  const STATUS = { running: "under way", done: "done", stopped: "stopped", failed: "failed", empty: "empty", broken: "broken" };
  const percent = function (v) { return (100 * v).toFixed(1) + " %"; };
  const here = function (v) {  // the same time where the reader is
    const t = new Date(v), two = function (n) { return String(n).padStart(2, "0"); };
    if (isNaN(t)) { return v; }
    return t.getFullYear() + "-" + two(t.getMonth() + 1) + "-" + two(t.getDate()) + " " + two(t.getHours()) + ":" + two(t.getMinutes());
  };
  const COLUMNS = [
    { name: "run", value: function (r) { return r.key; } },
    { name: "status", value: function (r) { return STATUS[r.status]; } },
    { name: "method", value: function (r) { return r.method; } },
    { name: "data", value: function (r) { return r.data; } },
    { name: "seed", number: true, value: function (r) { return r.seed; } },
    { name: "rounds", number: true, value: function (r) { return r.done; },
      text: function (r) { return r.wanted === null ? String(r.done) : r.done + "/" + r.wanted; } },
    { name: "accuracy", number: true, score: true, value: function (r) { return r.accuracy; }, say: percent },
    { name: "macro-F1", number: true, score: true, value: function (r) { return r.macro_f1; }, say: percent },
    { name: "loss", number: true, score: true, value: function (r) { return r.loss; },
      say: function (v) { return v.toPrecision(4); } },
    { name: "worst 10 %", number: true, score: true, value: function (r) { return r.worst_decile; },
      say: function (v, r) { return r.accuracy === null ? v.toPrecision(4) : percent(v); } },
    { name: "clusters", number: true, value: function (r) { return r.clusters; } },
    { name: "ARI", number: true, value: function (r) { return r.ari; }, say: function (v) { return v.toFixed(2); } },
    { name: "started", value: function (r) { return r.started; }, say: here },
  ];
  let rows = [];
  let selected = [];
  let order = { column: "started", down: true };
  let page = null;
  const lines = new Map();  // key -> its row in the table

  function make(tag, attributes, text) {
    const element = document.createElement(tag);
    Object.entries(attributes || {}).forEach(function (pair) { element.setAttribute(pair[0], pair[1]); });
    if (text !== undefined) { element.textContent = text; }
    return element;
  }

  function put(element, text) {
    if (element.textContent !== text) { element.textContent = text; }
  }

  function cellText(column, row) {
    if (column.text) { return column.text(row); }
    const value = column.value(row);
    if (value === null || value === undefined) { return ""; }
    const said = column.say ? column.say(value, row) : String(value);
    return column.score && row.scored_on === "validation" ? said + " (validation)" : said;
  }

  function addressOf(keys) {
    const words = keys.map(function (key) { return "run=" + encodeURIComponent(key).replace(/%2F/g, "/"); });
    return words.length ? "?" + words.join("&") : "";
  }

  function choose(keys) {
    selected = keys;
    window.dash_clientside.set_props("address", { search: addressOf(keys) });
    draw();
  }

  function build(place) {
    const text = make("input", { type: "search", id: "filter", placeholder: "words, e.g. wecfl digits", autocomplete: "off" });
    const status = make("select", { id: "status" });
    status.append(make("option", { value: "" }, "all"));
    Object.entries(STATUS).forEach(function (pair) { status.append(make("option", { value: pair[0] }, pair[1])); });
    const all = make("button", { type: "button" }, "Compare all listed");
    const none = make("button", { type: "button" }, "Clear selection");
    const count = make("p", { role: "status", class: "soft", id: "count" });
    const controls = make("div", { class: "controls", role: "search" });
    [["Find", text], ["Status", status]].forEach(function (pair) {
      const label = make("label", {}, pair[0] + " ");
      label.append(pair[1]);
      controls.append(label);
    });
    controls.append(all, none, count);
    const head = make("tr", { role: "row" });
    head.append(make("th", { role: "columnheader", scope: "col", class: "tick" }, "compare"));
    const heads = COLUMNS.map(function (column) {
      const th = make("th", { role: "columnheader", scope: "col", class: column.number ? "number" : "" });
      const button = make("button", { type: "button" }, column.name);
      button.addEventListener("click", function () {
        order = { column: column.name, down: order.column === column.name ? !order.down : Boolean(column.number) };
        draw();
      });
      th.append(button);
      head.append(th);
      return th;
    });
    const table = make("table", { role: "table", "aria-labelledby": "runs-title" });
    const thead = make("thead", { role: "rowgroup" });
    const body = make("tbody", { role: "rowgroup" });
    thead.append(head);
    table.append(thead, body);
    const scroller = make("div", { class: "table runs", tabindex: "0", role: "region", "aria-label": "list of runs" });
    scroller.append(table);
    place.append(controls, scroller);
    text.addEventListener("input", draw);
    status.addEventListener("change", draw);
    all.addEventListener("click", function () { choose(listed().map(function (row) { return row.key; })); });
    none.addEventListener("click", function () { choose([]); });
    return { text: text, status: status, all: all, none: none, count: count, heads: heads, body: body, table: table };
  }

  function listed() {
    const words = page.text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = rows.filter(function (row) {
      const all = [row.key, row.method, row.data, "seed=" + row.seed].join(" ").toLowerCase();
      return (!page.status.value || row.status === page.status.value) && words.every(function (w) { return all.includes(w); });
    });
    const column = COLUMNS.find(function (c) { return c.name === order.column; });
    const way = order.down ? -1 : 1;
    return kept.sort(function (a, b) {
      const x = column.value(a), y = column.value(b);
      const none = function (v) { return v === null || v === undefined || v === ""; };
      if (none(x) || none(y)) { return none(x) - none(y) || a.key.localeCompare(b.key); }  // what is unknown comes last
      const apart = column.number ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return way * apart || a.key.localeCompare(b.key, undefined, { numeric: true });
    });
  }

  function newLine(key) {
    const tr = make("tr", { role: "row" });
    const tick = make("td", { role: "cell", class: "tick" });
    const box = make("input", { type: "checkbox", "aria-label": "compare " + key });
    box.addEventListener("change", function () {
      choose(box.checked ? selected.concat([key]) : selected.filter(function (k) { return k !== key; }));
    });
    tick.append(box);
    tr.append(tick);
    const cells = COLUMNS.map(function (column) {
      const td = make("td", { role: "cell", class: column.number ? "number" : "column-" + column.name, "data-label": column.name });
      tr.append(td);
      return td;
    });
    const link = make("a", { href: addressOf([key]) }, key);
    link.addEventListener("click", function (event) {
      if (event.ctrlKey || event.metaKey || event.shiftKey) { return; }  // as in any page: a tab or window of its own
      event.preventDefault();
      choose([key]);
    });
    cells[0].append(link);
    const pill = make("span");
    cells[1].append(pill);
    const why = make("div", { class: "problem why" });
    cells[0].append(why);
    return { tr: tr, box: box, cells: cells, pill: pill, link: link, why: why };
  }

  function fill(line, row) {
    line.box.checked = selected.includes(row.key);
    line.tr.classList.toggle("selected", line.box.checked);
    if (line.box.checked) { line.link.setAttribute("aria-current", "true"); } else { line.link.removeAttribute("aria-current"); }
    put(line.pill, STATUS[row.status] || row.status);
    line.pill.className = "status " + row.status;
    line.pill.title = row.problem || "";
    put(line.why, row.problem || "");
    line.why.hidden = !row.problem;
    COLUMNS.slice(2).forEach(function (column, i) { put(line.cells[i + 2], cellText(column, row)); });
  }

  function arrange(wanted) {
    const has = [...page.body.children];
    if (has.length === wanted.length && has.every(function (tr, i) { return tr === wanted[i]; })) { return; }
    const focus = document.activeElement;
    page.body.replaceChildren(...wanted);
    if (focus && page.body.contains(focus)) { focus.focus({ preventScroll: true }); }
  }

  function draw() {
    const shown = listed();
    arrange(shown.map(function (row) {
      if (!lines.has(row.key)) { lines.set(row.key, newLine(row.key)); }
      fill(lines.get(row.key), row);
      return lines.get(row.key).tr;
    }));
    page.table.classList.toggle("no-loss", rows.every(function (r) { return r.loss === null || r.accuracy !== null; }));
    page.heads.forEach(function (th, i) {
      const mine = COLUMNS[i].name === order.column;
      if (mine) { th.setAttribute("aria-sort", order.down ? "descending" : "ascending"); } else { th.removeAttribute("aria-sort"); }
    });
    page.none.disabled = selected.length === 0;
    page.all.disabled = shown.length === 0;
    put(page.count, shown.length + " of " + rows.length + " runs" + (selected.length ? ", " + selected.length + " selected" : ""));
  }

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.coterie = Object.assign(window.dash_clientside.coterie || {}, {
    runs: function (data, search) {
      const place = document.getElementById("runs");
      if (!data || !place) { return; }
      rows = data;
      const known = new Set(rows.map(function (row) { return row.key; }));
      selected = new URLSearchParams(search || "").getAll("run").filter(function (key) { return known.has(key); });
      place.hidden = rows.length === 0;
      const first = page === null;
      page = page || build(place);
      draw();
      if (first && selected.length) {  // a bookmark: its run is to be seen
        const tr = lines.get(selected[0]) && lines.get(selected[0]).tr;
        const scroller = page.table.parentElement;
        if (tr) { scroller.scrollTop = tr.offsetTop - scroller.clientHeight / 2; }
      }
    },
  });
})();
