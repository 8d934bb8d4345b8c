// What a device holds over the step, on a canvas: what is there throughout below, what comes and goes above.

class Held {
  /** layers: [{label, key, at(t)} | {label, key, points: [[t, bytes]]} | {label, key, size}], from below; times in seconds. */
  constructor(layers, end, peak, limit) {
    Object.assign(this, { layers, end: end || 1, peak, limit });
    const parts = layers.map((l) => l.label).join(", ");
    this.canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": `memory over time: ${parts}; ${bytes(peak)} at the peak` });
    this.tip = h("p", { class: "held-tip quiet", "aria-live": "polite" }, `The peak is ${bytes(peak)}. Point at the picture to read a moment.`);
    this.element = h("div", { class: "timeline" }, this.tip, this.canvas,
      h("ul", { class: "legend" }, [...layers].reverse().map((l) => h("li", null, h("span", { class: `key k-${l.key}`, "aria-hidden": "true" }), l.label))));
    this.canvas.addEventListener("pointermove", (e) => this.say(e));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => this.draw());
  }
  value(layer, t) {
    if (layer.size !== undefined) return layer.size;
    const p = layer.points;
    let low = 0, high = p.length - 1;
    while (low < high) { const middle = (low + high + 1) >> 1; if (p[middle][0] <= t) low = middle; else high = middle - 1; }
    return p[low][0] <= t ? p[low][1] : 0;
  }
  say(e) {
    const t = ((e.offsetX - HELD_LEFT) / (this.canvas.clientWidth - HELD_LEFT)) * this.end;
    if (t < 0 || t > this.end) return;
    const sizes = this.layers.map((l) => [l.label, this.value(l, t)]);
    this.tip.textContent = `After ${seconds(t)}: ${bytes(Math.round(sizes.reduce((a, [, v]) => a + v, 0)))}, of which ${sizes.filter(([, v]) => v >= 1).map(([name, v]) => `${name} ${bytes(Math.round(v))}`).join(", ")}`;
  }
  draw() {
    const width = this.canvas.clientWidth, height = 200;
    if (!width) return;
    const ratio = Math.min(3, devicePixelRatio || 1), style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.canvas.style.setProperty("height", `${height}px`);
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(height * ratio) });
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = `11px ${FONT}`;
    c.textBaseline = "middle";
    const near = this.limit && this.limit < 2.2 * this.peak;
    const top = 1.06 * (near ? Math.max(this.limit, this.peak) : this.peak), room = height - 30;
    const x = (t) => HELD_LEFT + ((width - HELD_LEFT - 2) * t) / this.end, y = (v) => 8 + room * (1 - v / top);
    const unit = [2 ** 40, 2 ** 30, 2 ** 20, 2 ** 10, 1].find((u) => top >= u), raw = top / unit / 4, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((v) => v >= raw) * unit;
    for (let v = 0; v <= top; v += step) {
      c.fillStyle = colour("line");
      c.fillRect(HELD_LEFT, y(v), width - HELD_LEFT, 1);
      c.fillStyle = colour("quiet");
      c.textAlign = "right";
      c.fillText(bytes(v), HELD_LEFT - 6, Math.max(7, y(v)));
    }
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
      c.moveTo(HELD_LEFT, y(v));
      c.lineTo(width, y(v));
      c.stroke();
      c.setLineDash([]);
      c.textAlign = "right";
      const beside = y(v) < 20 ? y(v) + 9 : y(v) - 8;
      c.fillStyle = colour("paper");
      c.fillRect(width - c.measureText(text).width - 10, beside - 7, c.measureText(text).width + 8, 13);
      c.fillStyle = colour(name);
      c.fillText(text, width - 6, beside);
    };
    line(this.peak, `peak ${bytes(this.peak)}`, "text");
    if (near) line(this.limit, `limit ${bytes(this.limit)}`, "bad");
  }
}
const HELD_LEFT = 76;

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
