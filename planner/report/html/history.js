// How the best that was found and the bound below it moved while the search ran.

class History extends Chart {
  /** moments: [{seconds, best_s, bound_s}], in order; `end`: seconds of the search; `what` the figures are of. */
  constructor(moments, end, what) {
    const last = moments[moments.length - 1];
    super(`${what} over the time of the search: from ${seconds(moments[0].best_s)} after ${seconds(moments[0].seconds)} to ${seconds(last.best_s)}${last.bound_s ? `, no less than ${seconds(last.bound_s)}` : ""}`, 210, 52);
    Object.assign(this, { moments, end: Math.max(end, last.seconds) || 1, what });
    this.tip = h("p", { class: "chart-tip quiet", "aria-live": "polite" }, this.told(last, this.end));
    this.element = h("div", { class: "timeline" }, this.tip, this.canvas,
      h("ul", { class: "legend" }, h("li", null, h("span", { class: "line-key plan", "aria-hidden": "true" }), "best so far"), moments.some((m) => m.bound_s) && h("li", null, h("span", { class: "line-key bound", "aria-hidden": "true" }), "lower bound")));
  }
  told(m, t) {
    const gap = m.bound_s ? `, bound ${seconds(m.bound_s)}, gap ${(100 * Math.max(0, 1 - m.bound_s / m.best_s)).toFixed(2)}\u00a0%` : "";
    return `After ${seconds(t)}: best ${seconds(m.best_s)}${gap}`;
  }
  say(e) {
    const t = ((e.offsetX - this.left) / (this.canvas.clientWidth - this.left - 8)) * this.end;
    const m = this.moments.findLast((x) => x.seconds <= t);
    this.tip.textContent = m ? this.told(m, Math.min(t, this.end)) : `After ${seconds(Math.max(0, t))}: nothing was found yet`;
  }
  draw() {
    const c = this.begin();
    if (!c) return;
    const { width, height, colour, moments, end } = this;
    const last = moments[moments.length - 1], values = moments.flatMap((m) => [m.best_s, m.bound_s || m.best_s]);
    // A first plan that is far off would press all others together: it begins above the picture.
    const high = Math.min(Math.max(...values), Math.max(1.5 * last.best_s, last.bound_s || 0)), least = Math.min(...values);
    const span = Math.max(high - least, 0.04 * high); // what is nearly equal is drawn so
    const low = least > 0.5 * high ? least - 0.25 * span : 0, top = low + Math.max(high - low, span) * 1.08;
    const x = (t) => this.left + ((width - this.left - 8) * t) / end, y = (v) => 22 + (height - 64) * (1 - (Math.min(Math.max(v, low), top) - low) / (top - low || 1));
    const [unit, size] = unitOf(SECONDS, top), [until, each] = unitOf(SECONDS, end);
    this.rows(c, this.ticks(low, top, size, 4), y, (v) => four(v / size));
    this.columns(c, this.ticks(0, end, each, width > 560 ? 8 : 4), x, (t) => four(t / each));
    this.titles(c, `${this.what} (${unit})`, `time of the search (${until})`);
    const steps = (of) => {
      const known = moments.filter((m) => of(m)), out = [];
      known.forEach((m, k) => { if (k) out.push([x(m.seconds), y(of(known[k - 1]))]); out.push([x(m.seconds), y(of(m))]); });
      if (known.length) out.push([x(end), y(of(known[known.length - 1]))]);
      return out;
    };
    const line = (points, name, dashes) => {
      c.strokeStyle = colour(name);
      c.lineWidth = 2;
      c.setLineDash(dashes);
      c.beginPath();
      points.forEach(([a, b], k) => (k ? c.lineTo(a, b) : c.moveTo(a, b)));
      c.stroke();
      c.setLineDash([]);
      c.lineWidth = 1;
    };
    const best = steps((m) => m.best_s), bound = steps((m) => m.bound_s);
    line(bound, "moved", [6, 3]);
    line(best, "link", []);
    c.fillStyle = colour("link");
    for (const m of moments) { c.beginPath(); c.arc(x(m.seconds), y(m.best_s), 3, 0, 7); c.fill(); }
  }
}

/** Charts of what the record of the search has; a word where nothing moved. */
function historySection(plan) {
  const found = plan.report.history;
  if (!found) return null;
  const charts = [["steps", "step", "Step, where all layers are treated alike"], ["objectives", "objective", "Objective, where operators are laid out one by one"]];
  const drawn = charts.flatMap(([key, what, title]) => {
    const moments = found[key], moved = new Set(moments.map((m) => `${m.best_s} ${m.bound_s}`)).size > 1;
    return moved && !(key === "steps" && new Set(moments.map((m) => m.best_s)).size < 2 && found.objectives.length) ? [h("div", null, h("h3", null, title), new History(moments, found.seconds, what).element)] : [];
  });
  const rows = charts.flatMap(([key, what]) => found[key].map((m) => [what, seconds(m.seconds), seconds(m.best_s), m.bound_s === null ? "–" : seconds(m.bound_s)]));
  const all = rows.length ? h("details", null, h("summary", null, "As a table"), table([["of the", ""], ["after", "n"], ["best", "n"], ["lower bound", "n"]], rows)) : null;
  return section("history", "The search over time", h("p", { class: "quiet" }, `The search took ${seconds(found.seconds)}.${drawn.length ? " A bound is of what was searched by then." : " The first plan that was found is the answer."}`), h("div", { class: drawn.length > 1 ? "charts" : null }, drawn), all);
}
