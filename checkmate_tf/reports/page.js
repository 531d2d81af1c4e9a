"use strict";
// Draws the plan that lies in the page as JSON and answers pointer, keys and search. All text goes in as text, never as
// markup: names of layers are whatever their authors chose.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { nodes, values, kinds } = data;
  const numNodes = nodes.name.length;
  const find = (id) => document.getElementById(id);

  // ---- Texts -------------------------------------------------------------------------------------------------------

  function formatBytes(bytes) {
    let size = bytes;
    for (const unit of ["B", "KiB", "MiB", "GiB"]) {
      if (Math.abs(size) < 1024) return unit === "B" ? `${bytes} B` : `${size.toFixed(2)} ${unit}`;
      size /= 1024;
    }
    return `${size.toFixed(2)} TiB`;
  }

  function formatCost(cost) {
    if (!cost) return "0";
    if (data.unit !== "ns") return `${cost.toLocaleString("en")} ${data.unit}`;
    if (cost >= 1e9) return `${+(cost / 1e9).toPrecision(3)} s`;
    if (cost >= 1e6) return `${+(cost / 1e6).toPrecision(3)} ms`;
    return cost >= 1e3 ? `${+(cost / 1e3).toPrecision(3)} µs` : `${cost} ns`;
  }

  const collator = new Intl.Collator("en", { numeric: true });
  const formatShare = (share) => (share > 0 && share < 0.001 ? "under 0.1%" : `${(100 * share).toFixed(1)}%`);
  const layerOf = (node) => data.layers[nodes.layer[node]];
  const opOf = (node) => data.operations[nodes.op[node]];
  const sourceOf = (node) => data.sources[nodes.source[node]];

  function make(tag, text, attributes = {}) {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  // ---- The two steps -----------------------------------------------------------------------------------------------

  function prepare(name) {
    const columns = data[name];
    const count = columns.order.length;
    const again = new Uint8Array(count);
    const served = new Int32Array(count).fill(-1);
    columns.again.forEach((position, index) => {
      again[position] = 1;
      served[position] = columns.served[index];
    });
    // Bytes of each kind, and of workspace, above what is resident: changes first, then their sums.
    const bands = [...kinds, "workspace"].map(() => new Float64Array(count + 1));
    columns.value.forEach((value, copy) => {
      const band = bands[columns.kind[copy]];
      band[columns.start[copy]] += values.size[value];
      band[columns.start[copy] + columns.length[copy] + 1] -= values.size[value];
    });
    const memory = new Float64Array(count).fill(data.resident_bytes);
    for (let kind = 0; kind < kinds.length; kind++) {
      for (let position = 1; position < count; position++) bands[kind][position] += bands[kind][position - 1];
    }
    for (let position = 0; position < count; position++) bands[kinds.length][position] = nodes.workspace[columns.order[position]];
    for (const band of bands) for (let position = 0; position < count; position++) memory[position] += band[position];
    return { ...columns, name, count, again, served, bands, memory, total: columns.begin[count] };
  }

  const timelines = { stock: prepare("stock"), rematerialized: prepare("rematerialized") };
  const longest = Math.max(timelines.stock.total, timelines.rematerialized.total, 1);
  const highest = Math.max(timelines.stock.peak_bytes, timelines.rematerialized.peak_bytes, data.budget || 0, 1);

  const state = { shown: "rematerialized", position: timelines.rematerialized.peak_position, from: 0, to: longest, text: "", layer: "" };
  const shown = () => timelines[state.shown];

  /** The position whose node runs at a cost. */
  function positionAt(timeline, cost) {
    let low = 0, high = timeline.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (timeline.begin[middle] <= cost) low = middle; else high = middle - 1;
    }
    return low;
  }

  // ---- Search ------------------------------------------------------------------------------------------------------

  let matching = new Uint8Array(numNodes).fill(1);

  const inLayer = (node) => !state.layer || layerOf(node) === state.layer || layerOf(node).startsWith(`${state.layer}/`);

  function match() {
    const words = state.text.toLowerCase().split(/\s+/).filter(Boolean);
    for (let node = 0; node < numNodes; node++) {
      const text = `${layerOf(node)} ${opOf(node)} ${nodes.name[node]} ${sourceOf(node)}`.toLowerCase();
      matching[node] = inLayer(node) && words.every((word) => text.includes(word)) ? 1 : 0;
    }
  }

  const isFiltered = () => Boolean(state.text.trim() || state.layer);

  /** Bytes that values and workspace of matching nodes take at each position. */
  function sumMatching(timeline) {
    const held = new Float64Array(timeline.count + 1);
    timeline.value.forEach((value, copy) => {
      if (!matching[values.node[value]]) return;
      held[timeline.start[copy]] += values.size[value];
      held[timeline.start[copy] + timeline.length[copy] + 1] -= values.size[value];
    });
    for (let position = 1; position < timeline.count; position++) held[position] += held[position - 1];
    for (let position = 0; position < timeline.count; position++) if (matching[timeline.order[position]]) held[position] += nodes.workspace[timeline.order[position]];
    return held;
  }

  // ---- Canvases ----------------------------------------------------------------------------------------------------

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const bandColors = ["activations", "again", "fetched", "gradients", "workspace"];
  const residentColor = (index) => `resident-${Math.min(index, 4)}`;

  function open(chart, which) {
    const canvas = chart.querySelector(`canvas.${which}`);
    const ratio = window.devicePixelRatio || 1;
    const width = chart.clientWidth, height = chart.clientHeight;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "11.5px system-ui, sans-serif";
    return { context, width, height };
  }

  /** Round numbers from 0 to `most`, at most `count` of them. */
  function listTicks(most, count, base) {
    const rough = most / count;
    const power = base ** Math.floor(Math.log(rough) / Math.log(base));
    const distance = (base === 2 ? [1, 2] : [1, 2, 5, 10]).map((factor) => factor * power).find((one) => one >= rough);
    const ticks = [];
    for (let tick = 0; tick <= most * 1.0001; tick += distance) ticks.push(tick);
    return ticks;
  }

  function formatTick(bytes) {
    for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 1024]]) {
      if (highest >= size) return `${+(bytes / size).toFixed(2)} ${unit}`;
    }
    return `${bytes} B`;
  }

  // ---- Memory ------------------------------------------------------------------------------------------------------

  const memoryChart = find("memory");
  const room = { left: 66, right: 12, top: 22, bottom: 38 };
  const headroom = 1.14;

  function place() {
    const width = memoryChart.clientWidth - room.left - room.right;
    const height = memoryChart.clientHeight - room.top - room.bottom;
    return {
      width, height,
      x: (cost) => room.left + ((cost - state.from) / (state.to - state.from)) * width,
      y: (bytes) => room.top + height * (1 - bytes / (highest * headroom)),
      cost: (x) => state.from + ((x - room.left) / width) * (state.to - state.from),
    };
  }

  /** For each column of pixels the position with the most memory that runs in it, and whether one computes again. */
  function listColumns(timeline, at) {
    const columns = [];
    for (let pixel = 0; pixel < at.width; pixel++) {
      const from = at.cost(room.left + pixel), to = at.cost(room.left + pixel + 1);
      if (from >= timeline.total && pixel > 0) break;
      const first = positionAt(timeline, from), last = positionAt(timeline, Math.min(to, timeline.total - 1e-9));
      let top = first, again = false;
      for (let position = first; position <= last; position++) {
        if (timeline.memory[position] > timeline.memory[top]) top = position;
        again = again || timeline.again[position] === 1;
      }
      columns.push({ top, again });
    }
    return columns;
  }

  function drawMemory() {
    const { context, width, height } = open(memoryChart, "base");
    const at = place(), timeline = shown(), columns = listColumns(timeline, at);
    const bottom = at.y(0);
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const tick of listTicks(highest * 1.03, Math.max(2, Math.min(8, at.height / 32)), 2)) {
      context.strokeStyle = color("line");
      context.beginPath(); context.moveTo(room.left, at.y(tick) + 0.5); context.lineTo(width - room.right, at.y(tick) + 0.5); context.stroke();
      context.fillStyle = color("muted");
      context.fillText(formatTick(tick), room.left - 7, at.y(tick));
    }
    // Areas, from what is resident up; pale where a filter asks for a part of them.
    let floor = columns.map(() => 0);
    context.globalAlpha = isFiltered() ? 0.3 : 1;
    const fill = (name, heights) => {
      const ceiling = floor.map((bytes, pixel) => bytes + heights(columns[pixel].top));
      context.fillStyle = color(name);
      context.beginPath();
      context.moveTo(room.left, at.y(floor[0] || 0));
      ceiling.forEach((bytes, pixel) => { context.lineTo(room.left + pixel, at.y(bytes)); context.lineTo(room.left + pixel + 1, at.y(bytes)); });
      for (let pixel = floor.length - 1; pixel >= 0; pixel--) { context.lineTo(room.left + pixel + 1, at.y(floor[pixel])); context.lineTo(room.left + pixel, at.y(floor[pixel])); }
      context.fill();
      floor = ceiling;
    };
    data.resident.forEach(([, bytes], index) => fill(residentColor(index), () => bytes));
    timeline.bands.forEach((band, index) => fill(bandColors[index], (position) => band[position]));
    context.globalAlpha = 1;
    if (isFiltered()) {
      const held = sumMatching(timeline);
      floor = columns.map(() => 0);
      fill("accent", (position) => held[position]);
    }
    // The other step as a line.
    const other = timelines[state.shown === "stock" ? "rematerialized" : "stock"];
    context.strokeStyle = color("stock");
    context.lineWidth = 1.3;
    context.beginPath();
    listColumns(other, at).forEach(({ top }, pixel) => {
      context.lineTo(room.left + pixel, at.y(other.memory[top])); context.lineTo(room.left + pixel + 1, at.y(other.memory[top]));
    });
    context.stroke();
    context.lineWidth = 1;
    // The budget and the peak.
    context.textAlign = "left";
    if (data.budget) {
      context.strokeStyle = context.fillStyle = color("budget");
      context.setLineDash([6, 4]);
      context.beginPath(); context.moveTo(room.left, at.y(data.budget)); context.lineTo(width - room.right, at.y(data.budget)); context.stroke();
      context.setLineDash([]);
    }
    const peakX = at.x((timeline.begin[timeline.peak_position] + timeline.begin[timeline.peak_position + 1]) / 2);
    if (peakX >= room.left && peakX <= width - room.right) {
      const peakY = at.y(timeline.peak_bytes);
      const layer = layerOf(timeline.order[timeline.peak_position]);
      const text = `peak ${formatBytes(timeline.peak_bytes)} · ${layer.length > 44 ? `…${layer.slice(-43)}` : layer}`;
      context.fillStyle = color("text");
      context.beginPath(); context.moveTo(peakX, peakY - 2); context.lineTo(peakX - 4.5, peakY - 9); context.lineTo(peakX + 4.5, peakY - 9); context.fill();
      const wide = context.measureText(text).width;
      const left = peakX + 8 + wide > width - room.right ? Math.max(room.left, peakX - 8 - wide) : peakX + 8;
      // The text stands out from whatever line runs behind it.
      context.strokeStyle = color("panel");
      context.lineWidth = 4;
      context.lineJoin = "round";
      context.strokeText(text, left, peakY - 12);
      context.fillText(text, left, peakY - 12);
      context.lineWidth = 1;
    }
    // Recomputations, forward and backward.
    const lanes = bottom + 5;
    context.fillStyle = color("mark");
    columns.forEach(({ again }, pixel) => { if (again) context.fillRect(room.left + pixel, lanes, 1, 6); });
    const split = at.x(timeline.begin[timeline.backward_position]);
    context.fillStyle = color("muted");
    context.textBaseline = "top";
    if (timeline.backward_position < timeline.count && split > room.left && split < width - room.right) {
      context.strokeStyle = color("muted");
      context.setLineDash([2, 3]);
      context.beginPath(); context.moveTo(split, room.top); context.lineTo(split, bottom); context.stroke();
      context.setLineDash([]);
      context.textAlign = "right"; context.fillText("← forward", split - 6, 2);
      context.textAlign = "left"; context.fillText("backward →", split + 6, 2);
    }
    // Time.
    const span = state.to - state.from;
    const [, between] = listTicks(span, Math.max(3, Math.min(8, at.width / 110)), 10);
    for (let cost = Math.ceil(state.from / between) * between; cost <= state.to; cost += between) {
      const x = at.x(cost);
      context.textAlign = x < room.left + 20 ? "left" : x > width - room.right - 20 ? "right" : "center";
      context.fillText(formatCost(cost), x, bottom + 16);
    }
    context.strokeStyle = color("muted");
    context.beginPath(); context.moveTo(room.left, bottom + 0.5); context.lineTo(width - room.right, bottom + 0.5); context.stroke();
    markMemory();
  }

  let dragging = null;

  function markMemory(hovered) {
    const { context, height } = open(memoryChart, "over");
    const at = place(), timeline = shown();
    const draw = (position, name, dashed) => {
      const x = at.x(timeline.begin[position]), right = at.x(timeline.begin[position + 1]);
      if (right < room.left || x > memoryChart.clientWidth - room.right) return;
      const left = Math.max(x, room.left), wide = Math.max(1, Math.min(right, memoryChart.clientWidth - room.right) - left);
      context.fillStyle = context.strokeStyle = color(name);
      context.globalAlpha = 0.22; context.fillRect(left, room.top, wide, at.height);
      context.globalAlpha = 1;
      context.setLineDash(dashed ? [3, 3] : []);
      context.beginPath(); context.moveTo(left + wide / 2, room.top); context.lineTo(left + wide / 2, height - room.bottom); context.stroke();
    };
    draw(state.position, "text", false);
    if (hovered !== undefined && hovered !== state.position) draw(hovered, "text", true);
    if (dragging && Math.abs(dragging.to - dragging.from) > 4) {
      context.fillStyle = color("accent"); context.globalAlpha = 0.2;
      context.fillRect(Math.min(dragging.from, dragging.to), room.top, Math.abs(dragging.to - dragging.from), at.height);
      context.globalAlpha = 1;
    }
  }

  /** What is said of a position, as paragraphs. */
  function describe(timeline, position) {
    const node = timeline.order[position];
    const lines = [];
    const first = make("div");
    first.append(make("b", layerOf(node)), ` · ${opOf(node)}`, make("span", nodes.backward[node] ? " · backward" : " · forward", { class: "muted" }));
    lines.push(first);
    if (timeline.again[position]) {
      const again = make("div");
      again.append(make("span", "Computed again", { class: "again-word" }));
      const served = timeline.served[position];
      again.append(served < 0 ? ", and nothing reads it." : ` for ${layerOf(timeline.order[served])} (${opOf(timeline.order[served])}, position ${served + 1}).`);
      lines.push(again);
    }
    lines.push(make("div", `${formatBytes(timeline.memory[position])} in memory; position ${position + 1} of ${timeline.count}, at ${formatCost(timeline.begin[position])}, takes ${formatCost(timeline.begin[position + 1] - timeline.begin[position])}.`));
    lines.push(make("div", [sourceOf(node), nodes.name[node]].filter(Boolean).join(" · "), { class: "muted" }));
    return lines;
  }

  function showTip(chart, lines, x, y) {
    const tip = chart.querySelector(".tip");
    tip.hidden = lines === null;
    if (lines === null) return;
    tip.replaceChildren(...lines);
    const right = x + 14 + tip.offsetWidth > chart.clientWidth;
    tip.style.left = `${Math.max(0, right ? x - 14 - tip.offsetWidth : x + 14)}px`;
    // On a narrow screen it would hide the chart.
    const isNarrow = chart.clientWidth < 480;
    tip.style.top = `${isNarrow ? chart.clientHeight - 8 : Math.max(0, Math.min(y, chart.clientHeight - tip.offsetHeight - 4))}px`;
  }

  const pointIn = (chart, event) => {
    const box = chart.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top };
  };

  function zoom(from, to) {
    const least = longest / 1e6;
    state.from = Math.max(0, from);
    state.to = Math.min(longest, Math.max(to, state.from + least));
    find("zoom-out").disabled = state.from === 0 && state.to === longest;
    drawMemory();
  }

  memoryChart.addEventListener("pointermove", (event) => {
    const { x, y } = pointIn(memoryChart, event);
    if (dragging) dragging.to = Math.max(room.left, Math.min(x, memoryChart.clientWidth - room.right));
    const cost = place().cost(x);
    if (x < room.left || cost > shown().total) { showTip(memoryChart, null); markMemory(); return; }
    const position = positionAt(shown(), cost);
    markMemory(position);
    showTip(memoryChart, describe(shown(), position), x, y);
  });
  memoryChart.addEventListener("pointerleave", () => { showTip(memoryChart, null); dragging = null; markMemory(); });
  memoryChart.addEventListener("pointerdown", (event) => {
    if (event.button === 0 && event.pointerType === "mouse") { const { x } = pointIn(memoryChart, event); dragging = { from: x, to: x }; }
  });
  memoryChart.addEventListener("pointerup", (event) => {
    const drag = dragging;
    dragging = null;
    const at = place();
    if (drag && Math.abs(drag.to - drag.from) > 4) {
      zoom(at.cost(Math.min(drag.from, drag.to)), at.cost(Math.max(drag.from, drag.to)));
      return;
    }
    const { x } = pointIn(memoryChart, event);
    if (x >= room.left) choose(positionAt(shown(), Math.min(at.cost(x), shown().total)));
  });
  memoryChart.addEventListener("dblclick", () => zoom(0, longest));
  memoryChart.addEventListener("keydown", (event) => {
    const timeline = shown();
    const visible = positionAt(timeline, state.to) - positionAt(timeline, state.from);
    const stride = event.shiftKey ? Math.max(1, Math.round(visible / 50)) : 1;
    const middle = timeline.begin[state.position], half = (state.to - state.from) / 2;
    const actions = {
      ArrowLeft: () => choose(state.position - stride), ArrowRight: () => choose(state.position + stride),
      Home: () => choose(0), End: () => choose(timeline.count - 1),
      p: () => choose(timeline.peak_position), P: () => choose(timeline.peak_position),
      "+": () => zoom(middle - half / 2, middle + half / 2), "=": () => zoom(middle - half / 2, middle + half / 2),
      "-": () => zoom(middle - 2 * half, middle + 2 * half), 0: () => zoom(0, longest),
    };
    if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    actions[event.key]();
  });

  function makeLegend() {
    const legend = find("legend");
    const entry = (name, text, kind) => {
      const item = make("li"), box = make("i", "", { class: kind || "" });
      box.style[kind ? "borderColor" : "background"] = `var(--${name})`;
      item.append(box, text);
      return item;
    };
    const other = state.shown === "stock" ? "rematerialized step" : "stock step";
    legend.replaceChildren(
      ...[...kinds, "workspace"].map((kind, index) => entry(bandColors[index], kind)).filter((_, index) => shown().bands[index].some((bytes) => bytes > 0)).reverse(),
      // What is too thin to be seen is in the table alone.
      ...data.resident.map(([name, bytes], index) => (bytes * 500 < highest ? null : entry(residentColor(index), `${name} ${formatBytes(bytes)}`))).filter(Boolean),
      entry("stock", other, "line"),
      ...(data.budget ? [entry("budget", `budget ${formatBytes(data.budget)}`, "line dashed")] : []),
      ...(shown().again.some(Boolean) ? [entry("mark", "computed again, below the axis")] : []),
      ...(isFiltered() ? [entry("accent", "held by what matches")] : []),
    );
  }

  // ---- The schedule ------------------------------------------------------------------------------------------------

  const scheduleChart = find("schedule");
  const marks = (() => {
    const timeline = timelines.rematerialized, rank = new Int32Array(numNodes).fill(-1);
    let count = 0;
    const found = [];
    for (let position = 0; position < timeline.count; position++) {
      const node = timeline.order[position], stage = count;
      if (rank[node] < 0) rank[node] = count++;
      else found.push({ position, node, across: rank[node], down: stage });
    }
    const backward = timeline.order.filter((node, position) => !timeline.again[position]).findIndex((node) => nodes.backward[node]);
    return { found, rank, backward };
  })();

  function placeSchedule() {
    const left = 32 + 7 * String(numNodes).length, top = 22, size = Math.min(scheduleChart.clientWidth - left - 10, scheduleChart.clientHeight - top - 14);
    return { left, top, size, x: (index) => left + (index / numNodes) * size, y: (index) => top + (index / numNodes) * size };
  }

  const markSize = (at) => Math.max(numNodes > 2000 ? 2 : numNodes > 500 ? 3 : 4.5, Math.min(10, at.size / numNodes));

  function drawSchedule() {
    const { context } = open(scheduleChart, "base");
    const at = placeSchedule(), end = at.left + at.size, bottom = at.top + at.size;
    context.strokeStyle = color("line");
    context.strokeRect(at.left + 0.5, at.top + 0.5, at.size, at.size);
    context.fillStyle = color("muted");
    if (marks.backward > 0) {
      const split = at.x(marks.backward), down = at.y(marks.backward);
      context.fillStyle = color("soft");
      context.fillRect(at.left + 1, down, split - at.left - 1, bottom - down);
      context.fillStyle = color("muted");
      context.textBaseline = "alphabetic"; context.textAlign = "center";
      context.fillText("forward", (at.left + split) / 2, at.top - 7);
      context.fillText("backward", (split + end) / 2, at.top - 7);
      context.save(); context.translate(12, (at.top + down) / 2); context.rotate(-Math.PI / 2); context.fillText("forward", 0, 0); context.restore();
      context.save(); context.translate(12, (down + bottom) / 2); context.rotate(-Math.PI / 2); context.fillText("backward", 0, 0); context.restore();
    }
    context.textAlign = "right"; context.textBaseline = "middle";
    for (const tick of listTicks(numNodes, 5, 10)) if (tick < numNodes) context.fillText(tick, at.left - 5, at.y(tick) + (tick ? 0 : 5));
    context.strokeStyle = color("muted");
    context.lineWidth = Math.max(1, Math.min(4, at.size / numNodes));
    context.beginPath(); context.moveTo(at.left, at.top); context.lineTo(end, bottom); context.stroke();
    context.lineWidth = 1;
    const size = markSize(at);
    const draw = (name, wanted, alpha) => {
      context.fillStyle = color(name); context.globalAlpha = alpha;
      for (const mark of marks.found) if (matching[mark.node] === wanted) context.fillRect(at.x(mark.across), at.y(mark.down), size, size);
      context.globalAlpha = 1;
    };
    draw("mark", 0, 0.25);
    draw(isFiltered() ? "accent" : "mark", 1, 1);
    if (!marks.found.length) {
      context.fillStyle = color("muted"); context.textAlign = "center";
      context.fillText("Nothing is computed again.", at.left + at.size * 0.3, at.top + at.size * 0.75);
    }
    markSchedule();
  }

  function markSchedule(hovered) {
    const { context } = open(scheduleChart, "over");
    const at = placeSchedule();
    const ring = (mark) => {
      const size = markSize(at) / 2;
      context.strokeStyle = color("text"); context.lineWidth = 1.5;
      context.beginPath(); context.arc(at.x(mark.across) + size, at.y(mark.down) + size, size + 4, 0, 2 * Math.PI); context.stroke();
    };
    if (hovered) ring(hovered);
    const chosen = state.shown === "rematerialized" && marks.found.find((mark) => mark.position === state.position);
    if (chosen) ring(chosen);
  }

  function nearestMark(x, y) {
    const at = placeSchedule();
    let best = null, least = 14 ** 2;
    for (const mark of marks.found) {
      const distance = (at.x(mark.across) - x) ** 2 + (at.y(mark.down) - y) ** 2;
      if (distance < least) { best = mark; least = distance; }
    }
    return best;
  }

  scheduleChart.addEventListener("pointermove", (event) => {
    const { x, y } = pointIn(scheduleChart, event), mark = nearestMark(x, y);
    markSchedule(mark);
    showTip(scheduleChart, mark && describe(timelines.rematerialized, mark.position), x, y);
  });
  scheduleChart.addEventListener("pointerleave", () => { markSchedule(); showTip(scheduleChart, null); });
  function chooseRematerialized(position) {
    if (state.shown !== "rematerialized") show("rematerialized");
    choose(position);
  }
  scheduleChart.addEventListener("click", (event) => {
    const { x, y } = pointIn(scheduleChart, event), mark = nearestMark(x, y);
    if (mark) chooseRematerialized(mark.position);
  });
  scheduleChart.addEventListener("keydown", (event) => {
    const direction = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!direction) return;
    event.preventDefault();
    const positions = marks.found.map((mark) => mark.position);
    const next = direction > 0 ? positions.find((position) => position > state.position) : positions.findLast((position) => position < state.position);
    if (next !== undefined) chooseRematerialized(next);
  });

  // ---- Tables ------------------------------------------------------------------------------------------------------

  const MOST_ROWS = 100;

  /** A table that is sorted by the column whose heading is pressed; only its first rows are in the page. */
  function makeTable(place, columns, sorted) {
    const table = { rows: [], sorted, descending: true, all: false };
    table.draw = (rows) => {
      if (rows) { table.rows = rows; table.all = false; }
      const key = columns[table.sorted].key;
      const direction = table.descending ? -1 : 1;
      const list = [...table.rows].sort((one, other) => {
        const a = key(one), b = key(other);
        return (typeof a === "number" ? a - b : collator.compare(a, b)) * direction;
      });
      const most = Math.max(...list.map((row) => key(row)).filter((value) => typeof value === "number"), 1);
      const head = make("tr");
      columns.forEach((column, index) => {
        const cell = make("th", undefined, { scope: "col", class: `${column.number ? "number" : ""} ${column.wide ? "wide" : ""}` });
        const button = make("button", column.name + (index === table.sorted ? (table.descending ? " ↓" : " ↑") : ""), { type: "button" });
        if (index === table.sorted) cell.setAttribute("aria-sort", table.descending ? "descending" : "ascending");
        button.addEventListener("click", () => {
          table.descending = index === table.sorted ? !table.descending : Boolean(column.number);
          table.sorted = index;
          table.draw();
          place.querySelectorAll("th button")[index].focus();
        });
        cell.append(button);
        head.append(cell);
      });
      const body = make("tbody");
      for (const row of list.slice(0, table.all ? list.length : MOST_ROWS)) {
        const line = make("tr");
        columns.forEach((column, index) => {
          const cell = make("td", undefined, { class: `${column.number ? "number" : "name"} ${column.wide ? "wide" : ""}` });
          if (column.number && index === table.sorted) {
            cell.classList.add("bar");
            cell.style.setProperty("--share", `${(100 * column.key(row)) / most}%`);
          }
          const content = column.show(row);
          cell.append(...(Array.isArray(content) ? content : [content]));
          line.append(cell);
        });
        body.append(line);
      }
      const element = make("table"), header = make("thead");
      header.append(head);
      element.append(header, body);
      place.replaceChildren(element);
      if (!list.length) place.append(make("div", isFiltered() ? "None matches the filter." : "None.", { class: "more" }));
      if (list.length > MOST_ROWS && !table.all) {
        const more = make("div", `${MOST_ROWS} of ${list.length.toLocaleString("en")} rows. `, { class: "more" });
        const button = make("button", "Show all", { type: "button" });
        button.addEventListener("click", () => { table.all = true; table.draw(); });
        more.append(button);
        place.append(more);
      }
    };
    return table;
  }

  function layerLink(layer) {
    const button = make("button", layer, { type: "button", class: "link", title: "Show only this layer" });
    button.addEventListener("click", () => filterLayer(state.layer === layer ? "" : layer));
    return button;
  }

  const nameCell = (node) => [layerLink(layerOf(node)), make("small", [opOf(node), sourceOf(node)].filter(Boolean).join(" · "), { title: nodes.name[node] })];

  /** The first cell of a row of what is in memory, with the color that its kind has in the chart. */
  function liveCell(row) {
    const box = make("i", undefined, { title: row.kind });
    box.style.background = `var(--${row.color})`;
    return row.node < 0 ? [box, `${row.kind[0].toUpperCase()}${row.kind.slice(1)}`] : [box, ...nameCell(row.node)];
  }

  const liveTable = makeTable(find("live"), [
    { name: "layer and operation", key: (row) => (row.node < 0 ? row.kind : layerOf(row.node)), show: liveCell },
    { name: "what", key: (row) => row.kind, show: (row) => row.kind, wide: true },
    { name: "shape", key: (row) => row.type, show: (row) => row.type || "—", wide: true },
    { name: "since position", number: true, key: (row) => row.since, show: (row) => (row.since < 0 ? "always" : row.since + 1), wide: true },
    { name: "size", number: true, key: (row) => row.size, show: (row) => formatBytes(row.size) },
  ], 4);

  const singular = ["activation", "computed again", "copied back", "gradient"];

  function listLive(timeline, position) {
    const rows = [];
    if (!isFiltered()) data.resident.forEach(([kind, size], index) => rows.push({ node: -1, kind, color: residentColor(index), type: "", since: -1, size }));
    const running = timeline.order[position];
    if (nodes.workspace[running] && matching[running]) rows.push({ node: running, kind: "workspace", color: "workspace", type: "", since: position, size: nodes.workspace[running] });
    for (let copy = 0; copy < timeline.value.length; copy++) {
      const start = timeline.start[copy], value = timeline.value[copy], node = values.node[value];
      if (start > position || start + timeline.length[copy] < position || !values.size[value] || !matching[node]) continue;
      const kind = timeline.kind[copy];
      rows.push({ node, kind: singular[kind], color: bandColors[kind], type: data.types[values.type[value]], since: start, size: values.size[value] });
    }
    return rows;
  }

  function drawPosition() {
    const timeline = shown();
    const lines = describe(timeline, state.position);
    const rows = listLive(timeline, state.position);
    const sum = rows.reduce((total, row) => total + row.size, 0);
    lines.push(make("div", isFiltered()
      ? `${rows.length.toLocaleString("en")} values match the filter: ${formatBytes(sum)}, ${formatShare(sum / timeline.memory[state.position])} of what is in memory.`
      : `${state.position === timeline.peak_position ? "This is the peak. " : ""}${rows.length.toLocaleString("en")} entries, which add up to ${formatBytes(sum)}.`));
    find("position").replaceChildren(...lines);
    find("position-title").textContent = `In memory at position ${state.position + 1}${state.shown === "stock" ? " of the stock step" : ""}`;
    find("previous").disabled = state.position === 0;
    find("next").disabled = state.position === timeline.count - 1;
    liveTable.draw(rows);
  }

  const listNames = (names) => (names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

  const againTable = makeTable(find("again"), [
    { name: "layer and operation", key: (row) => layerOf(row.node), show: (row) => nameCell(row.node) },
    {
      name: "for", wide: true, key: (row) => row.for.length,
      show: (row) => [listNames(row.for.map((layer) => data.layers[layer])), make("small", `read by ${listNames([...new Set(row.readers.map(opOf))]) || "nothing"}`)],
    },
    { name: "times", number: true, key: (row) => row.times, show: (row) => row.times },
    { name: "frees", number: true, key: (row) => row.freed, show: (row) => formatBytes(row.freed) },
    { name: data.unit === "ns" ? "time" : "cost", number: true, key: (row) => row.cost, show: (row) => formatCost(row.cost) },
  ], 4);

  const layerRows = (() => {
    const rows = data.layers.map((layer, number) => ({ layer, number, stock: 0, rematerialized: 0, cost: 0, again: 0, nodes: 0 }));
    for (let node = 0; node < numNodes; node++) { const row = rows[nodes.layer[node]]; row.cost += nodes.cost[node]; row.nodes += 1; }
    for (const row of data.recomputed) rows[nodes.layer[row.node]].again += row.cost;
    for (const name of ["stock", "rematerialized"]) {
      const timeline = timelines[name], peak = timeline.peak_position;
      timeline.value.forEach((value, copy) => {
        const start = timeline.start[copy];
        if (start <= peak && start + timeline.length[copy] >= peak) rows[nodes.layer[values.node[value]]][name] += values.size[value];
      });
    }
    return rows.filter((row) => row.nodes);
  })();
  const layersTable = makeTable(find("layers"), [
    { name: "layer", key: (row) => row.layer, show: (row) => layerLink(row.layer) },
    { name: "at stock peak", number: true, key: (row) => row.stock, show: (row) => formatBytes(row.stock) },
    { name: "at peak", number: true, key: (row) => row.rematerialized, show: (row) => formatBytes(row.rematerialized) },
    { name: data.unit === "ns" ? "time" : "cost", number: true, wide: true, key: (row) => row.cost, show: (row) => formatCost(row.cost) },
    { name: "again", number: true, wide: true, key: (row) => row.again, show: (row) => (row.again ? `+${formatCost(row.again)}` : "—") },
  ], 1);

  function drawTables() {
    againTable.draw(data.recomputed.filter((row) => matching[row.node]));
    const kept = new Set();
    for (let node = 0; node < numNodes; node++) if (matching[node]) kept.add(nodes.layer[node]);
    layersTable.draw(layerRows.filter((row) => kept.has(row.number)));
  }

  // ---- What happens ------------------------------------------------------------------------------------------------

  function choose(position) {
    const timeline = shown();
    state.position = Math.max(0, Math.min(timeline.count - 1, position));
    const begin = timeline.begin[state.position], end = timeline.begin[state.position + 1];
    if (begin < state.from || end > state.to) {
      const half = (state.to - state.from) / 2;
      zoom(Math.min(begin - half, longest - 2 * half), Math.max(begin + half, 2 * half));
    }
    markMemory();
    markSchedule();
    drawPosition();
  }

  function show(name) {
    state.shown = name;
    state.position = shown().peak_position;
    document.querySelector(`input[value="${name}"]`).checked = true;
    makeLegend();
    drawMemory();
    markSchedule();
    drawPosition();
  }

  function filter() {
    match();
    const count = matching.reduce((sum, one) => sum + one, 0);
    find("matches").textContent = isFiltered() ? `${count.toLocaleString("en")} of ${numNodes.toLocaleString("en")} nodes` : "";
    makeLegend();
    drawPosition();
    drawTables();
    redraw();
  }

  function redraw() {
    drawMemory();
    drawSchedule();
  }

  function filterLayer(layer) {
    state.layer = layer;
    fillLayers();
    find("layer").value = layer;
    filter();
  }

  function makeFigures() {
    const { stock, rematerialized } = timelines;
    const [stockBytes, peakBytes] = data.measured || [stock.peak_bytes, rematerialized.peak_bytes];
    const how = data.measured ? data.how : "predicted";
    const predicted = (bytes) => (data.measured ? `${data.how}; ${formatBytes(bytes)} predicted` : "predicted");
    const solution = data.solution;
    const entries = [
      ["Peak", formatBytes(peakBytes), predicted(rematerialized.peak_bytes), "peak"],
      ["Stock peak", formatBytes(stockBytes), stockBytes === stock.peak_bytes ? "predicted" : predicted(stock.peak_bytes), "stock-peak"],
      data.budget && ["Budget", formatBytes(data.budget), `${formatShare(data.budget / stockBytes)} of the stock peak`, "budget"],
      ["Memory saved", formatShare(1 - peakBytes / stockBytes), how, "saved"],
      ["Overhead", formatShare(rematerialized.total / data.baseline_cost - 1 || 0), "more computation, predicted", "overhead"],
      ["Computed again", data.recomputed.length.toLocaleString("en"), `of ${numNodes.toLocaleString("en")} nodes`, "recomputed"],
      solution && ["Solver", solution.solver, solution.status === "OPTIMAL" ? `proved the cheapest, ${solution.seconds.toFixed(1)} s` : solution.gap === null ? `${solution.seconds.toFixed(1)} s` : `${solution.gap < 0.001 ? "" : "at most "}${formatShare(solution.gap)} above the least, ${solution.seconds.toFixed(1)} s`, "solver"],
    ].filter(Boolean);
    find("figures").replaceChildren(...entries.map(([name, value, more, id]) => {
      const entry = make("div"), text = make("dd", value, { "data-figure": id });
      text.append(make("small", more));
      entry.append(make("dt", name), text);
      return entry;
    }));
  }

  /** Lists the layers to choose from, with what they lie in; only once they are asked for, as they may be thousands. */
  function fillLayers() {
    const choice = find("layer");
    if (choice.length > 1) return;
    const all = new Set(layerRows.map((row) => row.layer));
    for (const layer of [...all]) {
      for (let end = layer.indexOf("/"); end > 0; end = layer.indexOf("/", end + 1)) all.add(layer.slice(0, end));
    }
    choice.append(...[...all].sort(collator.compare).map((layer) => make("option", layer, { value: layer })));
  }

  let waiting = 0;
  find("search").addEventListener("input", (event) => {
    state.text = event.target.value;
    clearTimeout(waiting);
    waiting = setTimeout(filter, 80);
  });
  for (const event of ["pointerdown", "focus"]) find("layer").addEventListener(event, fillLayers);
  find("layer").addEventListener("change", (event) => filterLayer(event.target.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !["INPUT", "SELECT"].includes(event.target.tagName)) { event.preventDefault(); find("search").focus(); }
    if (event.key === "Escape" && isFiltered()) { find("search").value = state.text = ""; filterLayer(""); }
  });
  document.querySelectorAll('input[name="shown"]').forEach((input) => input.addEventListener("change", () => show(input.value)));
  find("to-peak").addEventListener("click", () => choose(shown().peak_position));
  find("zoom-out").addEventListener("click", () => zoom(0, longest));
  find("previous").addEventListener("click", () => choose(state.position - 1));
  find("next").addEventListener("click", () => choose(state.position + 1));

  new ResizeObserver(redraw).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  if (data.measured) find("memory-hint").append(" What is drawn is predicted: the bytes asked for, without the rest of the allocator's chunks.");
  makeFigures();
  filter();
})();
