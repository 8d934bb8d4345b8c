// The page of two plans beside each other: A to the left, B to the right.

const SIDES = ["A", "B"], READABLE = 0.7, SMALLEST = 0.5;
const plus = (text) => (text.startsWith("-") || text.startsWith("0 ") ? text.replace("-", "−") : `+${text}`);
const way = (x) => (x < 0 ? "saves" : x > 0 ? "costs" : "even");
const relative = (a, b) => (a === b ? "" : a ? `${plus(((100 * (b - a)) / Math.abs(a)).toFixed(1))} %` : b ? "new" : "");

/** Graph of one of the plans; `change(node)`: units by which B differs there, null where nothing changed. */
class SideGraph extends Graph {
  box(t, x, y) {
    const at = this.layers.boxes.childNodes.length;
    super.box(t, x, y);
    const g = this.layers.boxes.childNodes[at];
    const { units, changed, alone } = this.options.change(t.node);
    if (alone) g.classList.add("alone");
    if (!changed && !alone) { g.classList.add("same"); return; }
    g.classList.add("changed", way(units));
    if (!units || !this.options.tags) return;
    const text = plus(this.plan.time(units));
    const w = text.length * 6.4 + 12;
    g.append(s("g", { class: `tag ${way(units)}` }, s("rect", { x: t.w - w - 8, y: -9, width: w, height: 16, rx: 8 }), s("text", { x: t.w - 8 - w / 2, y: 3 }, text)));
  }
}

