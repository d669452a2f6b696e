"use strict";
// The look of the page as a value for the server, which draws figures for it; and whether the server is still there.
(function () {
  const look = window.coterieLook;
  const other = function (theme) { return theme === "dark" ? "light" : "dark"; };
  const word = function (theme) { return theme === "dark" ? "Dark" : "Light"; };
  const label = function (theme) { return "Switch to the " + theme + " theme"; };

  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.coterie = Object.assign(window.dash_clientside.coterie || {}, {
    look: function (clicks) {
      const now = clicks ? look.toggle() : look.now();
      return [now, word(other(now.theme)), label(other(now.theme))];
    },
  });

  look.watch.forEach(function (query) {
    query.addEventListener("change", function () {
      const now = look.now();
      window.dash_clientside.set_props("look", { data: now });
      window.dash_clientside.set_props("theme", { children: word(other(now.theme)), "aria-label": label(other(now.theme)) });
    });
  });

  function say(lost) {
    const place = document.getElementById("lost");
    if (!place || place.hidden === !lost) { return; }
    place.hidden = !lost;
    place.textContent = lost ? "The dashboard does not answer: what is shown may be old. Start it again, and it goes on." : "";
  }

  window.setInterval(function () {
    window.fetch("alive", { cache: "no-store" }).then(function (r) { say(!r.ok); }, function () { say(true); });
  }, 5000);
})();
