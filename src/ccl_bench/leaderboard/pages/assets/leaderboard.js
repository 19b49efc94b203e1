// Keeps the selection of runs from page to page, and addresses short. Every page works without it.
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

  const filters = document.getElementById("filters");
  filters?.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
  });
})();