/** Two graphs that open, move and select together.  `to[side][node]`: the node's partner in the other plan, or -1. */
class Beside {
  constructor(plans, to, change, onselect) {
    Object.assign(this, { plans, to, onselect, lead: 0 });
    this.graphs = plans.map((plan, side) => new SideGraph(plan, {
      change: (node) => change(side, node), tags: side === 1,
      onselect: (what) => { this.lead = side; this.chose(side, what); },
      onopen: () => { this.lead = side; this.together(side); },
      onview: () => { if (this.lead === side) this.align(); },
    }));
    this.graphs.forEach((graph, side) => {
      for (const event of ["pointerenter", "pointerdown", "wheel", "focusin", "touchstart"]) graph.element.addEventListener(event, () => { this.lead = side; }, { passive: true });
    });
    const own = [...this.graphs[1].open].filter((i) => to[1][i] < 0);
    this.graphs[1].open = new Set([...this.mapped(0), ...own]);
    this.tools = this.buttons();
  }
  buttons() {
    const tool = (text, name, call) => h("button", { type: "button", title: name, "aria-label": name, on: { click: call } }, text);
    const both = (call) => () => { call(this.graphs[this.lead]); this.together(this.lead); };
    return h("div", { class: "tools" },
      tool("+", "zoom in", () => this.graphs[this.lead].zoom(1.25)), tool("−", "zoom out", () => this.graphs[this.lead].zoom(0.8)), tool("Fit", "fit the width", () => this.fit()),
      tool("Open more", "open the next level of boxes", both((g) => g.openMore())), tool("Close all", "close all boxes", both((g) => g.closeAll())));
  }
  /** What is open on one side, as nodes of the other. */
  mapped(side) { return new Set([this.plans[1 - side].root, ...[...this.graphs[side].open].map((i) => this.to[side][i]).filter((i) => i >= 0)]); }
  /** Opens and closes on the other side what has a partner here. */
  together(side) {
    const other = this.graphs[1 - side];
    const open = this.mapped(side);
    for (const i of other.open) if (this.to[1 - side][i] < 0) open.add(i);
    if (open.size !== other.open.size || [...open].some((i) => !other.open.has(i))) { other.open = open; other.render(); }
    this.align();
  }
  /** At first as many boxes are open as can be read, and nothing is cut off where that is so. */
  begin() {
    if (!this.begun && this.graphs[0].paper.clientWidth > 10) { this.begun = true; this.graphs[0].openFitting(READABLE); this.together(0); }
    this.fit(SMALLEST);
  }
  fit(least = 0.2) {
    const scale = Math.min(...this.graphs.map((g) => (g.paper.clientWidth - 4) / g.size[0]));
    for (const g of this.graphs) { g.scale = Math.min(1, Math.max(least, scale)); g.resize(); g.paper.scrollLeft = (g.paper.scrollWidth - g.paper.clientWidth) / 2; }
    this.align();
  }
  /** Shows on the other side what stands around the centre here: moved as the nearest boxes with a partner are. */
  align() {
    const from = this.graphs[this.lead], other = this.graphs[1 - this.lead], to = this.to[this.lead];
    if (other.scale !== from.scale) { other.scale = from.scale; other.resize(); }
    const margin = (g, k) => Math.max(0, ([g.paper.clientWidth, g.paper.clientHeight][k] - g.size[k] * g.scale) / 2);
    const x = (from.paper.scrollLeft + from.paper.clientWidth / 2 - margin(from, 0)) / from.scale;
    const y = (from.paper.scrollTop + from.paper.clientHeight / 2 - margin(from, 1)) / from.scale;
    const near = [];
    for (const [i, a] of from.boxes) {
      if (from.open.has(i) || to[i] < 0) continue;
      const b = other.boxes.get(to[i]);
      if (!b) continue;
      const ax = a.x + a.w / 2, ay = a.y + a.h / 2;
      const far = (ax - x) ** 2 + (ay - y) ** 2;
      if (near.length < 3 || far < near[2][0]) { near.push([far, b.x + b.w / 2 - ax, b.y + b.h / 2 - ay]); near.sort((p, q) => p[0] - q[0]); near.length = Math.min(3, near.length); }
    }
    if (!near.length) return;
    let sum = 0, dx = 0, dy = 0;
    for (const [far, mx, my] of near) { const w = 1 / (far + 100); sum += w; dx += w * mx; dy += w * my; }
    other.look({
      scale: from.scale,
      left: (x + dx / sum) * other.scale + margin(other, 0) - other.paper.clientWidth / 2,
      top: (y + dy / sum) * other.scale + margin(other, 1) - other.paper.clientHeight / 2,
    });
  }
  chose(side, what) {
    const other = this.graphs[1 - side], to = this.to[side];
    let there = null;
    if (what.node !== undefined) there = to[what.node] >= 0 ? { node: to[what.node] } : null;
    else if (what.source !== undefined && to[what.source] >= 0) there = this.pillOf(1 - side, to[what.source]) || { node: to[what.source] };
    other.select(there, true);
    this.onselect(side, what, there);
  }
  pillOf(side, source) {
    const plan = this.plans[side], group = plan.nodes[source].parent;
    const k = plan.data.levels[group][1].findIndex((pill) => pill[1] === source);
    if (k < 0) return null;
    const [moves, from, targets] = plan.data.levels[group][1][k];
    return { moves, source: from, targets, pill: `${group}/${k}` };
  }
  /** Opens all around a pair of operators (either may be missing) and shows it on both sides. */
  reveal([a, b]) {
    const here = [a, b];
    this.lead = a >= 0 ? 0 : 1;
    here.forEach((i, side) => { if (i >= 0) for (const p of this.plans[side].path(i).slice(0, -1)) this.graphs[side].open.add(p); });
    this.graphs[this.lead].render();
    this.together(this.lead);
    this.graphs[1 - this.lead].render();
    const what = { node: here[this.lead] };
    if (this.graphs[this.lead].scale < READABLE) { this.graphs[this.lead].scale = READABLE; this.graphs[this.lead].resize(); }
    this.graphs[this.lead].select(what, true);
    this.graphs[this.lead].centre(what.node);
    this.align();
    this.chose(this.lead, what);
  }
  mark(numbers, name) { this.graphs.forEach((g, side) => g.mark(numbers[side], name)); this.align(); }
}

const deltaCell = (x, text) => h("span", { class: `delta ${way(x)}` }, text);

