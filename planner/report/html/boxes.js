// What one box, one set of redistributions or one line of the graph looks like.

/** Colours of the graph: by how operators are split, by the time they take, or by the bytes that a device holds. */
const COLOURS = { split: "split", time: "time", memory: "memory" };

class Boxes {
  /** `graph`: what is open, marked and coloured how. */
  constructor(graph) { Object.assign(this, { graph, plan: graph.plan }); }
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
  units([moves]) { return moves.reduce((a, i) => a + this.plan.moves[i].units, 0); }
  weight(pill) { return this.units(pill) ? (1.5 + 4.5 * Math.min(1, Math.sqrt(this.plan.share(this.units(pill)) * 12))).toFixed(1) : undefined; }
  text(text, x, y, name) { return s("text", { x: typeof x === "number" ? x.toFixed(1) : x, y, class: name }, text); }
  edge(e) {
    const costs = e.moved && this.units(e.moved), tip = `url(#${costs ? "tip-moved" : "tip"})`;
    return s("path", {
      d: e.d, class: `edge${e.moved ? (costs ? " moved" : " free") : ""}${e.reverse ? " back" : ""}`,
      "stroke-width": e.moved ? this.weight(e.moved) : undefined,
      "marker-end": !e.reverse && e.into ? tip : undefined, "marker-start": e.reverse && e.from ? tip : undefined,
    });
  }
  /** `plainly`: too small to be read, so that no word is drawn. */
  box(t, x, y, plainly) {
    const { plan, graph } = this;
    const n = plan.nodes[t.node], isOpen = graph.open.has(t.node);
    const marks = [...graph.marks].filter(([, set]) => n.operators.some((i) => set.has(i))).map(([name]) => name).join(" ");
    const heat = graph.colours === "split" || isOpen || n.kind === "input" ? null : graph.heat(n);
    const g = s("g", { class: `box ${n.kind}${isOpen ? " open" : ""}${heat === null ? "" : " heat"} ${marks}`, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, tabindex: "0", role: "button", data: { node: t.node },
      "aria-expanded": n.children.length ? String(isOpen) : undefined, "aria-label": this.said(n), style: heat === null ? undefined : { "--heat": `${(100 * heat).toFixed(1)}%` } });
    if (n.kind === "pile" && !isOpen && !plainly) g.append(s("rect", { x: 7, y: 7, width: t.w, height: t.h, rx: 7, class: "frame under" }), s("rect", { x: 3.5, y: 3.5, width: t.w, height: t.h, rx: 7, class: "frame under" }));
    g.append(s("rect", { width: t.w, height: t.h, rx: n.kind === "input" ? t.h / 2 : 7, class: "frame" }));
    // What is in an open box may be too small to be drawn: then the box itself says how that is split.
    const alone = plainly && isOpen && graph.scale * 46 < 2.5;
    const tall = isOpen && !alone ? HEAD - 10 : t.h - 10, band = alone ? t.w / plan.axes.length - 14 : 9;
    if (n.kind !== "input" && graph.colours === "split" && (!(plainly && isOpen) || alone)) plan.axes.forEach((axis, k) => {
      let from = 5;
      for (const [letter, share] of plan.mixture(n, k)) {
        g.append(s("rect", { x: 6 + k * (band + 2), y: from.toFixed(1), width: band, height: Math.max(0.5, share * tall).toFixed(1), fill: `url(#p-${letter})`, class: "swatch" }));
        from += share * tall;
      }
    });
    if (plainly) return g;
    const amount = graph.amount(n);
    const said = t.said || words(plan, n, amount);
    if (n.kind === "input") { g.append(this.text(said.title, t.w / 2, 18, "name middle")); return g; }
    const group = n.kind !== "operator", button = group ? 20 : 0, left = said.left;
    g.append(this.text(said.title, left, 19, "title"));
    if (said.detail) g.append(this.text(said.detail, left + widthOf(said.title, BOLD) + 6, 19, "detail"));
    if (amount) g.append(this.text(amount, t.w - 8 - button, 19, "cost"));
    if (group) g.append(s("g", { class: "toggle" }, s("rect", { x: t.w - 24, y: 7, width: 16, height: 16, rx: 4 }), s("path", { d: isOpen ? `M${t.w - 20} 15h8` : `M${t.w - 20} 15h8M${t.w - 16} 11v8` })));
    if (isOpen) return g;
    if (!group) {
      g.append(this.text(said.split, left, 36, "detail"));
      if (said.badge) g.append(this.text(said.badge, t.w - 8, 36, "badge"));
      return g;
    }
    const wide = t.w - left - 8, share = graph.share(n);
    g.append(this.text(said.lines[0], left, 36, n.alike ? "detail alike" : "detail"));
    if (share) g.append(s("rect", { x: left, y: 46, width: wide - 44, height: 6, rx: 3, class: "rail" }), s("rect", { x: left, y: 46, width: Math.max(1, Math.min(1, share) * (wide - 44)).toFixed(1), height: 6, rx: 3, class: "amount" }), this.text(percent(share), t.w - 8, 53, "cost small"));
    else g.append(this.text(fitList(this.mixed(n), wide, SMALL), left, 53, "detail"));
    return g;
  }
  mixed(n) { return this.plan.axes.map((a, k) => `${a.name} ${this.plan.mixture(n, k).sort((p, q) => q[1] - p[1]).slice(0, 2).map(([l]) => this.plan.splits.get(l).name).join("/")}`); }
  said(n) {
    const cost = this.graph.amount(n) ? `, ${this.graph.amount(n)}` : "";
    if (n.kind === "operator") return `${n.title} ${shown(n.detail, 80)}, ${this.plan.splitText(this.plan.operators[n.i].letters)}${cost}`;
    return `${n.kind} ${shown(n.title, 80)}, ${n.detail}${n.alike ? `, ${n.alike} alike` : ""}${cost}`;
  }
  pill(t, x, y, group, plainly) {
    const [moves] = t.pill, plan = this.plan;
    const g = s("g", { class: this.units(t.pill) ? "pill" : "pill free", transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})`, tabindex: "0", role: "button", data: { group, pill: t.k }, "aria-label": `redistribution: ${t.label}` });
    g.append(s("rect", { width: t.w, height: t.h, rx: t.h / 2, class: "frame" }));
    if (plainly) return g;
    g.append(this.text(t.label, t.w / 2, 16, "name middle"));
    g.append(s("title", null, moves.slice(0, 12).map((i) => { const m = plan.moves[i]; return `${m.gradient ? "gradient of " : ""}${shown(plan.tensors[m.tensor].name, 120)}: ${plan.moveText(m)}, ${bytes(plan.moveBytes(m))}, ${plan.time(m.units)}`; }).join("\n") + (moves.length > 12 ? `\nand ${moves.length - 12} more` : "")));
    return g;
  }
}
