// Where every box of the graph stands.  Rows and places of the closed boxes come from planner/report/layout.py; where a
// box is open, or wider than that file took it to be, its row is spread again by the same rule.

const ROW_GAP = 22, GAP = 18, PAD = 14, HEAD = 34, BEND = 6;
const WIDEST = 440; // of a box, in pixels: names of modules fit, and names without end are cut
const BOLD = `600 12.5px ${FONT}`, SMALL = `11px ${FONT}`, DETAIL = `12px ${FONT}`;

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

/** What is written in a closed box, and how wide that makes it.  `amount`: the figure in its corner. */
function words(plan, n, amount) {
  const left = plan.axes.length * 11 + 14, corner = amount ? widthOf(amount, `11.5px ${FONT}`) + 10 : 0;
  const most = WIDEST - left - 8;
  if (n.kind === "input") {
    const title = fit(shown(n.title), WIDEST - 24, SMALL);
    return { title, w: widthOf(title, SMALL) + 26 };
  }
  if (n.kind !== "operator") {
    const title = fit(shown(n.title, 200), most - corner - 26, BOLD);
    const lines = [`${n.alike ? `× ${n.alike} alike · ` : ""}${n.detail}`];
    return { title, lines, left, w: left + Math.max(widthOf(title, BOLD) + corner + 32, widthOf(lines[0], SMALL) + 10) };
  }
  const o = plan.operators[n.i];
  const title = fit(shown(n.title, 80), most - corner, BOLD);
  const room = most - corner - widthOf(title, BOLD) - 6;
  const said = n.detail.toLowerCase() === n.title.toLowerCase() ? "" : shown(n.detail, 200);
  const detail = room > 40 ? fit(said, room, DETAIL) : "";
  const waits = o.waits.reduce((a, i) => a + plan.moves[i].units, 0);
  const badge = waits ? `⇅ ${plan.time(waits)}` : "";
  const aside = badge ? widthOf(badge, SMALL) + 12 : 0;
  const split = fitList(plan.splitList(o.letters, true), most - aside, SMALL);
  const first = widthOf(title, BOLD) + (detail ? 6 + widthOf(detail, DETAIL) : 0) + corner;
  return { title, detail, badge, split, left, w: left + 12 + Math.max(first, widthOf(split, SMALL) + aside) };
}

/** What is written on a set of redistributions. */
function pillWords(plan, moves) {
  const rows = moves.map((i) => plan.moves[i]);
  const spent = rows.reduce((a, m) => a + m.units, 0);
  const size = bytes(rows.reduce((a, m) => a + plan.moveBytes(m), 0));
  const way = rows.some((m) => m.gradient) ? (rows.every((m) => m.gradient) ? "↑ " : "↕ ") : "";
  const kinds = [...new Set(rows.flatMap((m) => m.steps.map((t) => t.kind.replaceAll("_", "-"))))];
  const one = kinds.length > 2 ? `${kinds.length} steps` : kinds.join(" + ") || "slice";
  const kind = rows.length > 1 ? (kinds.length > 1 ? `${rows.length} moves` : `${rows.length} × ${kinds[0] || "slice"}`) : one;
  return `${way}${kind} ${size} · ${spent ? plan.time(spent) : "free"}`;
}

class Placing {
  /** `open`: nodes that are open; `amount(node)`: the figure in a box's corner. */
  constructor(plan, open, amount) { Object.assign(this, { plan, open, amount }); }
  measure(i) {
    const { plan, open } = this;
    const n = plan.nodes[i], sizes = plan.data.sizes;
    if (!open.has(i)) {
      const [least, high] = sizes[n.kind] || sizes.group;
      const said = words(plan, n, this.amount(n));
      return { node: i, w: Math.min(WIDEST, Math.max(n.kind === "input" ? 70 : least, said.w)), h: high, said };
    }
    const [members, pills, rows, x, segments, against] = plan.data.levels[i];
    const items = members.map((m) => this.measure(m));
    pills.forEach((pill, k) => { const label = pillWords(plan, pill[0]); items.push({ pill, k, label, w: Math.max(96, widthOf(label, SMALL) + 24), h: sizes.pill[1] }); });
    while (items.length < x.length) items.push({ w: BEND, h: 0 });
    let y = HEAD + PAD / 2;
    for (const row of rows) {
      const found = spread(row.map((k) => x[k]), row.map((k) => items[k].w));
      const tall = Math.max(0, ...row.map((k) => items[k].h));
      row.forEach((k, p) => { const item = items[k]; item.cx = found[p]; item.y = y; item.row = tall; });
      y += tall + (tall ? ROW_GAP : ROW_GAP / 2);
    }
    const left = Math.min(...items.map((t) => t.cx - t.w / 2)), right = Math.max(...items.map((t) => t.cx + t.w / 2));
    const least = i === plan.root ? 0 : Math.max(sizes.group[0], words(plan, n, this.amount(n)).w);
    const w = Math.max(right - left + 2 * PAD, least);
    const shift = (w - (right - left)) / 2 - left;
    for (const t of items) t.cx += shift;
    return { node: i, w, h: y - ROW_GAP + PAD, items, segments, against };
  }
  /** Everything that is to be drawn, from the outside in: boxes and pills with their corners, and lines between them. */
  all() {
    const top = this.measure(this.plan.root);
    const out = { size: [top.w, top.h - HEAD + PAD], boxes: [], edges: [] };
    this.inside(top, 0, PAD - HEAD, out);
    return out;
  }
  inside(group, x0, y0, out) {
    const n = group.items.length, back = new Set();
    for (let k = 0; k < group.against.length; k += 2) back.add(group.against[k] * n + group.against[k + 1]);
    for (let k = 0; k < group.segments.length; k += 2) {
      const a = group.items[group.segments[k]], b = group.items[group.segments[k + 1]];
      const x1 = x0 + a.cx, x2 = x0 + b.cx, y2 = y0 + b.y, floor = y0 + a.y + Math.max(a.row, a.h);
      const y1 = a.h ? y0 + a.y + a.h : y0 + a.y, bend = Math.max(8, (y2 - floor) / 2);
      out.edges.push({
        id: `${group.node}/${group.segments[k]}/${group.segments[k + 1]}`, x: Math.min(x1, x2) - 4, w: Math.abs(x1 - x2) + 8, y: y1, h: Math.max(1, y2 - y1),
        d: `M${x1} ${y1}V${floor}C${x1} ${floor + bend} ${x2} ${y2 - bend} ${x2} ${y2}`, moved: a.pill || b.pill,
        reverse: back.has(group.segments[k] * n + group.segments[k + 1]), into: b.h && !b.pill, from: a.h && !a.pill,
      });
    }
    for (const t of group.items) {
      const x = x0 + t.cx - t.w / 2, y = y0 + t.y;
      if (t.pill) out.boxes.push({ id: `${group.node}/${t.k}`, t, x, y, w: t.w, h: t.h, group: group.node });
      else if (t.node !== undefined) {
        out.boxes.push({ id: String(t.node), t, x, y, w: t.w, h: t.h, group: group.node });
        if (t.items) this.inside(t, x, y, out);
      }
    }
  }
}