/** Rows: [label, a, b, show, key]; two bars a row on one scale. */
function bars(rows, caption, show) {
  const most = Math.max(...rows.map((r) => Math.max(r.a ?? 0, r.b ?? 0)), 1e-30);
  const bar = (value, side, key) => h("div", { class: `twin-bar side-${SIDES[side].toLowerCase()}` }, h("span", { class: `part k-${key}`, style: { width: `${(100 * (value ?? 0)) / most}%` } }));
  return table([[caption, ""], ["", "bars"], ["A", "n"], ["B", "n"], ["B − A", "n"], ["", "n"]],
    rows.map((r) => [r.label, h("div", { class: "twin", "aria-hidden": "true" }, bar(r.a, 0, r.key), bar(r.b, 1, r.key)),
      r.a === null ? "not stated" : show(r.a), r.b === null ? "not stated" : show(r.b),
      r.a === null || r.b === null ? "" : deltaCell(r.b - r.a, plus(show(r.b - r.a))), r.a === null || r.b === null ? "" : h("small", null, relative(r.a, r.b))]));
}

const settingRows = (rows) => table([["", "wrap"], ["A", "wrap"], ["B", "wrap"]], rows.map((r) => [shown(r.what, 160), h("span", { class: "name", dir: "auto" }, shown(r.a, 400) || "–"), h("span", { class: "name", dir: "auto" }, shown(r.b, 400) || "–")]));

/** The list of what the difference is the sum of. */
class Changes {
  /** go(entry): shows it in the graphs. */
  constructor(d, unit, go) {
    Object.assign(this, { d, unit, go });
    const o = d.objective;
    this.most = Math.max(1, ...o.groups.map((g) => Math.abs(g.delta_units)), ...o.same.map((g) => Math.abs(g.delta_units)));
    this.list = h("ol", { class: "changes" });
    this.input = h("input", { type: "search", placeholder: "Filter changes …", "aria-label": "filter changes by type, place or what changed", spellcheck: "false", on: { input: () => this.fill() } });
    this.entries = [
      ...o.groups.map((g, k) => ({ ...g, k, what: "group" })),
      ...o.same.map((g, k) => ({ ...g, k, what: "same", place: `does the same: ${d.same_reason}`, count: g.operators.length, changes: [] })),
      ...[["only_a", "A"], ["only_b", "B"]].filter(([k]) => o[k].operators.length).map(([k, side]) => ({ ...o[k], k: -1, what: k, type: "operators", place: `in ${side} alone`, count: o[k].operators.length, changes: [] })),
    ].sort((a, b) => Math.abs(b.delta_units) * (b.cancels == null) - Math.abs(a.delta_units) * (a.cancels == null));
    const left = [o.loose.delta_units && ["of tensors that no operator makes or reads", o.loose.delta_units], o.remainder.delta_units && [d.remainder_reason, o.remainder.delta_units]].filter(Boolean);
    this.sum = h("dl", { class: "sum" }, [...left, ["in all", o.delta_units]].map(([k, u]) => [h("dt", null, shown(k, 200)), h("dd", { class: `delta ${way(u)}` }, u ? plus(this.time(u)) : "0 s")]));
    this.element = h("div", { class: "changes-box" }, h("div", { class: "changes-head" }, this.input), this.list, this.sum);
    this.buttons = new Map();
    this.fill();
  }
  time(units) { return seconds(units * this.unit); }
  fill() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const hits = this.entries.filter((e) => { const text = `${e.type} ${e.place} ${e.changes.map((c) => `${c.trait} ${c.before.join(" ")} ${c.after.join(" ")}`).join(" ")}`.toLowerCase(); return words.every((w) => text.includes(w)); });
    this.list.replaceChildren(...hits.slice(0, 400).map((e) => h("li", null, this.item(e))), ...(hits.length ? [] : [h("li", { class: "quiet" }, this.entries.length ? "nothing found" : "no operator does anything otherwise")]), ...(hits.length > 400 ? [h("li", { class: "quiet" }, `and ${hits.length - 400} more`)] : []));
  }
  item(e) {
    const share = Math.abs(e.delta_units) / this.most;
    const strategy = e.changes.find((c) => c.trait === "strategy");
    const others = e.changes.filter((c) => c !== strategy && !(strategy && ["operands", "results", "gradients"].includes(c.trait))).map((c) => ({ parameters: "stored", inner: "inside" })[c.trait] || c.trait);
    const button = h("button", { type: "button", class: `change ${e.what}`, on: { click: () => this.go(e) } },
      h("span", { class: "line" }, h("b", { class: `delta ${way(e.delta_units)}` }, e.delta_units ? plus(this.time(e.delta_units)) : "0 s"), h("span", { class: "times" }, `${count(e.count)} ×`), h("b", { class: "type" }, shown(e.type.split("::").pop(), 60))),
      h("span", { class: "rail" }, h("span", { class: `amount ${way(e.delta_units)}`, style: { width: `${100 * share}%` } })),
      h("span", { class: "place name", dir: "auto" }, shown(e.place, 120)),
      strategy && h("span", { class: "swap" }, h("code", null, shown(strategy.before.join(" "), 60)), " → ", h("code", null, shown(strategy.after.join(" "), 60))),
      others.length || e.cancels != null ? h("span", { class: "quiet" }, [others.join(", "), e.cancels != null && "cancelled by another group"].filter(Boolean).join(" · ")) : null);
    this.buttons?.set(e, button);
    return button;
  }
  chosen(e) {
    for (const [entry, button] of this.buttons) button.setAttribute("aria-pressed", String(entry === e));
    const button = this.buttons.get(e);
    if (button && button.isConnected) button.scrollIntoView({ block: "nearest" });
  }
}

