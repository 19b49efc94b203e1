// Switches between light and dark, draws the charts, sorts tables, and opens link targets.
(() => {
  "use strict";
  const root = document.documentElement;
  const KEY = "ccl-bench-theme";
  const THEMES = ["auto", "light", "dark"];

  // Files opened from a disk may have no storage; the choice then lasts as long as the page.
  const remembered = () => { try { return localStorage.getItem(KEY); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem(KEY, theme); } catch { /* no storage */ } };

  let theme = THEMES.includes(remembered()) ? remembered() : "auto";
  const apply = () => {
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    const button = document.querySelector("[data-theme-switch]");
    if (!button) return;
    button.hidden = false;
    button.textContent = `Theme: ${theme}`;
  };
  const change = () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    remember(theme);
    apply();
  };

  // A link target inside a folded definition opens when the reader follows the link.
  const unfold = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    for (let each = target; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    if (target) target.scrollIntoView();
  };

  // Expressions are interpreted instead of compiled, so that no policy has to allow `eval`.
  const OPTIONS = { actions: false, renderer: "svg", ast: true, tooltip: { theme: "custom" } };
  const draw = async (place, spec, config) => {
    try {
      await vegaEmbed(place, spec, { ...OPTIONS, config });
      place.dataset.drawn = "yes";
    } catch (error) {
      place.dataset.drawn = "no";
      place.textContent = "This chart could not be drawn. Its data is in the table below.";
      console.error(error);
    }
  };
  // Charts are drawn one after the other when nothing else is to be done, so that a page of many opens at once.
  const idle = () => new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));
  const drawAll = async () => {
    const holder = document.getElementById("charts");
    if (!holder) return;
    await idle();
    const { config, specs } = JSON.parse(holder.textContent);
    for (const place of document.querySelectorAll("[data-chart]")) {
      if (!specs[place.dataset.chart]) continue;
      await idle();
      await draw(place, specs[place.dataset.chart], config);
    }
  };

  // A table is sorted by a column whose cells compare: text, exact values, or numbers without a unit. What is
  // unknown comes last in both directions.
  const number = (cell) => {
    const exact = cell.querySelector("data[value]");
    if (exact) return Number(exact.getAttribute("value"));
    const text = cell.textContent.trim();
    return /^-?[\d,]*\.?\d+( %)?$/.test(text) ? Number(text.replace(/[,% ]/g, "")) : NaN;
  };
  const isUnknown = (cell) => ["", "-", "unknown"].includes(cell.textContent.trim());
  const sortBy = (table, column, head) => {
    const descends = head.getAttribute("aria-sort") === "none" ? head.classList.contains("number") : head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) if (other.hasAttribute("aria-sort")) other.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", descends ? "descending" : "ascending");
    const compare = (one, other) => {
      const [a, b] = [one.cells[column], other.cells[column]];
      if (isUnknown(a) || isUnknown(b)) return isUnknown(a) - isUnknown(b);
      const way = descends ? -1 : 1;
      const apart = number(a) - number(b);
      return way * (Number.isNaN(apart) ? a.textContent.trim().localeCompare(b.textContent.trim(), "en", { numeric: true }) : apart);
    };
    const body = table.tBodies[0];
    body.append(...[...body.rows].sort(compare));
  };
  const makeSortable = (table) => {
    const rows = [...(table.tBodies[0]?.rows ?? [])];
    if (rows.length < 2 || !table.tHead) return;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const cells = rows.map((row) => row.cells[column]).filter((cell) => cell && !isUnknown(cell));
      const compares = !head.classList.contains("number") || cells.every((cell) => !Number.isNaN(number(cell)));
      if (!cells.length || !compares || !head.textContent.trim()) return;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(table, column, head));
      head.setAttribute("aria-sort", "none");
      head.append(button);
    });
  };

  // The theme is set before anything is shown, the rest waits for the page.
  apply();
  addEventListener("DOMContentLoaded", () => {
    apply();
    document.querySelector("[data-theme-switch]")?.addEventListener("click", change);
    addEventListener("hashchange", unfold);
    document.querySelectorAll("table.sortable").forEach(makeSortable);
    // Charts take space, so a link target has its final position only once they are drawn.
    drawAll().then(unfold);
  });
})();
