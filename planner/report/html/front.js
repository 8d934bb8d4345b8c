// Step time and memory of what the search has found, and the front of what nothing beats in both.

/** Places from `first` to `last`, in pixels, for figures from `least` to `most`; logarithmic where they are more than
 * `apart` times apart. */
function scaleOf(least, most, apart, first, last) {
  const far = least > 0 && most > apart * least;
  const low = far ? least / 1.15 : least > 0.6 * most ? Math.max(0, least - 0.3 * Math.max(most - least, 0.04 * most)) : 0;
  const high = far ? most * 1.15 : Math.max(most + 0.1 * (most - low), low + 0.04 * most), of = far ? Math.log : (v) => v;
  return { low, high, far, at: (v) => first + ((last - first) * (of(v) - of(low))) / (of(high) - of(low) || 1) };
}

class Front extends Chart {
  constructor(points, limit) {
    const own = points.find((p) => p.own);
    super(`step over memory per device of ${count(points.length)} plans and configurations, of which nothing beats ${points.filter((p) => p.best).length} in both${own ? `; this plan: ${seconds(own.step_time_s)}, ${bytes(own.peak_memory_bytes)}` : ""}`, 270, 52);
    Object.assign(this, { points, limit });
    this.idle = own ? `This plan: ${own.parallelism}: ${seconds(own.step_time_s)}, ${bytes(own.peak_memory_bytes)}` : "Point at the picture to read a plan.";
    this.tip = h("p", { class: "chart-tip quiet", "aria-live": "polite" }, this.idle);
    const key = (name, text, there) => there && h("li", null, h("span", { class: `dot-key ${name}`, "aria-hidden": "true" }), text);
    this.element = h("div", { class: "timeline" }, this.tip, this.canvas,
      h("ul", { class: "legend" }, key("plan", "this plan", own), key("best", "nothing beats it in both", points.some((p) => p.best && !p.own)), key("met", "also met", points.some((p) => !p.best && !p.own))));
    this.canvas.addEventListener("pointerleave", () => { this.tip.textContent = this.idle; });
  }
  say(e) {
    if (!this.at) return;
    const far = (p) => Math.hypot(this.at.x(p.peak_memory_bytes) - e.offsetX, this.at.y(p.step_time_s) - e.offsetY);
    const p = this.points.reduce((a, b) => (far(b) < far(a) ? b : a));
    this.tip.textContent = `${shown(p.parallelism, 200)}: ${seconds(p.step_time_s)}, ${bytes(p.peak_memory_bytes)}`;
  }
  draw() {
    const c = this.begin();
    if (!c) return;
    const { width, height, colour, points, limit } = this;
    const held = points.map((p) => p.peak_memory_bytes), steps = points.map((p) => p.step_time_s);
    const most = Math.max(...held), near = limit && limit < 1.6 * most;
    const across = scaleOf(Math.min(...held), near ? Math.max(most, limit) : most, 8, this.left + 8, width - 12);
    const upward = scaleOf(Math.min(...steps), Math.max(...steps), 3, height - 48, 26);
    const x = across.at, y = upward.at;
    this.at = { x, y };
    const [unit, size] = unitOf(SECONDS, upward.high), [of, each] = unitOf(BYTES, across.high);
    this.rows(c, (upward.far ? this.decades : this.ticks).call(this, upward.low, upward.high, size, 6), y, (v) => four(v / size));
    this.columns(c, (across.far ? this.decades : this.ticks).call(this, across.low, across.high, each, width > 560 ? 10 : 7), x, (v) => four(v / each));
    this.titles(c, `step (${unit})${upward.far ? ", logarithmic" : ""}`, `memory per device (${of})${across.far ? ", logarithmic" : ""}`);
    const best = points.filter((p) => p.best).sort((a, b) => a.peak_memory_bytes - b.peak_memory_bytes);
    c.strokeStyle = colour("quiet");
    c.setLineDash([2, 3]);
    c.beginPath();
    best.forEach((p, k) => { const [a, b] = [x(p.peak_memory_bytes), y(p.step_time_s)]; if (k) { c.lineTo(a, y(best[k - 1].step_time_s)); c.lineTo(a, b); } else { c.moveTo(a, 22); c.lineTo(a, b); } });
    if (best.length) c.lineTo(width, y(best[best.length - 1].step_time_s));
    c.stroke();
    c.setLineDash([5, 4]);
    if (near) {
      c.strokeStyle = colour("bad");
      c.beginPath();
      c.moveTo(x(limit), 22);
      c.lineTo(x(limit), height - 42);
      c.stroke();
      this.note(c, `limit ${bytes(limit)}`, x(limit) - 6, 30, "bad");
    }
    c.setLineDash([]);
    for (const p of [...points].sort((a, b) => a.own - b.own || a.best - b.best)) {
      c.beginPath();
      c.arc(x(p.peak_memory_bytes), y(p.step_time_s), p.own ? 6 : 4, 0, 7);
      c.fillStyle = p.own ? colour("link") : colour("paper");
      c.strokeStyle = p.own || p.best ? colour("link") : colour("quiet");
      c.lineWidth = 2;
      c.fill();
      c.stroke();
      c.lineWidth = 1;
    }
  }
}

function frontSection(plan) {
  const points = plan.report.front;
  if (!points) return null;
  const front = points.some((p) => p.kind === "front");
  return section("front", "Step time and memory", h("p", { class: "quiet" }, front ? "What less memory costs: of every configuration on the dotted line, nothing that was found is faster with as little memory." : "The configurations that the search kept; planner search --front finds what less memory costs."),
    new Front(points, plan.report.memory_limit_bytes).element,
    h("details", null, h("summary", null, "As a table"), table([["configuration", "wrap"], ["step", "n"], ["memory per device", "n"], ["", ""]], points.map((p) => [shown(p.parallelism, 200), seconds(p.step_time_s), bytes(p.peak_memory_bytes), p.own ? h("b", null, "this plan") : p.best ? "nothing beats it in both" : ""]))));
}

/** How the search went and what it found, beside each other where that is two pictures. */
function foundSections(plan) {
  const found = [historySection(plan), frontSection(plan)].filter(Boolean);
  return found.length === 2 && !found[0].querySelector(".charts") ? [h("div", { class: "pair" }, found)] : found;
}
