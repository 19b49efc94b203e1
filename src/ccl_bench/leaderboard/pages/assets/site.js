// Answers addresses such as index.html?model=llama&sort=mfu on a static site, as the server does on its own.
(() => {
  "use strict";
  const up = document.body.dataset.up || "";
  const bench = { site: null, runs: null, numbers: {} };
  globalThis.cclBench = bench;

  // Data comes as scripts: a page that was opened from a disk may load those, and nothing else.
  const loaded = {};
  bench.load = (name) => loaded[name] ||= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${up}data/${name}.js`;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${script.src} cannot be read`));
    document.head.append(script);
  });
  bench.loadNumbers = (metrics) => Promise.all(
    metrics.filter((name) => name in bench.site.metrics).map((name) => bench.load(`numbers/${bench.site.metrics[name].file}`)),
  );
  bench.element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== false) made.setAttribute(name, value);
    made.append(...children.filter((child) => child !== null && child !== ""));
    return made;
  };
  bench.badge = (state) => {
    const [word, meaning, glyph] = bench.site.badges[state];
    return bench.element("span", { class: `badge ${state}`, title: meaning }, bench.element("span", { "aria-hidden": "true" }, glyph), ` ${word}`);
  };
  bench.title = (metric) => bench.site.metrics[metric]?.title || metric.replaceAll("_", " ").replace(/^./u, (first) => first.toUpperCase());
  bench.hint = (metric) => bench.site.metrics[metric]?.hint || metric;
  bench.unseen = (text) => bench.element("span", { class: "unseen" }, text);
  bench.page = (run) => (run.source ? `${up}sources/${run.source}.html` : `${up}runs/${bench.short(run)}.html`);
  bench.short = (run) => run.id.slice(0, 12);
  bench.hardware = (run) => `${run.device_count ? `${run.device_count} × ` : ""}${run.hardware || "unknown"}`;
  bench.parallelism = (run) => {
    const degrees = bench.site.axes.filter((axis) => run[axis] > 1).map((axis) => `${axis} ${run[axis]}`);
    return degrees.join(", ") || (bench.site.axes.some((axis) => run[axis]) ? "not parallel" : "parallelism unknown");
  };
  bench.number = (metric, run) => {
    const found = bench.numbers[metric]?.[run.row];
    return found ? { value: found[0], text: found[1], place: found[2], ranked: found[3], kind: found[4], note: found[5] || "", isDoubtful: Boolean(found[6]) } : null;
  };
  const { element, badge, unseen } = bench;
  const thousands = (count) => count.toLocaleString("en-US");

  const table = document.getElementById("runs");
  if (!table) return;
  document.getElementById("filters").hidden = false;
  document.getElementById("compare").hidden = false;

  // What an address asks for, completed as `completed` does on the server.
  const question = () => {
    const asked = new URLSearchParams(location.search);
    const one = (name) => asked.getAll(name).at(-1) || "";
    const many = (name) => asked.getAll(name).filter(Boolean);
    const found = { q: one("q"), phase: one("phase"), state: one("state"), workload: one("workload"), sort: one("sort"), order: one("order"), together: one("together"), columns: many("columns"), page: Math.max(1, parseInt(one("page"), 10) || 1) };
    for (const name of bench.site.texts) found[name] = many(name);
    for (const name of bench.site.degrees) found[name] = parseInt(one(name), 10) || null;
    found.phase ||= found.workload ? "any" : bench.site.phase;
    const usual = bench.site.usual[found.phase] || bench.site.usual.any;
    found.sort ||= found.phase === "any" && !found.workload ? "submitted_at" : usual[0];
    found.isMetric = !bench.site.sortedBy.includes(found.sort);
    found.together ||= found.isMetric ? "yes" : "no";
    const columns = found.columns.length ? found.columns : usual;
    found.columns = [...new Set(found.isMetric && !columns.includes(found.sort) ? [found.sort, ...columns] : columns)];
    return found;
  };
  const address = (asked, changes = {}) => {
    const all = { ...asked, page: 1, ...changes };
    const said = new URLSearchParams();
    for (const [name, value] of Object.entries(all)) {
      if (name === "isMetric" || value === "" || value === null || (name === "page" && value === 1)) continue;
      for (const each of Array.isArray(value) ? value : [value]) said.append(name, each);
    }
    return `${up}index.html?${said}`;
  };
  const isFalling = (asked, name) => {
    if (asked.order) return asked.order === "desc";
    const metric = bench.site.metrics[name];
    return metric ? metric.better !== "lower" : name === "submitted_at";
  };

  const searched = (run) => (run.searched ??= Object.values(run).join(" ").toLowerCase());
  const fits = (asked) => {
    const words = asked.q.toLowerCase().split(/\s+/).filter(Boolean);
    return (run) => (asked.phase === "any" || run.phase === asked.phase)
      && (asked.state ? run.state === asked.state : bench.site.listed.includes(run.state))
      && bench.runs.workloads[run.workload].key.startsWith(asked.workload)
      && bench.site.texts.every((name) => !asked[name].length || asked[name].includes(run[name]))
      && bench.site.degrees.every((name) => asked[name] === null || run[name] === asked[name])
      && words.every((word) => searched(run).includes(word));
  };
  const compared = (one, two) => (one < two ? -1 : one > two ? 1 : 0);
  const inOrder = (asked) => {
    const value = (run) => (asked.isMetric ? bench.number(asked.sort, run)?.value : run[asked.sort]) ?? null;
    const sign = isFalling(asked, asked.sort) ? -1 : 1;
    const group = (run) => bench.runs.workloads[run.workload];
    return (one, two) => {
      if (asked.together === "yes" && one.workload !== two.workload) {
        const [a, b] = [group(one), group(two)];
        return b.size - a.size || compared(a.label, b.label) || compared(a.key, b.key);
      }
      const [a, b] = [value(one), value(two)];
      if ((a === null) !== (b === null)) return a === null ? 1 : -1;
      return sign * compared(a, b) || compared(one.id, two.id);
    };
  };

  const sorter = (asked, name, title, hint = null) => {
    const isSorted = asked.sort === name;
    const falling = isFalling(asked, name);
    const link = element("a", { class: "sort", title: hint, href: address(asked, { sort: name, order: isSorted ? (falling ? "asc" : "desc") : "", together: "" }) }, title);
    if (isSorted) link.append(" ", element("span", { class: "turn", "aria-hidden": "true" }, falling ? "▼" : "▲"));
    return link;
  };
  const heading = (asked, names, extra = {}, ...more) => {
    const sorted = names.find(([name]) => name === asked.sort);
    const order = sorted ? (isFalling(asked, sorted[0]) ? "descending" : "ascending") : null;
    const links = names.flatMap(([name, title, hint], place) => [place ? ", " : "", sorter(asked, name, title, hint)]);
    return element("th", { scope: "col", "aria-sort": order, ...extra }, ...links, ...more);
  };
  const metricHeading = (asked, name) => {
    const known = bench.site.metrics[name] || { unit: "", better: "neither" };
    const [arrow, words] = bench.site.directions[known.better];
    const define = element("a", { class: "define", href: `${up}metrics.html#metric-${encodeURIComponent(name)}`, "aria-label": `Definition of ${bench.title(name)}` }, "?");
    return heading(asked, [[name, bench.title(name), bench.hint(name)]], { class: "number" }, element("span", { class: "unit" }, `${known.unit} `, element("span", { "aria-hidden": "true" }, arrow), unseen(words), " ", define));
  };
  const cell = (number) => {
    if (!number) return element("td", { class: "number" }, element("span", { class: "none" }, "–"));
    const isBest = number.place === 1 && number.ranked > 1;
    const mark = isBest ? element("span", { class: "mark", "aria-hidden": "true" }, "★") : null;
    const note = number.note ? element("span", { class: "apart" }, number.note) : null;
    const doubt = number.isDoubtful ? element("span", { class: "doubt", title: "an error in the data makes this number doubtful" }, " !", unseen(" doubtful")) : null;
    return element("td", { class: isBest ? "number best" : "number" }, mark, isBest ? unseen("best: ") : null, element("data", { value: number.value }, number.text), doubt, note);
  };
  const row = (asked, run) => {
    const name = run.model || run.name;
    const ranking = asked.isMetric ? asked.sort : asked.columns.find((metric) => bench.number(metric, run)?.place);
    const leading = bench.number(ranking, run);
    const place = leading?.place
      ? [element("strong", {}, leading.place), element("span", { class: "of" }, ` of ${leading.ranked}`), asked.isMetric ? null : element("span", { class: "under" }, bench.title(ranking))]
      : [element("span", { class: "none", "aria-hidden": "true" }, "–"), unseen("not ranked")];
    const under = (text) => element("span", { class: "under" }, text);
    const brief = (text) => element("span", { class: "under brief" }, text);
    const named = (one, version) => `${run[one] || "unknown"}${run[one] && run[version] ? ` ${run[version]}` : ""}`;
    const nodes = run.node_count > 1 ? element("span", { class: "of" }, `, ${run.node_count} nodes`) : null;
    return element("tr", {},
      element("td", { class: "pick" }, element("input", { type: "checkbox", name: "run", value: bench.short(run), form: "compare", "aria-label": `Select ${name}, ${run.id.slice(0, 8)}` })),
      element("td", { class: "place" }, ...place),
      element("th", { scope: "row", class: "run" }, element("a", { href: bench.page(run), title: name }, name.slice(name.lastIndexOf("/") + 1) || name), element("span", { class: "under" }, badge(run.state), " ", element("span", { class: "day", title: run.submitter ? `submitted by ${run.submitter}` : null }, run.submitted_at.slice(0, 10)), run.signed_by ? ", signed" : ""), brief(bench.hardware(run)), brief(run.framework || "unknown")),
      element("td", { class: "wide" }, bench.hardware(run), nodes, under(bench.parallelism(run))),
      element("td", { class: "wide" }, named("framework", "framework_version"), under(named("communication_library", "communication_version"))),
      ...asked.columns.map((metric) => cell(bench.number(metric, run))));
  };
  const bodies = (asked, runs) => {
    const made = [];
    let last = null;
    for (const run of runs) {
      if (!made.length || (asked.together === "yes" && run.workload !== last)) {
        made.push(element("tbody"));
        const workload = bench.runs.workloads[run.workload];
        if (asked.together === "yes") {
          const link = element("a", { href: `${up}workloads/${workload.key.slice(0, 12)}.html` }, workload.label);
          const size = element("span", { class: "of" }, ` ${thousands(workload.size)} ${workload.size === 1 ? "run" : "runs"}`);
          made.at(-1).append(element("tr", { class: "group" }, element("th", { scope: "rowgroup", colspan: asked.columns.length + 5 }, element("span", { class: "stuck" }, link, size))));
        }
      }
      last = run.workload;
      made.at(-1).append(row(asked, run));
    }
    return made;
  };

  const chips = (asked) => {
    const found = asked.q ? [[`search: ${asked.q}`, { q: "" }]] : [];
    for (const name of bench.site.texts) for (const value of asked[name]) found.push([`${bench.site.labels[name]}: ${value}`, { [name]: asked[name].filter((each) => each !== value) }]);
    for (const name of bench.site.degrees) if (asked[name] !== null) found.push([`${bench.site.labels[name]}: ${asked[name]}`, { [name]: null }]);
    if (asked.state) found.push([`state: ${bench.site.badges[asked.state]?.[0] || asked.state}`, { state: "" }]);
    if (asked.workload) found.push([`workload: ${asked.workload.slice(0, 12)}`, { workload: "" }]);
    const items = found.map(([text, changes]) => element("li", {}, element("a", { href: address(asked, changes) }, `${text} `, element("span", { "aria-hidden": "true" }, "×"), unseen(", remove"))));
    return items.length ? [element("ul", { class: "chips", "aria-label": "Filters in force" }, ...items)] : [];
  };
  const pages = (asked, last) => {
    if (last < 2) return [];
    const link = (title, place, rel) => (place < 1 || place > last || place === asked.page ? null : element("a", { href: address(asked, { page: place }), rel }, title));
    return [element("nav", { class: "pages", "aria-label": "Pages" }, link("First", 1, "first"), link("Previous", asked.page - 1, "prev"), element("span", {}, `Page ${thousands(asked.page)} of ${thousands(last)}`), link("Next", asked.page + 1, "next"), link("Last", last, "last"))];
  };
  // The values of a filter, each with the runs that are left then, whatever it is set to.
  const choices = (asked, name) => {
    const counts = new Map();
    for (const run of bench.runs.rows.filter(fits({ ...asked, [name]: bench.site.texts.includes(name) ? [] : null }))) {
      if (run[name] != null) counts.set(run[name], (counts.get(run[name]) || 0) + 1);
    }
    const key = (value) => (typeof value === "string" ? value.toLowerCase() : value);
    return [...counts].sort(([one], [two]) => compared(key(one), key(two)));
  };
  const fillForm = (asked) => {
    const form = document.getElementById("filters");
    for (const name of [...bench.site.texts, ...bench.site.degrees]) {
      const options = choices(asked, name).map(([value, count]) => element("option", { value }, `${value} (${thousands(count)})`));
      form.elements[name].replaceChildren(element("option", { value: "" }, "any"), ...options);
      form.elements[name].value = String([asked[name] ?? ""].flat().at(-1) ?? "");
    }
    const boxes = form.querySelectorAll("input[name=columns]");
    for (const box of boxes) box.checked = asked.columns.includes(box.value);
    form.querySelector(".columns").closest("details").querySelector(".of").textContent = `${asked.columns.length} of ${boxes.length}`;
    for (const name of ["q", "state", "order"]) form.elements[name].value = asked[name];
    const sort = form.elements.sort;
    for (const name of [...asked.columns].reverse()) if (![...sort.options].some((each) => each.value === name)) sort.prepend(element("option", { value: name }, bench.title(name)));
    sort.value = asked.sort;
    form.querySelector("[name=phase]").value = asked.phase;
    form.querySelector("[name=together][type=checkbox]").checked = asked.together === "yes";
    if (asked.workload) form.append(element("input", { type: "hidden", name: "workload", value: asked.workload }));
    for (const tab of document.querySelectorAll("#phases a")) {
      tab.toggleAttribute("aria-current", false);
      if (tab.dataset.phase === asked.phase) tab.setAttribute("aria-current", "true");
      tab.href = address(asked, { phase: tab.dataset.phase, sort: "", order: "", together: "", columns: [] });
    }
  };
  const saved = (name, kind, text) => element("a", { href: URL.createObjectURL(new Blob([text], { type: kind })), download: name }, name.endsWith("csv") ? "CSV" : "JSON");
  const downloads = (asked, runs) => {
    const fields = bench.site.fields;
    const formula = new RegExp(bench.site.formula, "g");
    const quoted = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
    const cell = (value) => quoted(typeof value === "string" ? value.replace(formula, "$1'$2") : String(value ?? ""));
    const lines = runs.map((run) => [...fields.map((name) => cell(run[name])), ...asked.columns.map((metric) => String(bench.number(metric, run)?.value ?? ""))].join(","));
    const plain = runs.map((run) => ({ ...Object.fromEntries(fields.map((name) => [name, run[name]])), numbers: Object.fromEntries(asked.columns.map((metric) => [metric, bench.number(metric, run)])) }));
    return ["Download ", saved("runs.csv", "text/csv", `${[...fields, ...asked.columns.map(cell)].join(",")}\n${lines.join("\n")}\n`), " ", saved("runs.json", "application/json", JSON.stringify(plain, null, 1)), " ", element("a", { href: `${up}runs.parquet`, download: "" }, "Parquet of all runs")];
  };

  const show = async () => {
    await bench.load("site");
    const asked = question();
    await Promise.all([bench.load("runs"), bench.loadNumbers([...asked.columns, ...(asked.isMetric ? [asked.sort] : [])])]);
    const runs = bench.runs.rows.filter(fits(asked)).sort(inOrder(asked));
    const size = 50;
    const last = Math.max(1, Math.ceil(runs.length / size));
    asked.page = Math.min(asked.page, last);
    const first = (asked.page - 1) * size;
    const shown = runs.slice(first, first + size);
    const head = element("tr", {}, element("th", { scope: "col", class: "pick" }, unseen("Select")), element("th", { scope: "col", class: "place" }, "Rank"), ...bench.site.headings.map((names, nth) => heading(asked, Object.entries(names), { class: nth ? "wide" : "run" })), ...asked.columns.map((name) => metricHeading(asked, name)));
    table.tHead.replaceChildren(head);
    for (const body of [...table.tBodies]) body.remove();
    table.append(...bodies(asked, shown));
    table.caption.textContent = `Published runs, sorted by ${asked.isMetric ? bench.title(asked.sort) : asked.sort}`;
    document.getElementById("count").textContent = runs.length ? `${thousands(first + 1)}–${thousands(first + shown.length)} of ${thousands(runs.length)} ${runs.length === 1 ? "run" : "runs"}` : "No run matches. Remove a filter to see more.";
    document.getElementById("answered").hidden = true; // it answers another question
    document.getElementById("chips").replaceChildren(...chips(asked));
    document.getElementById("pages").replaceChildren(...pages(asked, last));
    document.getElementById("downloads").replaceChildren(...downloads(asked, runs));
    fillForm(asked);
    document.dispatchEvent(new Event("runs-shown"));
    table.dataset.shown = "yes";
  };
  if (location.search) {
    show().catch((error) => { document.getElementById("count").textContent = `The table cannot be shown: ${error.message}`; });
  }
})();
