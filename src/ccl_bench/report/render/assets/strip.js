// Draws the strip of a step: all ranks over time, with zoom, tooltips and keyboard control.
(() => {
  "use strict";
  const KINDS = [
    // In the order of painting: later entries cover earlier ones, as in the step breakdown.
    ["m", "copies", "--memory"],
    ["w", "communication, waiting", "--waiting"],
    ["n", "communication, waiting or transfer", "--communication"],
    ["t", "communication, transfer", "--transfer"],
    ["f", "compute and communication in one", "--c6"],
    ["c", "compute", "--compute"],
  ];
  const LETTERS = new Map(KINDS.map(([letter], place) => [letter, place]));
  const GUTTER = 92, AXIS = 22, MOST_HEIGHT = 620, LANE = 15, SHORTEST = 20, LABEL = 12, STEP = 0.1, ZOOM = 1.6;
  const HELP = "Wheel with Ctrl, or + and -: zoom. Drag: zoom into a range. Left, right: move. 0: the whole step. "
    + "Up, down: choose a rank. Enter: its streams. N, P: next and previous piece.";

  // --- Data -------------------------------------------------------------------------------------------

  const parsed = (text) => {
    let start = 0;
    return text.split(" ").filter(Boolean).map((each) => {
      const [delta, length, called, ...rest] = each.split(",");
      start += Number(delta);
      const piece = { start, end: start + Number(length), kind: LETTERS.get(called[0]), name: Number(called.slice(1)) };
      if (rest.length === 1) piece.awaits = rest[0].slice(1);
      if (rest.length === 2) { piece.count = Number(rest[0]); piece.busy = Number(rest[1]); }
      return piece;
    });
  };
  const loaded = (data) => data.ranks.map((rank, place) => {
    const lanes = rank.lanes.map(({ name, pieces }) => ({ name, pieces: parsed(pieces) }));
    const every = lanes.flatMap((lane) => lane.pieces.map((piece) => ({ ...piece, lane: lane.name })));
    every.sort((a, b) => a.start - b.start);
    const byKind = KINDS.map((_, kind) => every.filter((piece) => piece.kind === kind));
    return { ...rank, place, end: rank.start + rank.length, lanes, every, byKind, open: false };
  });

  const time = (ns) => {
    const [scale, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]].find(([each]) => Math.abs(ns) >= each) ?? [1, "ns"];
    return `${Number((ns / scale).toPrecision(ns / scale >= 1000 ? 7 : 5))} ${unit}`;
  };

  const colours = () => {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    const rgb = (name) => {
      const [r, g, b] = [1, 3, 5].map((at) => parseInt(read(name).slice(at, at + 2), 16));
      return (255 << 24) | (b << 16) | (g << 8) | r;
    };
    return { kinds: KINDS.map(([, , name]) => rgb(name)), idle: rgb("--idle"), none: 0, read };
  };

  // --- One strip ---------------------------------------------------------------------------------------

  const make = (place, data) => {
    const ranks = loaded(data);
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    const sheet = document.createElement("canvas");
    const scroller = element("div", "strip-scroll", { tabindex: "0", role: "group", "aria-label": `${place.dataset.title}. ${HELP}` });
    const spacer = element("div", "strip-spacer");
    const remark = element("div", "strip-remark", { role: "status" });
    const view = { start: 0, end: data.length, row: -1, piece: null, order: "given" };
    let palette = colours();
    let queued = false, frames = 0, selecting = null;

    const tall = () => (ranks.length <= 16 ? 24 : ranks.length <= 40 ? 15 : ranks.length <= 100 ? 9 : 6);
    const number = ({ rank }) => (/^\d+$/.test(rank) ? Number(rank) : Infinity); // unknown ranks come last
    const ordered = () => (view.order === "number" ? [...ranks].sort((a, b) => number(a) - number(b)) : ranks);
    let rows = [];
    const layOut = () => {
      let y = 0;
      rows = ordered().flatMap((rank) => {
        const own = [{ rank, y, height: tall() }];
        y += own[0].height;
        for (const lane of rank.open ? rank.lanes : []) {
          own.push({ rank, lane, y, height: LANE });
          y += LANE;
        }
        return own;
      });
      const whole = y + AXIS;
      scroller.style.height = `${Math.min(whole, MOST_HEIGHT)}px`;
      spacer.style.height = `${whole}px`;
    };

    const width = () => scroller.clientWidth;
    const plot = () => Math.max(width() - GUTTER, 50);
    const at = (x) => view.start + ((x - GUTTER) / plot()) * (view.end - view.start);
    const across = (moment) => GUTTER + ((moment - view.start) / (view.end - view.start)) * plot();

    const line = (pixels, row) => {
      const scale = pixels.length / (view.end - view.start);
      const paint = (start, end, colour) => {
        if (end > view.start && start < view.end) {
          pixels.fill(colour, Math.max(Math.round((start - view.start) * scale), 0), Math.max(Math.round((end - view.start) * scale), 0));
        }
      };
      pixels.fill(palette.none);
      paint(row.rank.start, row.rank.end, palette.idle);
      if (row.lane) for (const piece of row.lane.pieces) paint(piece.start, piece.end, palette.kinds[piece.kind]);
      else row.rank.byKind.forEach((pieces, kind) => {
        for (const piece of pieces) {
          if (piece.start >= view.end) break;
          paint(piece.start, piece.end, palette.kinds[kind]);
        }
      });
    };

    const draw = () => {
      queued = false;
      const ratio = devicePixelRatio || 1;
      const [wide, high] = [width(), scroller.clientHeight];
      canvas.width = wide * ratio; canvas.height = high * ratio;
      canvas.style.width = `${wide}px`; canvas.style.height = `${high}px`;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = `11px ${getComputedStyle(place).fontFamily}`;
      const top = scroller.scrollTop;
      const shown = rows.filter((row) => row.y + row.height > top && row.y < top + high);
      const columns = Math.max(Math.round(plot() * ratio), 1);
      const image = new ImageData(columns, Math.max(shown.length, 1));
      const pixels = new Uint32Array(image.data.buffer);
      shown.forEach((row, number) => line(pixels.subarray(number * columns, (number + 1) * columns), row));
      sheet.width = columns; sheet.height = Math.max(shown.length, 1);
      sheet.getContext("2d").putImageData(image, 0, 0);
      context.imageSmoothingEnabled = false;
      shown.forEach((row, number) => {
        const gap = row.height > 8 ? 2 : 0;
        context.drawImage(sheet, 0, number, columns, 1, GUTTER, AXIS + row.y - top, plot(), row.height - gap);
      });
      label(shown, top);
      axis(wide);
      mark(top, high);
      Object.assign(canvas.dataset, { frames: String(++frames), from: String(Math.round(view.start)), to: String(Math.round(view.end)) });
    };

    // If rows are low, nodes are separated, and the name of a node is shown at its first row.
    const label = (shown, top) => {
      let free = -Infinity, node = null;
      context.textBaseline = "middle";
      for (const row of shown) {
        const middle = AXIS + row.y - top + row.height / 2;
        if (row.lane) { names(row, middle); continue; }
        const begins = row.rank.node !== node;
        node = row.rank.node;
        if (begins && tall() < LABEL) {
          context.fillStyle = palette.read("--surface");
          context.fillRect(0, AXIS + row.y - top - 1, width(), 1);
        }
        const text = node !== null && tall() < LABEL && view.order === "given" ? (begins ? `node ${node}` : "") : `rank ${row.rank.rank}`;
        if (!text || middle < free) continue;
        context.fillStyle = palette.read("--quiet");
        context.fillText(`${row.rank.open ? "▾ " : ""}${text}`, 2, middle + (tall() < LABEL ? 3 : 0), GUTTER - 6);
        free = middle + LABEL;
      }
    };
    const names = (row, middle) => {
      context.fillStyle = palette.read("--quiet");
      context.fillText(`   ${row.lane.name}`, 2, middle, GUTTER - 6);
      for (const piece of row.lane.pieces) {
        const [from, to] = [Math.max(across(piece.start), GUTTER), Math.min(across(piece.end), width())];
        if (to - from < 48) continue;
        context.save();
        context.fillStyle = palette.read("--surface");
        context.beginPath(); context.rect(from, middle - LANE / 2, to - from - 2, LANE); context.clip();
        context.fillText(called(piece), from + 3, middle);
        context.restore();
      }
    };
    const called = (piece) => data.names[piece.name];

    const axis = (wide) => {
      context.fillStyle = palette.read("--surface");
      context.fillRect(0, 0, wide, AXIS);
      const span = (view.end - view.start) * data.unit_ns;
      const rough = span / Math.max(plot() / 90, 1), power = 10 ** Math.floor(Math.log10(rough));
      const each = [1, 2, 5, 10].find((digit) => digit * power >= rough) * power;
      context.fillStyle = palette.read("--quiet");
      context.textBaseline = "middle";
      for (let mark = Math.ceil((view.start * data.unit_ns) / each) * each; mark <= view.end * data.unit_ns; mark += each) {
        const x = across(mark / data.unit_ns);
        context.fillRect(x, AXIS - 5, 1, 4);
        context.fillText(time(mark), Math.min(x + 3, wide - 44), AXIS / 2 - 1);
      }
    };

    const mark = (top, high) => {
      context.strokeStyle = palette.read("--link");
      const row = rows[view.row];
      if (row) {
        context.lineWidth = 1;
        context.strokeRect(GUTTER - 1.5, AXIS + row.y - top - 0.5, plot() + 1, row.height);
        if (view.piece) {
          context.lineWidth = 2;
          const from = across(view.piece.start);
          context.strokeRect(from - 1, AXIS + row.y - top - 1, Math.max(across(view.piece.end) - from, 2) + 2, row.height + 1);
        }
      }
      if (selecting && Math.abs(selecting.to - selecting.from) > 3) {
        context.fillStyle = palette.read("--link");
        context.globalAlpha = 0.2;
        context.fillRect(Math.min(selecting.from, selecting.to), AXIS, Math.abs(selecting.to - selecting.from), high);
        context.globalAlpha = 1;
      }
    };

    const redraw = () => { if (!queued) { queued = true; requestAnimationFrame(draw); } };

    // --- Moving about -----------------------------------------------------------------------------------

    const show = (start, end) => {
      const span = Math.min(Math.max(end - start, SHORTEST), data.length);
      view.start = Math.min(Math.max(start, 0), data.length - span);
      view.end = view.start + span;
      redraw();
    };
    const zoom = (factor, around = (view.start + view.end) / 2) =>
      show(around - (around - view.start) / factor, around + (view.end - around) / factor);
    const move = (share) => { const by = (view.end - view.start) * share; show(view.start + by, view.end + by); };

    const rowAt = (y) => rows.findIndex((row) => y >= row.y && y < row.y + row.height);
    const pieceAt = (row, moment) => {
      const near = (view.end - view.start) / plot();
      const pieces = row.lane ? row.lane.pieces : row.rank.every;
      const found = pieces.filter((piece) => piece.start - near <= moment && moment <= piece.end + near);
      const distance = (piece) => Math.max(piece.start - moment, moment - piece.end, 0);
      return found.sort((a, b) => distance(a) - distance(b) || b.kind - a.kind || a.end - a.start - (b.end - b.start))[0] ?? null;
    };
    const idleAt = (row, moment) => {
      if (moment < row.rank.start || moment > row.rank.end) return null;
      const pieces = row.lane ? row.lane.pieces : row.rank.every;
      const before = pieces.filter((piece) => piece.end <= moment).map((piece) => piece.end);
      const after = pieces.find((piece) => piece.start > moment);
      return { start: Math.max(row.rank.start, ...before), end: after ? after.start : row.rank.end, idle: true };
    };

    const words = (row, piece) => {
      const { rank } = row;
      const where = [`rank ${rank.rank}`, rank.node === null ? "" : `node ${rank.node}`, row.lane?.name ?? piece?.lane ?? ""];
      const lines = [where.filter(Boolean).join(" · ")];
      if (!piece) return [...lines, rank.late ? `waits ${rank.late} less than the rank that waits most` : ""].filter(Boolean);
      const ns = data.unit_ns;
      lines.unshift(piece.idle ? "idle" : piece.count ? `${piece.count} pieces, the longest ${called(piece)}` : called(piece));
      lines.push(`${time((piece.end - piece.start) * ns)} from ${time(piece.start * ns)}`);
      if (piece.count) lines.push(`busy ${time(piece.busy * ns)} of it`);
      if (!piece.idle) lines.push(KINDS[piece.kind][1]);
      if (piece.awaits !== undefined) lines.push(`waits for rank ${piece.awaits}, the last to arrive`);
      return lines;
    };
    const say = (row, piece, x, y) => {
      const lines = words(row, piece);
      remark.replaceChildren(...lines.map((text, number) => Object.assign(document.createElement(number ? "div" : "strong"), { textContent: text })));
      remark.hidden = false;
      remark.style.left = `${Math.min(Math.max(x + 14, 0), Math.max(place.clientWidth - remark.offsetWidth - 4, 0))}px`;
      remark.style.top = `${scroller.offsetTop + y + 18}px`;
    };
    const hush = () => { remark.hidden = true; };

    const choose = (number, piece = null) => {
      view.row = Math.min(Math.max(number, 0), rows.length - 1);
      view.piece = piece;
      const row = rows[view.row];
      if (row.y < scroller.scrollTop) scroller.scrollTop = row.y;
      const low = row.y + row.height + AXIS - scroller.clientHeight;
      if (low > scroller.scrollTop) scroller.scrollTop = low;
      if (piece && (piece.end < view.start || piece.start > view.end)) show(piece.start - (view.end - view.start) / 2, piece.start + (view.end - view.start) / 2);
      say(row, piece, piece ? across(piece.start) : GUTTER, AXIS + row.y - scroller.scrollTop + row.height);
      redraw();
    };
    const next = (direction) => {
      const row = rows[Math.max(view.row, 0)];
      const pieces = row.lane ? row.lane.pieces : row.rank.every;
      const first = direction > 0 ? pieces.findIndex((piece) => piece.start >= view.start) : pieces.length - 1;
      const number = view.piece ? pieces.indexOf(view.piece) + direction : first;
      if (pieces[number]) choose(Math.max(view.row, 0), pieces[number]);
    };
    const unfold = (number) => {
      const row = rows[number];
      if (!row) return;
      row.rank.open = !row.rank.open;
      layOut();
      view.row = rows.findIndex((each) => each.rank === row.rank && !each.lane);
      view.piece = null;
      redraw();
    };

    const KEYS = {
      "+": () => zoom(ZOOM), "=": () => zoom(ZOOM), "-": () => zoom(1 / ZOOM), 0: () => show(0, data.length), Home: () => show(0, data.length),
      ArrowLeft: () => move(-STEP), ArrowRight: () => move(STEP), ArrowUp: () => choose(view.row - 1), ArrowDown: () => choose(view.row + 1),
      Enter: () => unfold(Math.max(view.row, 0)), " ": () => unfold(Math.max(view.row, 0)), n: () => next(1), p: () => next(-1), Escape: hush,
    };
    scroller.addEventListener("keydown", (event) => {
      const act = event.ctrlKey || event.metaKey || event.altKey ? null : KEYS[event.key] ?? KEYS[event.key.toLowerCase()];
      if (act) { event.preventDefault(); act(); }
    });
    scroller.addEventListener("wheel", (event) => {
      const x = event.clientX - scroller.getBoundingClientRect().left;
      if (event.ctrlKey || event.metaKey) { event.preventDefault(); zoom(Math.exp(-event.deltaY / 300), at(x)); }
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) { event.preventDefault(); move((event.deltaX || event.deltaY) / 800); }
    }, { passive: false });
    scroller.addEventListener("scroll", redraw);

    // A mouse marks a range, one finger moves, two fingers zoom.
    const fingers = new Map();
    const inside = (event) => { const box = scroller.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    scroller.addEventListener("pointerdown", (event) => {
      const [x] = inside(event);
      fingers.set(event.pointerId, x);
      if (event.pointerType === "mouse" && event.button === 0 && x >= GUTTER) { selecting = { from: x, to: x }; scroller.setPointerCapture(event.pointerId); }
    });
    scroller.addEventListener("pointermove", (event) => {
      const [x, y] = inside(event);
      if (selecting) { selecting.to = Math.max(x, GUTTER); redraw(); return; }
      if (fingers.has(event.pointerId) && event.pointerType !== "mouse") {
        const before = [...fingers.values()];
        fingers.set(event.pointerId, x);
        const now = [...fingers.values()];
        const apart = (pair) => Math.max(Math.abs(pair[0] - pair[1]), 8);
        if (now.length === 2) zoom(apart(now) / apart(before), at((now[0] + now[1]) / 2));
        else move((before[0] - now[0]) / plot());
        return;
      }
      const row = rows[y < AXIS ? -1 : rowAt(y - AXIS + scroller.scrollTop)];
      if (!row) { hush(); return; }
      const moment = at(x);
      say(row, x < GUTTER ? null : pieceAt(row, moment) ?? idleAt(row, moment), x, y);
    });
    const released = (event) => {
      const [x, y] = inside(event);
      fingers.delete(event.pointerId);
      const marked = selecting;
      selecting = null;
      if (marked && Math.abs(marked.to - marked.from) > 3) show(at(Math.min(marked.from, marked.to)), at(Math.max(marked.from, marked.to)));
      else if (event.type === "pointerup" && y >= AXIS && x < GUTTER) unfold(rowAt(y - AXIS + scroller.scrollTop));
      redraw();
    };
    scroller.addEventListener("pointerup", released);
    scroller.addEventListener("pointercancel", released);
    scroller.addEventListener("pointerleave", hush);
    scroller.addEventListener("dblclick", (event) => { const [x] = inside(event); if (x >= GUTTER) zoom(ZOOM * ZOOM, at(x)); });
    scroller.addEventListener("blur", hush);

    // --- Putting it on the page --------------------------------------------------------------------------

    const bar = element("div", "strip-bar");
    const button = (text, title, act) => {
      const made = element("button", "", { type: "button", title });
      made.textContent = text;
      made.addEventListener("click", () => { act(made); redraw(); });
      bar.append(made);
    };
    button("Zoom in", "+", () => zoom(ZOOM));
    button("Zoom out", "-", () => zoom(1 / ZOOM));
    button("Whole step", "0", () => show(0, data.length));
    button("Streams of all ranks", "Enter opens the streams of one rank", () => {
      const open = !ranks.every((rank) => rank.open);
      for (const rank of ranks) rank.open = open;
      layOut();
    });
    if (data.by_lateness) button("Order: late first", "late ranks and their nodes first, or by number", (made) => {
      view.order = view.order === "given" ? "number" : "given";
      made.textContent = `Order: ${view.order === "given" ? "late first" : "by number"}`;
      view.row = -1;
      layOut();
    });
    const used = new Set(ranks.flatMap((rank) => rank.every.map((piece) => piece.kind)));
    const legend = element("ul", "strip-legend");
    for (const [title, colour] of [...KINDS.map(([, name, own]) => [name, own]).filter((_, kind) => used.has(kind)).reverse(), ["idle", "--idle"]]) {
      const entry = element("li", "");
      const sample = element("span", "");
      sample.style.background = `var(${colour})`;
      entry.append(sample, title);
      legend.append(entry);
    }
    const help = element("p", "note");
    help.textContent = HELP;
    spacer.append(canvas);
    scroller.append(spacer);
    place.replaceChildren(bar, legend, scroller, remark, help);
    hush();
    layOut();
    draw();
    new ResizeObserver(redraw).observe(scroller);
    const recolour = () => { palette = colours(); redraw(); };
    new MutationObserver(recolour).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
    place.dataset.drawn = "yes";
  };

  const element = (tag, className, attributes = {}) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };

  addEventListener("DOMContentLoaded", () => {
    const place = document.querySelector("[data-strip]"), holder = document.getElementById("strip-data");
    // The page is shown first.
    if (place && holder) (window.requestIdleCallback ?? setTimeout)(() => make(place, JSON.parse(holder.textContent)));
  });
})();
