// The graph: nested boxes that open.  Rows and places of the closed boxes come from planner/report/layout.py; where a
// box is open, its row is spread again by the same rule.

const ROW_GAP = 22, GAP = 18, PAD = 14, HEAD = 34, BEND = 6;

/** As `spread` of planner/report/layout.py. */
function spread(wanted, widths, gap = GAP) {
  const shifts = [];
  let offset = 0;
  widths.forEach((w, i) => { if (i) offset += (widths[i - 1] + w) / 2 + gap; shifts.push(offset); });
  const blocks = [];
  wanted.forEach((want, i) => {
    blocks.push([want - shifts[i], 1]);
    while (blocks.length > 1) {
      const [a, b] = blocks.slice(-2);
      if (a[0] / a[1] < b[0] / b[1]) break;
      blocks.splice(-2, 2, [a[0] + b[0], a[1] + b[1]]);
    }
  });
  const base = blocks.flatMap(([sum, n]) => Array(n).fill(sum / n));
  return base.map((b, i) => b + shifts[i]);
}

class Graph {
  /** options: onselect({node} | {moves, source, targets}), onview({scale, left, top}), onopen(node, open) */
  constructor(plan, options = {}) {
    Object.assign(this, { plan, options, open: new Set([plan.root]), scale: 1, boxes: new Map(), marks: new Map(), chosen: null });
    this.svg = s("svg", { class: "graph", role: "group", "aria-label": "operators and what flows between them" });
    this.paper = h("div", { class: "paper", tabindex: "-1" }, this.svg);
    const tool = (text, call, name) => h("button", { type: "button", "aria-label": name, title: name, on: { click: call } }, text);
    this.tools = h("div", { class: "tools" },
      tool("+", () => this.zoom(1.25), "zoom in"), tool("−", () => this.zoom(0.8), "zoom out"), tool("Fit", () => this.fit(), "fit the width"),
      tool("Open more", () => this.openMore(), "open the next level of boxes"), tool("Close all", () => this.closeAll(), "close all boxes"));
    this.element = h("div", { class: "graph-box" }, this.paper);
    this.svg.addEventListener("click", (e) => this.clicked(e));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    this.svg.addEventListener("pointerover", (e) => this.hover(e));
    this.paper.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      const r = this.paper.getBoundingClientRect();
      this.zoom(e.deltaY > 0 ? 0.88 : 1.14, e.clientX - r.left, e.clientY - r.top);
    }, { passive: false });
    this.paper.addEventListener("scroll", () => this.told());
    this.drag();
    this.openSome();
  }
  drag() {
    let from = null;
    this.paper.addEventListener("pointerdown", (e) => { if (e.button === 0 && e.pointerType === "mouse") from = { x: e.clientX, y: e.clientY, left: this.paper.scrollLeft, top: this.paper.scrollTop }; });
    window.addEventListener("pointermove", (e) => {
      if (!from) return;
      const dx = e.clientX - from.x, dy = e.clientY - from.y;
      if (Math.abs(dx) + Math.abs(dy) > 5) this.dragged = true;
      if (this.dragged) { this.paper.scrollLeft = from.left - dx; this.paper.scrollTop = from.top - dy; }
    });
    window.addEventListener("pointerup", () => { from = null; setTimeout(() => { this.dragged = false; }); });
  }
  told() { this.options.onview?.({ scale: this.scale, left: this.paper.scrollLeft, top: this.paper.scrollTop }); }
  look({ scale, left, top }) {
    if (scale !== this.scale) { this.scale = scale; this.resize(); }
    if (Math.abs(this.paper.scrollLeft - left) > 1) this.paper.scrollLeft = left;
    if (Math.abs(this.paper.scrollTop - top) > 1) this.paper.scrollTop = top;
  }
  /** Opens what has few members until there is something to see. */
  openSome() {
    let shownBoxes = this.plan.nodes[this.plan.root].children.length;
    let level = [this.plan.root];
    while (level.length) {
      const next = [];
      for (const i of level) for (const c of this.plan.nodes[i].children) {
        const n = this.plan.nodes[c];
        if (n.children.length && n.kind !== "pile" && n.kind !== "block" && n.kind !== "segment" && shownBoxes + n.children.length <= 22) {
          this.open.add(c);
          shownBoxes += n.children.length;
          next.push(c);
        }
      }
      level = next;
    }
  }
  openMore() {
    const more = [...this.boxes.keys()].filter((i) => !this.open.has(i) && this.plan.nodes[i].children.length);
    let room = 4000;
    for (const i of more) { room -= this.plan.nodes[i].children.length; if (room > 0) this.open.add(i); }
    this.render();
    this.paper.scrollLeft = (this.paper.scrollWidth - this.paper.clientWidth) / 2;
  }
  closeAll() { this.open = new Set([this.plan.root]); this.render(); this.paper.scrollTop = 0; }
  toggle(i, quiet) {
    const before = this.boxes.get(i);
    if (this.open.has(i)) this.open.delete(i);
    else this.open.add(i);
    this.render();
    const after = this.boxes.get(i);
    if (before && after) {
      this.paper.scrollTop += (after.y - before.y) * this.scale;
      this.paper.scrollLeft += (after.x + after.w / 2 - before.x - before.w / 2) * this.scale;
    }
    this.svg.querySelector(`[data-node="${i}"]`)?.focus({ preventScroll: true });
    if (!quiet) this.options.onopen?.(i, this.open.has(i));
  }
  /** Opens all around a node, selects it and brings it into view. */
  reveal(i, quiet) {
    for (const p of this.plan.path(i).slice(0, -1)) this.open.add(p);
    this.render();
    this.select({ node: i }, quiet);
    this.centre(i);
  }
  centre(i) {
    const b = this.boxes.get(i);
    if (!b) return;
    this.paper.scrollTo({ left: (b.x + b.w / 2) * this.scale - this.paper.clientWidth / 2, top: (b.y + Math.min(b.h, 60) / 2) * this.scale - this.paper.clientHeight / 2 });
  }
  /** Gives operators a class of their own (say, "changed"); groups with some of them get it as well. */
  mark(numbers, name) { this.marks.set(name, new Set(numbers)); this.render(); }
  measure(i) {
    const n = this.plan.nodes[i], sizes = this.plan.data.sizes;
    if (!this.open.has(i)) { const [w, hgt] = sizes[n.kind] || sizes.group; return { node: i, w, h: hgt }; }
    const [members, pills, rows, x, segments, against] = this.plan.data.levels[i];
    const items = [...members.map((m) => this.measure(m)), ...pills.map((pill, k) => ({ pill, k, w: sizes.pill[0], h: sizes.pill[1] }))];
    while (items.length < x.length) items.push({ w: BEND, h: 0 });
    let y = HEAD + PAD / 2;
    for (const row of rows) {
      const found = spread(row.map((k) => x[k]), row.map((k) => items[k].w));
      const tall = Math.max(0, ...row.map((k) => items[k].h));
      row.forEach((k, p) => { const item = items[k]; item.cx = found[p]; item.y = y; item.row = tall; });
      y += tall + (tall ? ROW_GAP : ROW_GAP / 2);
    }
    const left = Math.min(...items.map((t) => t.cx - t.w / 2)), right = Math.max(...items.map((t) => t.cx + t.w / 2));
    const least = i === this.plan.root ? 0 : Math.max(sizes.group[0], 60);
    const w = Math.max(right - left + 2 * PAD, least);
    const shift = (w - (right - left)) / 2 - left;
    for (const t of items) t.cx += shift;
    return { node: i, w, h: y - ROW_GAP + PAD, items, segments, against };
  }
  render() {
    const scroll = [this.paper.scrollLeft, this.paper.scrollTop];
    this.boxes.clear();
    const edges = s("g", { class: "edges" }), boxes = s("g", { class: "boxes" });
    const top = this.measure(this.plan.root);
    this.size = [top.w, top.h - HEAD + PAD];
    this.layers = { edges, boxes, over: s("g", { class: "over" }) };
    this.inside(top, 0, PAD - HEAD);
    this.svg.replaceChildren(this.patterns(), boxes, this.layers.over);
    this.resize();
    [this.paper.scrollLeft, this.paper.scrollTop] = scroll;
    if (this.chosen) this.paint();
  }
  resize() {
    const [w, hgt] = this.size;
    this.svg.setAttribute("viewBox", `0 0 ${w} ${hgt}`);
    this.svg.setAttribute("width", Math.round(w * this.scale));
    this.svg.setAttribute("height", Math.round(hgt * this.scale));
    this.svg.classList.toggle("far", this.scale < 0.45);
  }
  zoom(factor, atX = this.paper.clientWidth / 2, atY = this.paper.clientHeight / 2) {
    const x = (this.paper.scrollLeft + atX) / this.scale, y = (this.paper.scrollTop + atY) / this.scale;
    this.scale = Math.min(3, Math.max(0.08, this.scale * factor));
    this.resize();
    this.paper.scrollLeft = x * this.scale - atX;
    this.paper.scrollTop = y * this.scale - atY;
    this.told();
  }
  fit(least = 0.2) {
    const room = this.paper.clientWidth - 4;
    if (room > 0) { this.scale = Math.min(1, Math.max(least, room / this.size[0])); this.resize(); this.told(); }
  }
  patterns() {
    const defs = s("defs");
    const tile = (letter, ...marks) => defs.append(s("pattern", { id: `p-${letter}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, s("rect", { width: 6, height: 6, class: `c-${letter}` }), marks));
    const line = (d) => s("path", { d, class: "mark" });
    tile("b"); tile("r");
    tile("s", line("M0 3H6"));
    tile("c", line("M3 0V6"));
    tile("k", line("M-1 5L5 -1M1 7L7 1"));
    tile("e", s("circle", { cx: 3, cy: 3, r: 1.2, class: "dot" }));
    tile("p", line("M0 0L6 6M6 0L0 6"));
    const arrow = (id) => s("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, markerUnits: "userSpaceOnUse", orient: "auto-start-reverse" }, s("path", { d: "M0 0.5L8 4L0 7.5z", class: id }));
    defs.append(arrow("tip"), arrow("tip-moved"), arrow("tip-chosen"));
    return defs;
  }
  inside(group, x0, y0) {
    const edges = s("g", { class: "edges" });
    this.layers.boxes.append(edges);
    const n = group.items.length;
    const back = new Set();
    for (let k = 0; k < group.against.length; k += 2) back.add(group.against[k] * n + group.against[k + 1]);
    for (let k = 0; k < group.segments.length; k += 2) {
      const a = group.items[group.segments[k]], b = group.items[group.segments[k + 1]];
      const x1 = x0 + a.cx, y1 = y0 + a.y + (a.h || a.row || 0), x2 = x0 + b.cx, y2 = y0 + b.y;
      const moved = a.pill || b.pill;
      const floor = y0 + a.y + Math.max(a.row, a.h);
      const bend = Math.max(8, (y2 - floor) / 2);
      const lead = a.h ? `M${x1} ${y1}V${floor}` : `M${x1} ${y0 + a.y}V${floor}`;
      const reverse = back.has(group.segments[k] * n + group.segments[k + 1]);
      edges.append(s("path", {
        d: `${lead}C${x1} ${floor + bend} ${x2} ${y2 - bend} ${x2} ${y2}`,
        class: `edge${moved ? (this.units(moved) ? " moved" : " free") : ""}${reverse ? " back" : ""}`,
        "stroke-width": moved ? this.weight(moved) : undefined,
        "marker-end": !reverse && b.h && !b.pill ? `url(#${moved && this.units(moved) ? "tip-moved" : "tip"})` : undefined,
        "marker-start": reverse && a.h && !a.pill ? `url(#${moved && this.units(moved) ? "tip-moved" : "tip"})` : undefined,
      }));
    }
    for (const t of group.items) {
      const x = x0 + t.cx - t.w / 2, y = y0 + t.y;
      if (t.pill) this.pill(t, x, y, group.node);
      else if (t.node !== undefined) this.box(t, x, y);
    }
  }
  units([moves]) { return moves.reduce((a, i) => a + this.plan.moves[i].units, 0); }
  weight(pill) { return this.units(pill) ? (1.5 + 4.5 * Math.min(1, Math.sqrt(this.plan.share(this.units(pill)) * 12))).toFixed(1) : undefined; }
  box(t, x, y) {
    const plan = this.plan, n = plan.nodes[t.node], isOpen = this.open.has(t.node);
    this.boxes.set(t.node, { x, y, w: t.w, h: t.h });
    const marks = [...this.marks].filter(([, set]) => n.operators.some((i) => set.has(i))).map(([name]) => name).join(" ");
    const g = s("g", { class: `box ${n.kind}${isOpen ? " open" : ""} ${marks}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, tabindex: "0", role: "button", data: { node: t.node },
      "aria-expanded": n.children.length ? String(isOpen) : undefined, "aria-label": this.said(n) });
    this.layers.boxes.append(g);
    if (n.kind === "pile" && !isOpen) g.append(s("rect", { x: 7, y: 7, width: t.w, height: t.h, rx: 7, class: "frame under" }), s("rect", { x: 3.5, y: 3.5, width: t.w, height: t.h, rx: 7, class: "frame under" }));
    g.append(s("rect", { width: t.w, height: t.h, rx: n.kind === "input" ? t.h / 2 : 7, class: "frame" }));
    if (n.kind === "input") { g.append(this.text(fit(shown(n.title), t.w - 20, `11px ${FONT}`), t.w / 2, 18, "name middle")); return; }
    const band = 9;
    const tall = isOpen ? HEAD - 10 : t.h - 10;
    const left = plan.axes.length * (band + 2) + 14;
    plan.axes.forEach((axis, k) => {
      let from = 5;
      for (const [letter, share] of plan.mixture(n, k)) {
        g.append(s("rect", { x: 6 + k * (band + 2), y: from.toFixed(1), width: band, height: Math.max(0.5, share * tall).toFixed(1), fill: `url(#p-${letter})`, class: "swatch" }));
        from += share * tall;
      }
    });
    const group = n.kind !== "operator";
    const cost = n.units ? plan.time(n.units) : "";
    const button = group ? 20 : 0;
    const costRoom = cost ? cost.length * 6.4 + 8 : 0;
    const room = t.w - left - costRoom - button - 6;
    const heading = group ? shown(n.title, 200) : n.title;
    const bold = `600 12.5px ${FONT}`;
    const name = fit(heading, room, bold);
    g.append(this.text(name, left, 19, "title"));
    if (!group) {
      pen.font = bold;
      const used = pen.measureText(name).width + 6;
      if (room - used > 30) g.append(this.text(fit(shown(n.detail, 200), room - used, `12px ${FONT}`), left + used, 19, "detail"));
    }
    if (cost) g.append(this.text(cost, t.w - 8 - button, 19, "cost"));
    if (group) {
      g.append(s("g", { class: "toggle" }, s("rect", { x: t.w - 24, y: 7, width: 16, height: 16, rx: 4 }), s("path", { d: isOpen ? `M${t.w - 20} 15h8` : `M${t.w - 20} 15h8M${t.w - 16} 11v8` })));
    }
    if (isOpen) { this.inside(t, x, y); return; }
    const wide = t.w - left - 8;
    if (!group) {
      const o = plan.operators[n.i];
      const waits = o.waits.reduce((a, i) => a + plan.moves[i].units, 0);
      const badge = waits ? `⇅ ${plan.time(waits)}` : "";
      g.append(this.text(fit(plan.splitText(o.letters, true), wide - (badge ? badge.length * 6 + 6 : 0), `11px ${FONT}`), left, 36, "detail"));
      if (badge) g.append(this.text(badge, t.w - 8, 36, "badge"));
      return;
    }
    const alike = n.alike ? `× ${n.alike} alike · ` : "";
    g.append(this.text(fit(alike + n.detail, wide, `11px ${FONT}`), left, 36, n.alike ? "detail alike" : "detail"));
    if (n.units) {
      const share = plan.share(n.units);
      g.append(s("rect", { x: left, y: 46, width: wide - 44, height: 6, rx: 3, class: "rail" }), s("rect", { x: left, y: 46, width: Math.max(1, share * (wide - 44)).toFixed(1), height: 6, rx: 3, class: "amount" }), this.text(percent(share), t.w - 8, 53, "cost small"));
    } else {
      g.append(this.text(fit(this.mixed(n), wide, `11px ${FONT}`), left, 53, "detail"));
    }
  }
  mixed(n) { return this.plan.axes.map((a, k) => `${a.name} ${this.plan.mixture(n, k).sort((p, q) => q[1] - p[1]).slice(0, 2).map(([l]) => this.plan.splits.get(l).name).join("/")}`).join(" · "); }
  said(n) {
    const cost = n.units ? `, ${this.plan.time(n.units)}` : "";
    if (n.kind === "operator") return `${n.title} ${shown(n.detail, 80)}, ${this.plan.splitText(this.plan.operators[n.i].letters)}${cost}`;
    return `${n.kind} ${shown(n.title, 80)}, ${n.detail}${n.alike ? `, ${n.alike} alike` : ""}${cost}`;
  }
  text(text, x, y, name) { return s("text", { x: typeof x === "number" ? x.toFixed(1) : x, y, class: name }, text); }
  pill(t, x, y, group) {
    const [moves] = t.pill;
    const plan = this.plan;
    const g = s("g", { class: this.units(t.pill) ? "pill" : "pill free", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, tabindex: "0", role: "button", data: { group, pill: t.k } });
    const label = this.pillText(moves, t.w - 18);
    g.append(s("rect", { width: t.w, height: t.h, rx: t.h / 2, class: "frame" }), this.text(label, t.w / 2, 16, "name middle"));
    g.append(s("title", null, moves.slice(0, 12).map((i) => { const m = plan.moves[i]; return `${m.gradient ? "gradient of " : ""}${shown(plan.tensors[m.tensor].name, 120)}: ${plan.moveText(m)}, ${bytes(plan.moveBytes(m))}, ${plan.time(m.units)}`; }).join("\n") + (moves.length > 12 ? `\nand ${moves.length - 12} more` : "")));
    g.setAttribute("aria-label", `redistribution: ${label}`);
    this.layers.boxes.append(g);
  }
  pillText(moves, width) {
    const plan = this.plan, font = `11px ${FONT}`;
    const rows = moves.map((i) => plan.moves[i]);
    const spent = rows.reduce((a, m) => a + m.units, 0);
    const time = spent ? plan.time(spent) : "free";
    const size = bytes(rows.reduce((a, m) => a + plan.moveBytes(m), 0));
    const way = rows.some((m) => m.gradient) ? (rows.every((m) => m.gradient) ? "↑ " : "↕ ") : "";
    const kinds = [...new Set(rows.flatMap((m) => m.steps.map((t) => t.kind.replaceAll("_", "-"))))];
    const kind = rows.length > 1 ? (kinds.length > 1 ? `${rows.length} moves` : `${rows.length} × ${kinds[0] || "slice"}`) : kinds.join(" + ") || "slice";
    for (const text of [`${way}${kind} ${size} · ${time}`, `${way}${kind} · ${time}`]) if (fit(text, width, font) === text) return text;
    return fit(`${way}${kinds.length > 1 ? `${kinds.length} steps` : kind} · ${time}`, width, font);
  }
  hover(e) {
    const g = e.target.closest(".box");
    if (!g || g.querySelector(":scope > title")) return;
    const n = this.plan.nodes[+g.dataset.node];
    const lines = n.kind === "operator" ? [shown(this.plan.operators[n.i].name), this.plan.splitText(this.plan.operators[n.i].letters)] : [shown(n.title), n.detail];
    g.prepend(s("title", null, lines.join("\n")));
  }
  clicked(e) {
    if (this.dragged) return;
    const pill = e.target.closest(".pill");
    if (pill) return this.select(this.ofPill(pill));
    const box = e.target.closest(".box");
    if (!box) return;
    const i = +box.dataset.node;
    if (e.target.closest(".toggle") || (this.plan.nodes[i].children.length && !this.open.has(i))) { this.toggle(i); }
    this.select({ node: i });
  }
  ofPill(pill) {
    const group = +pill.dataset.group, k = +pill.dataset.pill;
    const [moves, source, targets] = this.plan.data.levels[group][1][k];
    return { moves, source, targets, pill: `${group}/${k}` };
  }
  key(e) {
    const g = e.target.closest(".box, .pill");
    if (!g) return;
    if (e.key === "Enter" || e.key === " ") {
      e.preventDefault();
      if (g.classList.contains("pill")) this.select(this.ofPill(g));
      else { const i = +g.dataset.node; if (this.plan.nodes[i].children.length) this.toggle(i); this.select({ node: i }); }
      return;
    }
    const all = [...this.svg.querySelectorAll(".box, .pill")];
    const here = g.getBoundingClientRect();
    const step = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] }[e.key];
    if (!step) return;
    e.preventDefault();
    let best = null, least = Infinity;
    for (const other of all) {
      if (other === g) continue;
      const r = other.getBoundingClientRect();
      const dx = (r.left + r.right - here.left - here.right) / 2, dy = r.top - here.top;
      const along = dx * step[0] + dy * step[1], across = Math.abs(dx * step[1]) + Math.abs(dy * step[0]);
      if (along > 4 && along + 2 * across < least) { least = along + 2 * across; best = other; }
    }
    best?.focus();
  }
  select(what, quiet) {
    this.chosen = what;
    this.paint();
    if (!quiet) this.options.onselect?.(what);
  }
  /** Lines from the chosen operator to its neighbours, wherever these are drawn. */
  paint() {
    this.svg.querySelectorAll(".chosen").forEach((g) => g.classList.remove("chosen"));
    this.layers.over.replaceChildren();
    const what = this.chosen;
    if (!what) return;
    if (what.pill) {
      const [group, k] = what.pill.split("/");
      this.svg.querySelector(`[data-group="${group}"][data-pill="${k}"]`)?.classList.add("chosen");
      return;
    }
    const g = this.svg.querySelector(`[data-node="${what.node}"]`);
    if (!g) return;
    g.classList.add("chosen");
    const n = this.plan.nodes[what.node];
    if (n.kind !== "operator") return;
    const o = this.plan.operators[n.i], me = this.boxes.get(what.node);
    const seen = (i) => { for (let k = i; k >= 0; k = this.plan.nodes[k].parent) if (this.boxes.has(k) && !(this.open.has(k) && k !== i)) return this.boxes.get(k); return null; };
    const line = (a, b) => {
      if (!a || !b || a === b) return;
      const x1 = a.x + a.w / 2, y1 = a.y + a.h, x2 = b.x + b.w / 2, y2 = b.y;
      const bend = Math.max(16, Math.min(90, Math.abs(y2 - y1) / 2));
      this.layers.over.append(s("path", { d: `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`, class: "edge chosen", "marker-end": "url(#tip-chosen)" }));
    };
    for (const t of new Set(o.inputs)) if (t >= 0 && this.plan.tensors[t].producer >= 0) line(seen(this.plan.tensors[t].producer), me);
    const readers = new Set(o.outputs.filter((t) => t >= 0).flatMap((t) => this.plan.tensors[t].readers.map(([r]) => r)));
    [...readers].slice(0, 60).forEach((r) => line(me, seen(r)));
  }
}