/** What changed of the chosen operator or group of changes, and what it costs. */
function changeCard(d, entry, unit, ofPart, go) {
  const time = (u) => seconds(u * unit);
  const parts = Object.entries(entry.parts).filter(([, p]) => p.delta_units).sort((a, b) => Math.abs(b[1].delta_units) - Math.abs(a[1].delta_units));
  const words = (list) => (list.length ? h("ul", null, list.map((w) => h("li", null, h("code", null, shown(w, 300))))) : h("span", { class: "quiet" }, "none"));
  const titles = { parameters: "stored parameters", inner: "collectives inside", gradients: "gradients wanted" };
  return [
    h("header", null, h("p", { class: "kind" }, entry.what === "group" ? "equal changes" : "cost"), h("h3", null, `${count(entry.count)} × ${shown(entry.type.split("::").pop(), 60)}`), h("p", { class: "quiet" }, named(entry.place, 300))),
    h("p", { class: `big ${way(entry.delta_units)}` }, entry.delta_units ? plus(time(entry.delta_units)) : "0 s"),
    table([["", ""], ["A", "n"], ["B", "n"], ["B − A", "n"]], [
      ["objective", seconds(entry.a_s), seconds(entry.b_s), deltaCell(entry.delta_units, entry.delta_units ? plus(time(entry.delta_units)) : "0 s")],
      ["bytes moved", bytes(entry.bytes_moved.a), bytes(entry.bytes_moved.b), entry.bytes_moved.delta ? plus(bytes(entry.bytes_moved.delta)) : "0 B"],
      ["parameters a device", bytes(entry.parameter_bytes.a), bytes(entry.parameter_bytes.b), entry.parameter_bytes.delta ? plus(bytes(entry.parameter_bytes.delta)) : "0 B"]]),
    parts.length ? table([["of it", ""], ["B − A", "n"]], parts.map(([p, x]) => [ofPart(p), deltaCell(x.delta_units, plus(time(x.delta_units)))])) : null,
    entry.changes.length ? h("div", { class: "scroll" }, h("table", { class: "traits" }, h("thead", null, h("tr", null, h("th", null, ""), h("th", null, "A"), h("th", null, "B"))), h("tbody", null, entry.changes.map((c) => h("tr", null, h("th", { scope: "row" }, titles[c.trait] || c.trait), h("td", null, words(c.before)), h("td", null, words(c.after))))))) : null,
    entry.pairs && entry.pairs.length > 1 ? [h("h4", null, plural(entry.pairs.length, "place")), h("ul", { class: "links" }, entry.pairs.slice(0, 60).map((p, k) => h("li", null, link(named(entry.operators[k][0] || entry.operators[k][1] || entry.operators[k], 90), () => go(p)))), entry.pairs.length > 60 && h("li", { class: "quiet" }, `and ${entry.pairs.length - 60} more`))] : null,
  ].flat().filter(Boolean);
}

