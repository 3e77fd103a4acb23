"use strict";
(function () {
  // The button cycles through the themes automatic, dark and light; without local storage the next visit is automatic again.
  const themes = ["automatic", "dark", "light"];
  const button = document.getElementById("theme");
  function readTheme() { try { return localStorage.getItem("caprompt-theme"); } catch (error) { return null; } }
  function saveTheme(theme) { try { localStorage.setItem("caprompt-theme", theme); } catch (error) { /* allowed to fail */ } }
  function show(theme) {
    if (theme === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = "theme: " + theme;
  }
  let theme = themes.includes(readTheme()) ? readTheme() : "automatic";
  show(theme);
  button.hidden = false;
  button.addEventListener("click", function () {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    show(theme);
    saveTheme(theme);
  });

  // Sortable tables: numbers by value, text in natural order; clicking the same column again reverses the order.
  function number(text) {
    const match = text.replace(/,/g, "").match(/^-?\d+(\.\d+)?(e[+-]?\d+)?/);
    return match ? Number(match[0]) : NaN;
  }
  function compare(one, other) {
    const a = number(one), b = number(other);
    if (!Number.isNaN(a) && !Number.isNaN(b)) return a - b;
    return one.localeCompare(other, undefined, { numeric: true });
  }
  function sort(table, column, header) {
    const descending = header.getAttribute("aria-sort") === "ascending";
    const text = (row) => row.cells[column].textContent.trim();
    const rows = Array.from(table.tBodies[0].rows).sort((one, other) => compare(text(one), text(other)) * (descending ? -1 : 1));
    table.tBodies[0].append(...rows);
    for (const each of table.tHead.rows[0].cells) if (each.hasAttribute("aria-sort")) each.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  }
  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach(function (header, column) {
      if (header.hasAttribute("data-unsorted")) return;
      const inner = document.createElement("button");
      inner.type = "button";
      inner.textContent = header.textContent;
      inner.addEventListener("click", () => sort(table, column, header));
      header.replaceChildren(inner);
      header.setAttribute("aria-sort", "none");
    });
  }

  // Open all details for printing, and close them again afterwards.
  let closed = [];
  addEventListener("beforeprint", function () {
    closed = Array.from(document.querySelectorAll("details:not([open])"));
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", function () { for (const each of closed) each.open = false; });
})();
