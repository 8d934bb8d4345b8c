// What a device holds over the step, on a canvas: what is there throughout below, what comes and goes above.

class Held extends Chart {
  /** layers: [{label, key, at(t)} | {label, key, points: [[t, bytes]]} | {label, key, size}], from below; times in seconds. */
  constructor(layers, end, peak, limit) {
    super(`memory over time: ${layers.map((l) => l.label).join(", ")}; ${bytes(peak)} at the peak`);
    Object.assign(this, { layers, end: end || 1, peak, limit });
    this.tip = h("p", { class: "held-tip quiet", "aria-live": "polite" }, `The peak is ${bytes(peak)}. Point at the picture to read a moment.`);
    this.element = h("div", { class: "timeline" }, this.tip, this.canvas,
      h("ul", { class: "legend" }, [...layers].reverse().map((l) => h("li", null, h("span", { class: `key k-${l.key}`, "aria-hidden": "true" }), l.label))));
  }
  value(layer, t) {
    if (layer.size !== undefined) return layer.size;
    const p = layer.points;
    let low = 0, high = p.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (p[middle][0] <= t) low = middle; else high = middle - 1; }
    return p[low][0] <= t ? p[low][1] : 0;
  }
  say(e) {
    const t = ((e.offsetX - this.left) / (this.canvas.clientWidth - this.left)) * this.end;
    if (t < 0 || t > this.end) return;
    const sizes = this.layers.map((l) => [l.label, this.value(l, t)]);
    this.tip.textContent = `After ${seconds(t)}: ${bytes(Math.round(sizes.reduce((a, [, v]) => a + v, 0)))}, of which ${sizes.filter(([, v]) => v >= 1).map(([name, v]) => `${name} ${bytes(Math.round(v))}`).join(", ")}`;
  }
  draw() {
    const c = this.begin();
    if (!c) return;
    const { width, height, colour } = this;
    const near = this.limit && this.limit < 2.2 * this.peak;
    const top = 1.06 * (near ? Math.max(this.limit, this.peak) : this.peak), room = height - 30;
    const x = (t) => this.left + ((width - this.left - 2) * t) / this.end, y = (v) => 8 + room * (1 - v / top);
    this.rows(c, this.ticks(0, top, unitOf(BYTES, top)[1], 4), y, bytes);
    c.textAlign = "center";
    const ticks = width > 560 ? 4 : 2;
    for (let k = 0; k <= ticks; k++) { c.textAlign = k === ticks ? "right" : k ? "center" : "left"; c.fillText(seconds((this.end * k) / ticks), x((this.end * k) / ticks), height - 8); }
    const times = [...new Set([0, ...this.layers.flatMap((l) => (l.points ? l.points.map((p) => p[0]) : [])), this.end])].sort((a, b) => a - b);
    let below = times.map(() => 0);
    for (const layer of this.layers) {
      const above = times.map((t, k) => below[k] + this.value(layer, t));
      c.beginPath();
      times.forEach((t, k) => { if (k) c.lineTo(x(t), y(above[k - 1])); c.lineTo(x(t), y(above[k])); });
      for (let k = times.length - 1; k >= 0; k--) { c.lineTo(x(times[k]), y(below[k])); if (k) c.lineTo(x(times[k]), y(below[k - 1])); }
      c.closePath();
      c.fillStyle = colour(`k-${layer.key}`) || "#888";
      c.fill();
      below = above;
    }
    const line = (v, text, name) => {
      c.strokeStyle = c.fillStyle = colour(name);
      c.setLineDash([5, 4]);
      c.beginPath();
      c.moveTo(this.left, y(v));
      c.lineTo(width, y(v));
      c.stroke();
      c.setLineDash([]);
      this.note(c, text, width - 6, y(v) < 20 ? y(v) + 9 : y(v) - 8, name);
    };
    line(this.peak, `peak ${bytes(this.peak)}`, "text");
    if (near) line(this.limit, `limit ${bytes(this.limit)}`, "bad");
  }
}

function heldSection(plan) {
  const { held, memory_limit_bytes: limit, stages, cost } = plan.report;
  if (held.step) {
    const names = new Map(plan.report.memory.map((m) => [m.kind, m.label]));
    const layers = Object.entries(held.step.throughout).filter(([, v]) => v).map(([kind, size]) => ({ label: names.get(kind) || kind, key: `m-${kind}`, size }));
    layers.push({ label: "activations", key: "m-activations", points: held.step.points });
    if (held.step.transient) layers.push({ label: "what comes and goes, at most", key: "m-transient", size: held.step.transient });
    return section("held", "Memory over the step", h("p", { class: "quiet" }, "What is there throughout and the peak are the plan's; activations wait from an operator's forward run to its backward run, each with its share by the bytes of results."),
      new Held(layers, Math.max(...held.step.points.map((p) => p[0])), cost.peak_memory_bytes, limit).element);
  }
  if (!held.stages.length) return null;
  const place = h("div", null);
  const end = Math.max(...held.stages.flatMap((s) => s.points.map((p) => p[0])));
  const draw = (k) => {
    const s = held.stages[k], most = Math.max(1, ...s.points.map((p) => p[1])), rest = s.peak - s.parameters;
    place.replaceChildren(h("p", { class: "quiet" }, `${plural(most, "micro-batch").replace("batchs", "batches")} in flight at most. Weights, gradients and the optimizer's state are counted by their layouts; the rest of the peak is divided among the micro-batches in flight.`),
      new Held([{ label: "weights, gradients, optimizer state", key: "m-weights", size: s.parameters }, { label: "activations of micro-batches in flight, and what comes and goes", key: "m-activations", points: s.points.map(([t, n]) => [t, (rest * n) / most]) }], end, s.peak, limit).element);
  };
  const select = h("select", { on: { change: (e) => draw(+e.target.value) } }, stages.map((st, k) => h("option", { value: k }, `stage ${k}, ${bytes(st.peak_memory_bytes)} at the peak`)));
  draw(0);
  return section("held", "Memory over the step", h("label", { class: "choice" }, "stage ", select), place);
}