begin((data, main) => {
  const d = data.diff, unit = d.unit_s;
  const plans = [new Plan(data.a), new Plan(data.b)];
  const to = [data.partner, Array(plans[1].nodes.length).fill(-1)];
  data.partner.forEach((j, i) => { if (j >= 0) to[1][j] = i; });
  const label = new Map(data.a.labels.map(([part, name]) => [part, name]));
  const ofPart = (p) => label.get(p) || p;

  // Operators of every entry, by number on both sides.
  const entryOf = [new Map(), new Map()];
  const units = [new Float64Array(plans[0].operators.length), new Float64Array(plans[1].operators.length)];
  const changed = [new Set(), new Set()], alone = [new Set(), new Set()];
  plans.forEach((plan, side) => plan.operators.forEach((o) => {
    const j = to[side][o.i];
    const here = plan.spent[o.i].total * plan.unit, there = j >= 0 ? plans[1 - side].spent[j].total * plans[1 - side].unit : 0;
    units[side][o.i] = ((side ? here - there : there - here)) / plan.unit;
    if (j < 0) alone[side].add(o.i);
  }));

  let beside = null;
  const details = h("div", { class: "panel-body" });
  const card = h("aside", { class: "panel", "aria-label": "what changed", "aria-live": "polite" }, details);
  const go = (pair) => { beside.reveal(pair); near(); };
  const panels = plans.map((plan, side) => new Panel(plan, (i) => go(side ? [to[1][i], i] : [i, to[0][i]])));
  const near = () => { const r = row.getBoundingClientRect(); if (r.top < 0 || r.top > innerHeight * 0.5) row.scrollIntoView({ block: "start" }); };
  const chosen = (...content) => { drawer.hidden = false; hint.hidden = true; details.replaceChildren(...content); details.scrollTop = 0; };
  const hint = h("p", { class: "quiet" }, "Choose a change, or a box in a graph: what it was and is, what that costs, and what each plan does there is shown here. Ctrl and the wheel zoom, dragging moves; both graphs follow.");
  const drawer = h("div", { class: "details-row", hidden: true }, card, panels.map((p) => p.element));
  const mark = (entry) => beside.mark([0, 1].map((side) => (entry ? entry.pairs.map((p) => p[side]).filter((i) => i >= 0) : [])), "picked");

  const list = new Changes(d, unit, (e) => { list.chosen(e); mark(e); if (e.pairs.length) beside.reveal(e.pairs[0]); chosen(...changeCard(d, e, unit, ofPart, go)); near(); });
  const number = plans.map((p) => p.byName);
  for (const e of list.entries) {
    e.pairs = e.operators.map((p) => (e.what === "only_a" ? [number[0].get(p), -1] : e.what === "only_b" ? [-1, number[1].get(p)] : [number[0].get(p[0]), number[1].get(p[1])]));
    for (const pair of e.pairs) pair.forEach((i, side) => { if (i < 0) return; entryOf[side].set(i, e); if (e.what === "group") changed[side].add(i); });
  }
  const net = (side, node) => {
    const below = plans[side].nodes[node].operators || [];
    let sum = 0, some = false, lone = below.length > 0;
    for (const i of below) { sum += units[side][i]; some = some || changed[side].has(i) || entryOf[side].has(i); lone = lone && alone[side].has(i); }
    return { units: Math.round(sum), changed: some, alone: lone };
  };
  const groupCard = (side, node) => {
    const n = plans[side].nodes[node];
    const found = new Map();
    for (const i of n.operators) { const e = entryOf[side].get(i); if (e) found.set(e, (found.get(e) || 0) + 1); }
    const { units: sum } = net(side, node);
    const rows = [...found].map(([e, k]) => [e, k, e.count ? (e.delta_units * k) / e.count : 0]).sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]));
    return [h("header", null, h("p", { class: "kind" }, n.kind === "pile" ? `${n.alike} blocks, alike` : n.kind), h("h3", null, named(n.title, 120)), h("p", { class: "quiet" }, n.detail)),
      h("p", { class: `big ${way(sum)}` }, sum ? plus(plans[side].time(sum)) : "0 s"),
      rows.length ? table([["change", "wrap"], ["here", "n"], ["B − A", "n"]], rows.slice(0, 30).map(([e, k, u]) => [link([h("b", null, shown(e.type.split("::").pop(), 40)), " ", named(e.place, 70)], () => list.go(e)), count(k), deltaCell(u, u ? plus(seconds(u * unit)) : "0 s")])) : h("p", { class: "quiet" }, "Nothing in here changes.")];
  };
  beside = new Beside(plans, to, net, (side, what, there) => {
    panels[side].show(what);
    if (there) panels[1 - side].show(there);
    else panels[1 - side].body.replaceChildren(h("p", { class: "quiet" }, `Nothing of ${SIDES[1 - side]} corresponds.`));
    const node = what.node !== undefined ? what.node : what.source;
    if (node === undefined) return;
    const e = entryOf[side].get(node);
    list.chosen(e);
    if (plans[side].nodes[node].kind !== "operator") chosen(...groupCard(side, node));
    else if (e) chosen(...changeCard(d, e, unit, ofPart, go));
    else chosen(h("header", null, h("p", { class: "kind" }, "unchanged"), h("h3", null, plans[side].nodes[node].title)), h("p", null, "Does the same at the same cost in both plans."));
  });

  const row = h("div", { class: "diff-row" }, list.element, ...beside.graphs.map((g, side) => h("div", { class: `side side-${SIDES[side].toLowerCase()}` }, h("p", { class: "side-title" }, h("b", { class: "letter" }, SIDES[side]), named(plans[side].report.model.name, 60), h("span", { class: "quiet" }, `mesh ${plans[side].report.mesh.map((a) => `${a.name}=${a.size}`).join(", ")}`)), g.element)));
  const parts = Object.entries(d.parts).filter(([, p]) => p.a_s || p.b_s).map(([p, x]) => ({ label: ofPart(p), key: p, a: x.a_s, b: x.b_s }));
  const kinds = Object.entries(d.memory).map(([k, x]) => ({ label: (plans[0].report.memory.concat(plans[1].report.memory).find((m) => m.kind === k) || { label: k }).label, key: `m-${k}`, a: x.a, b: x.b })).filter((r) => r.a || r.b);
  const places = d.places.length > 1 ? d.places.map((p) => ({ label: p.blocks ? `${count(p.blocks)} × block of ${plural(p.operators, "operator")}` : `outside, ${plural(p.operators, "operator")}`, key: "used", a: p.a_s, b: p.b_s })) : [];
  const drawn = () => { beside.graphs.forEach((g) => g.render()); beside.begin(); };
  const operators = new Set(d.objective.groups.flatMap((g) => g.operators.map((p) => p[0]))).size;
  const graphs = fold("changes", "Graphs beside each other", d.identical ? "" : `${count(operators)} changed, in ${plural(d.objective.groups.length, "group")} of equal changes`, drawn,
    h("p", { class: "quiet" }, d.identical ? "The plans are identical: every operator, parameter and redistribution is the same." : `Every figure is a share of the difference of the objectives, which count everything one after the other${plans.some((p) => p.report.schedule.micro_batches > 1) ? ", of one micro-batch," : ""} and add up.`),
    h("div", { class: "graph-bar" }, beside.tools, legend(plans), h("ul", { class: "legend" }, h("li", null, h("span", { class: "key-box saves" }), "B is cheaper"), h("li", null, h("span", { class: "key-box costs" }), "B is more expensive"), h("li", null, h("span", { class: "key-box picked" }), "chosen change"))),
    row, hint, drawer);
  const open = () => { if (!graphs.open) { graphs.open = true; drawn(); } };
  const ofRule = (c) => {
    open();
    const entries = list.entries.filter((e) => e.what === "group" && c.groups.includes(e.k));
    list.chosen(entries[0]);
    mark({ pairs: entries.flatMap((e) => e.pairs) });
    beside.reveal(entries[0].pairs[0]);
    chosen(...changeCard(d, entries[0], unit, ofPart, go));
    graphs.scrollIntoView({ block: "start" });
  };
  const exact = Object.entries(d.totals).map(([k, x]) => [{ objective_s: "objective", objective_lower_bound_s: "lower bound", gap: "gap", step_time_s: "simulated step", peak_memory_bytes: "memory per device" }[k] || k, ...[x.a, x.b].map((v) => (k === "peak_memory_bytes" ? `${count(v)} bytes` : k === "gap" ? String(v) : `${v} s`)), relative(x.a, x.b)]);
  const sections = [
    graphs,
    fold("time", "Parts of the objective", plans.some((p) => p.report.schedule.micro_batches > 1) ? "of one micro-batch, everything in sequence" : "everything in sequence", null, table([["", ""], ["A", "n exact"], ["B", "n exact"], ["", "n"]], exact), bars(parts, "objective by part", seconds), places.length ? bars(places, "objective by place", seconds) : null),
    fold("memory", "Memory", d.summary.totals.find((r) => r.key === "memory")?.delta, null, kinds.length ? bars(kinds, "bytes per device at the peak", bytes) : h("p", { class: "quiet" }, "The plans do not say what their memory consists of.")),
    Object.keys(d.collectives).length ? fold("collectives", "Collectives", "", null, table([["kind", ""], ["A", "n"], ["B", "n"], ["bytes A", "n"], ["bytes B", "n"], ["B − A", "n"]], Object.entries(d.collectives).map(([k, x]) => [shown(k.replaceAll("_", "-"), 60), count(x.a.count), count(x.b.count), bytes(x.a.bytes), bytes(x.b.bytes), deltaCell(x.delta.bytes, x.delta.bytes ? plus(bytes(x.delta.bytes)) : "0 B")]))) : null,
    d.settings.length || d.others.length || d.found_otherwise.length ? fold("made", "Made otherwise", d.summary.settings.slice(0, 3).map((x) => arrows(shown(x, 60))).join(" · "), null, settingRows([...d.settings, ...d.others]), d.found_otherwise.length ? [h("h3", null, "Found otherwise"), settingRows(d.found_otherwise)] : null) : null,
  ].filter(Boolean);
  document.body.classList.toggle("identical", d.identical);
  main.append(diffHeader(d), ...(d.identical ? [] : [summarySection(d, ofRule)]), h("div", { class: "folds" }, sections), h("footer", { class: "quiet" }, `Made from two plan.json; costs of operators count in units of ${unit} s${d.exact ? ", in which both plans' times are whole" : ""}.`));
  oneScreen();
  addEventListener("resize", oneScreen);
  if (location.hash && document.getElementById(location.hash.slice(1))?.tagName === "DETAILS") document.getElementById(location.hash.slice(1)).open = true;
});

