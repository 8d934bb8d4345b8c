// The graph: nested boxes that open, scroll and are chosen.  `Placing` says where they stand, `Boxes` how they look.

const WHOLE = 1500; // boxes and lines that are drawn at once; of more, those in sight and around it
const READ = 0.32; // the scale below which no word can be read

class Graph {
  /** options: onselect({node} | {moves, source, targets}), onview({scale, left, top}), onopen(node, open) */
  constructor(plan, options = {}) {
    Object.assign(this, { plan, options, open: new Set([plan.root]), scale: 1, boxes: new Map(), marks: new Map(), chosen: null, colours: "split" });
    this.artist = new Boxes(this);
    this.svg = s("svg", { class: "graph", role: "group", "aria-label": "operators and what flows between them" });
    this.paper = h("div", { class: "paper", tabindex: "-1" }, this.svg);
    const tool = (text, call, name) => h("button", { type: "button", "aria-label": name, title: name, on: { click: call } }, text);
    this.tools = h("div", { class: "tools" },
      tool("+", () => this.zoom(1.25), "zoom in"), tool("−", () => this.zoom(0.8), "zoom out"), tool("Fit", () => this.fit(), "fit the whole graph"),
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
    this.paper.addEventListener("scroll", () => { this.sight(); this.told(); });
    new ResizeObserver(() => this.placed && this.sight()).observe(this.paper);
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
    this.sight();
  }
  /** Gives operators a class of their own (say, "changed"); groups with some of them get it as well. */
  mark(numbers, name) { this.marks.set(name, new Set(numbers)); this.render(); }
  /** What a device holds for a node's operators, or what they take of the objective: the figure in the box. */
  amount(n) {
    if (this.colours === "memory") return this.plan.held(n) ? bytes(this.plan.held(n)) : "";
    return n.units ? this.plan.time(n.units) : "";
  }
  share(n) { return this.colours === "memory" ? this.plan.held(n) / (this.plan.held(this.plan.nodes[this.plan.root]) || 1) : n.units ? this.plan.share(n.units) : 0; }
  /** From 0 to 1: how much of what the costliest box that is closed has; square roots, so that small ones differ. */
  heat(n) { return this.hottest ? Math.sqrt(this.share(n) / this.hottest) : 0; }
  paintBy(colours) { this.colours = colours; this.element.dataset.colours = colours; this.render(); }
  render() {
    const scroll = [this.paper.scrollLeft, this.paper.scrollTop];
    const placed = new Placing(this.plan, this.open, (n) => this.amount(n)).all();
    Object.assign(this, { placed, size: placed.size, drawn: new Map(), seen: null });
    this.boxes = new Map(placed.boxes.filter((b) => b.t.node !== undefined).map((b) => [b.t.node, { x: b.x, y: b.y, w: b.w, h: b.h }]));
    this.hottest = Math.max(0, ...placed.boxes.map((b) => (b.t.node === undefined || this.open.has(b.t.node) ? 0 : this.share(this.plan.nodes[b.t.node]))));
    this.layers = { ground: s("g", { class: "boxes" }), edges: s("g", { class: "edges" }), boxes: s("g", { class: "boxes" }), over: s("g", { class: "over" }) };
    this.svg.replaceChildren(this.artist.patterns(), this.layers.ground, this.layers.edges, this.layers.boxes, this.layers.over);
    this.resize();
    [this.paper.scrollLeft, this.paper.scrollTop] = scroll;
    this.sight();
    if (this.chosen) this.paint();
    this.options.ondraw?.();
  }
  /** Whether all is drawn at once: tests, printing and searching in the page find everything then. */
  get whole() { return this.everything || this.placed.boxes.length + this.placed.edges.length <= WHOLE; }
  /** Draws what is in sight, with as much around it again; what was drawn before and is far stays no longer. */
  sight() {
    const { scrollLeft, scrollTop, clientWidth, clientHeight } = this.paper, k = this.scale;
    const x = scrollLeft / k, y = scrollTop / k, w = clientWidth / k, hgt = clientHeight / k;
    const plainly = !this.whole && k < READ;
    const seen = this.seen;
    if (seen && seen.plainly === plainly && seen.k === k && (this.whole || (x >= seen.x && y >= seen.y && x + w <= seen.x + seen.w && y + hgt <= seen.y + seen.h))) return;
    const more = plainly ? 0.3 : 0.8;
    const area = { x: x - more * w, y: y - more * hgt, w: w * (1 + 2 * more), h: hgt * (1 + 2 * more), k, plainly };
    const within = (b) => this.whole || (b.x < area.x + area.w && b.x + b.w > area.x && b.y < area.y + area.h && b.y + b.h > area.y && (b.h * k > 2.5 || b.h < 3));
    if (!seen || seen.plainly !== plainly) { this.drawn.clear(); this.layers.ground.replaceChildren(); this.layers.boxes.replaceChildren(); this.layers.edges.replaceChildren(); }
    const wanted = new Set();
    for (const e of this.placed.edges) if (within(e) && (this.whole || e.h * k > 2)) { wanted.add(e.id); if (!this.drawn.has(e.id)) { const path = this.artist.edge(e); this.drawn.set(e.id, path); this.layers.edges.append(path); } }
    for (const [k, b] of this.placed.boxes.entries()) if (within(b)) { wanted.add(b.id); if (!this.drawn.has(b.id)) this.drawn.set(b.id, this.drawBox(b, k, plainly)); }
    const focused = document.activeElement;
    for (const [id, element] of this.drawn) if (!wanted.has(id) && element !== focused) { element.remove(); this.drawn.delete(id); }
    this.seen = area;
    if (seen && this.chosen) this.paint();
  }
  /** Boxes that are open lie below the lines between what is in them, outer ones below inner ones. */
  drawBox(b, number, plainly) {
    if (b.t.pill) this.pill(b.t, b.x, b.y, b.group, plainly);
    else this.box(b.t, b.x, b.y, plainly);
    const g = this.layers.boxes.lastChild;
    if (!b.t.items) return g;
    g.number = number;
    this.layers.ground.insertBefore(g, [...this.layers.ground.children].find((other) => other.number > number) || null);
    return g;
  }
  box(t, x, y, plainly) { const g = this.artist.box(t, x, y, plainly); this.layers.boxes.append(g); return g; }
  pill(t, x, y, group, plainly) { const g = this.artist.pill(t, x, y, group, plainly); this.layers.boxes.append(g); return g; }
  resize() {
    const [w, hgt] = this.size;
    this.svg.setAttribute("viewBox", `0 0 ${w} ${hgt}`);
    this.svg.setAttribute("width", Math.max(1, Math.round(w * this.scale)));
    this.svg.setAttribute("height", Math.max(1, Math.round(hgt * this.scale)));
    this.svg.classList.toggle("far", this.scale < READ);
    this.sight();
  }
  zoom(factor, atX = this.paper.clientWidth / 2, atY = this.paper.clientHeight / 2) {
    const margin = this.margins();
    const x = (this.paper.scrollLeft + atX - margin[0]) / this.scale, y = (this.paper.scrollTop + atY - margin[1]) / this.scale;
    this.scale = Math.min(3, Math.max(Math.min(0.08, this.wholeScale()), this.scale * factor));
    this.resize();
    const now = this.margins();
    this.paper.scrollLeft = x * this.scale + now[0] - atX;
    this.paper.scrollTop = y * this.scale + now[1] - atY;
    this.sight();
    this.told();
  }
  /** Of a graph that is smaller than its paper: what is free to its left and above it. */
  margins() { return [this.paper.clientWidth, this.paper.clientHeight].map((room, k) => Math.max(0, (room - this.size[k] * this.scale) / 2)); }
  /** The scale at which nothing is cut off. */
  wholeScale() { return Math.min(1, (this.paper.clientWidth - 6) / this.size[0], (this.paper.clientHeight - 6) / this.size[1]); }
  fit() {
    if (this.paper.clientWidth < 10) return;
    this.element.style.removeProperty("height");
    this.scale = Math.max(0.001, this.wholeScale());
    // Where the panel stands below the graph, a small graph leaves no empty paper above it.
    if (this.options.shrink?.()) this.element.style.setProperty("height", `${Math.max(140, Math.min(this.element.clientHeight, Math.ceil(this.size[1] * this.scale) + 14))}px`);
    this.resize();
    this.told();
  }
  /** Opens, level by level, the boxes with which the whole graph can still be read. */
  openFitting(least) {
    this.open = new Set([this.plan.root]);
    const scale = () => { this.size = new Placing(this.plan, this.open, (n) => this.amount(n)).all().size; return this.wholeScale(); };
    for (let level = [this.plan.root]; level.length; ) {
      const next = [];
      for (const i of level) for (const c of this.plan.nodes[i].children) {
        const n = this.plan.nodes[c];
        if (!n.children.length || n.kind === "pile" || n.children.length > 40) continue;
        this.open.add(c);
        if (scale() >= least) next.push(c);
        else this.open.delete(c);
      }
      level = next;
    }
    this.render();
    this.fit();
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
