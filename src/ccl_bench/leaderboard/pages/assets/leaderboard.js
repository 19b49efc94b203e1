// Keeps the selection of runs from page to page. Every page works without it.
(() => {
  "use strict";
  const KEY = "ccl-bench-selected";
  const MOST = 8;
  const form = document.getElementById("compare");
  if (!form || form.tagName !== "FORM") return;

  const stored = () => { try { return JSON.parse(sessionStorage.getItem(KEY)) || []; } catch { return []; } };
  const store = (runs) => { try { sessionStorage.setItem(KEY, JSON.stringify(runs)); } catch { /* no storage */ } };
  let selected = stored().filter((run) => /^[0-9a-f]{8,64}$/.test(run)).slice(0, MOST);

  const button = form.querySelector("button");
  const boxes = () => document.querySelectorAll("#runs input[name=run]");
  const show = () => {
    for (const box of boxes()) {
      box.checked = selected.includes(box.value);
      box.disabled = !box.checked && selected.length >= MOST;
    }
    button.textContent = selected.length ? `Compare selected (${selected.length})` : "Compare selected";
    button.disabled = selected.length < 2;
    clear.hidden = !selected.length;
  };

  const clear = document.createElement("button");
  clear.type = "button";
  clear.textContent = "Clear";
  clear.addEventListener("click", () => { selected = []; store(selected); show(); });
  form.append(" ", clear);

  document.addEventListener("change", (event) => {
    const box = event.target;
    if (box.name !== "run") return;
    selected = selected.filter((run) => run !== box.value);
    if (box.checked) selected.push(box.value);
    store(selected);
    show();
  });
  // The boxes of other pages are not here: the whole selection goes into the address.
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const asked = new URLSearchParams(selected.map((run) => ["run", run]));
    location.href = `${form.getAttribute("action")}?${asked}`;
  });
  document.addEventListener("runs-shown", show);
  addEventListener("pageshow", () => { selected = stored(); show(); });
  show();
})();

// Filters act at once. Without scripts their button does it.
(() => {
  "use strict";
  const PLACE = "ccl-bench-field";
  const PAUSE = 700;
  let isTyping = false;
  addEventListener("keydown", () => { isTyping = true; }, true);
  addEventListener("pointerdown", () => { isTyping = false; }, true);

  for (const form of document.querySelectorAll("form[data-at-once]")) {
    let waiting;
    form.querySelector("button[type=submit]").hidden = true;
    form.addEventListener("change", ({ target }) => {
      if (target.type === "search") return;
      clearTimeout(waiting);
      // Arrow keys pass by other choices of a list, and people choose several columns.
      const isSlow = target.name === "columns" || (isTyping && target.tagName === "SELECT");
      waiting = setTimeout(() => form.requestSubmit(), isSlow ? PAUSE : 0);
    });
    form.addEventListener("submit", () => {
      clearTimeout(waiting);
      const { name = "", value = "" } = document.activeElement;
      const open = [...form.querySelectorAll("details")].map((each) => each.open);
      try { sessionStorage.setItem(PLACE, JSON.stringify({ name, value, open, top: scrollY })); } catch { /* no storage */ }
    });
    form.addEventListener("formdata", ({ formData }) => {
      for (const [name, value] of [...formData]) if (value === "") formData.delete(name);
    });
    // The page that answers continues where this one was left.
    let left = null;
    try { left = JSON.parse(sessionStorage.getItem(PLACE)); sessionStorage.removeItem(PLACE); } catch { /* no storage */ }
    if (!left) continue;
    form.querySelectorAll("details").forEach((each, nth) => { each.open ||= left.open[nth]; });
    const fields = [...form.elements].filter((each) => each.name === left.name && each.type !== "hidden");
    (fields.find((each) => each.value === left.value) || fields[0])?.focus({ preventScroll: true });
    scrollTo(0, left.top);
  }
})();
