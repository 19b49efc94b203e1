// Puts published runs side by side on a static site: compare.html?run=A&run=B.
(async () => {
  "use strict";
  const bench = globalThis.cclBench;
  const place = document.getElementById("compared");
  if (!place) return;
  const asked = new URLSearchParams(location.search).getAll("run").slice(0, 8);
  const wanted = asked.length ? asked : (place.dataset.offered || "").split(" ").filter(Boolean);
  if (!wanted.length) return;
  const { element, badge } = bench;
  await Promise.all([bench.load("site"), bench.load("runs")]);
  await bench.loadNumbers(Object.keys(bench.site.metrics));
  const chosen = [...new Set(wanted)].map((id) => bench.runs.rows.find((run) => run.id.startsWith(id))).filter(Boolean);
  if (!chosen.length) return;
  const address = (runs) => `compare.html?${new URLSearchParams(runs.map((run) => ["run", bench.short(run)]))}`;
  const without = (run) => chosen.filter((each) => each !== run);

  const items = chosen.map((run, nth) => element("li", {},
    element("a", { href: bench.page(run) }, run.model || run.name), " ", badge(run.state), ` ${bench.hardware(run)}, ${run.framework || "unknown framework"} `,
    element("code", { class: "of" }, run.id.slice(0, 8)), " ",
    element("span", { class: "acts" }, nth ? element("a", { href: address([run, ...without(run)]) }, "make it the baseline") : element("strong", {}, "baseline"), element("a", { href: address(without(run)) }, "remove"))));
  const baseline = chosen[0];
  const label = (run) => bench.runs.workloads[run.workload].label;
  const apart = chosen.filter((run) => run.workload !== baseline.workload);
  const unknown = chosen.filter((run) => !run.is_rankable);
  const verdict = unknown.length
    ? `Comparable only if they did the same work: the card of ${unknown.map((run) => run.id.slice(0, 8)).join(", ")} does not identify the workload.`
    : apart.length
    ? `Not comparable with the baseline, because they did different work: ${apart.map((run) => `${run.id.slice(0, 8)} (${label(run)})`).join("; ")}.`
    : `Comparable: they did the same work, ${label(baseline)}.`;

  const change = (before, after) => {
    if (!before || !after || !before.value) return "";
    if (before.kind !== after.kind) return " (measured otherwise)";
    const percent = 100 * (after.value - before.value) / Math.abs(before.value);
    return percent ? ` (${percent > 0 ? "+" : ""}${percent.toPrecision(3)} %)` : " (0 %)";
  };
  const measured = Object.keys(bench.site.metrics).filter((name) => chosen.some((run) => bench.number(name, run)));
  const numbersOf = (name) => chosen.map((run) => bench.number(name, run));
  const isComparable = (name) => {
    const numbers = numbersOf(name);
    return !apart.length && numbers.every((number) => number && number.kind === numbers[0].kind);
  };
  const row = (name) => {
    const known = bench.site.metrics[name];
    const numbers = numbersOf(name);
    return element("tr", {},
      element("th", { scope: "row" }, element("a", { href: `metrics.html#metric-${encodeURIComponent(name)}` }, name)),
      element("td", {}, known.unit), element("td", {}, bench.site.directions[known.better][1]),
      ...numbers.map((number, nth) => element("td", { class: "number" }, number ? `${number.text} ${number.note}`.trim() : "–", nth && chosen[nth].workload === baseline.workload ? change(numbers[0], number) : "")));
  };
  const table = (names, label) => element("div", { class: "scroll all", tabindex: "0", role: "region", "aria-label": label }, element("table", {}, element("thead", {}, element("tr", {}, ...head())), element("tbody", {}, ...names.map(row))));
  const alike = measured.filter(isComparable);
  const others = measured.filter((name) => !isComparable(name));
  const why = apart.length ? "the runs did different work" : "a run has no such number, or it was measured in another way";
  const head = () => ["metric", "unit", "better", ...chosen.map((run) => run.id.slice(0, 8))].map((text, nth) => element("th", { scope: "col", class: nth > 2 ? "number" : null }, text));
  document.querySelector("h1").textContent = "Runs compared";
  const about = document.querySelector(".lead .about");
  about.textContent = place.dataset.note || "";
  about.hidden = Boolean(asked.length);
  place.replaceChildren(
    element("section", {}, element("h2", {}, "Chosen runs"), element("ol", { class: "chosen" }, ...items), element("p", {}, chosen.length > 1 ? verdict : "Choose another run to compare it with.")),
    element("section", {}, element("h2", {}, "Numbers"),
      element("p", { class: "about" }, "Changes are against the baseline. To see whether they exceed the noise, and where a step got longer, run ", element("code", {}, "ccl-bench compare"), " on the downloaded bundles, or use the comparison of a server."),
      alike.length ? table(alike, "Numbers side by side") : null,
      others.length ? element("details", { class: "uncompared" }, element("summary", {}, `${others.length} of ${measured.length} numbers are not comparable: ${why}`), table(others, "Numbers that are not comparable")) : null));
})();