function legend(plans) {
  const used = new Set(plans.flatMap((p) => p.operators.flatMap((o) => [...o.letters])));
  return h("ul", { class: "legend", "aria-label": "colours" },
    [...plans[0].splits.values()].filter((x) => used.has(x.letter)).map((x) => h("li", { title: x.meaning }, s("svg", { width: 14, height: 14, class: "key", "aria-hidden": "true" }, s("rect", { width: 14, height: 14, rx: 2, fill: `url(#p-${x.letter})` })), x.name)),
    h("li", null, h("span", { class: "pill-key" }), "redistribution"));
}

/** Where everything that stands open is higher than the window, lists are as much lower and scroll by themselves; not
 * in windows, and frames, that are so low that nothing would be left of the lists. */
function oneScreen() {
  const lists = [...document.querySelectorAll(".summary .rules, #cause .scroll")];
  for (const list of lists) list.style.removeProperty("max-height");
  const over = document.documentElement.scrollHeight - innerHeight;
  if (over <= 0 || innerWidth <= 900 || innerHeight < 740 || document.querySelector(".fold[open]")) return;
  const height = (list) => list.closest("section").offsetHeight, room = Math.max(...lists.map(height)) - over;
  for (const list of lists) if (height(list) > room) list.style.setProperty("max-height", `${Math.max(96, list.offsetHeight - (height(list) - room))}px`);
}
