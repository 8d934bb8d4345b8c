// Events over time on a canvas: wheel with Ctrl, + and - zoom; drag and arrows move; a click chooses.

const labelOf = (e) => (typeof e.label === "function" ? e.label() : e.label);

class Timeline {
  /** lanes: [{name, events: [{begin, end, kind, label, id}]}], labels also as functions, times in seconds, events in order; `note`: said below the name. */
  constructor(lanes, end, choose, waits) {
    this.lanes = lanes;
    this.waits = waits; // between events nothing runs: that is a bubble

    this.end = end || 1;
    this.from = 0;
    this.to = this.end;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": `timeline of ${lanes.map((l) => `${l.name}: ${plural(l.events.length, "event")}`).join(", ")}; + and - zoom, arrows move` });
    this.tip = h("p", { class: "tip quiet", "aria-live": "polite" }, "Point at an event; + and − zoom, arrows or dragging move, a click chooses.");
    this.row = lanes.length > 8 ? 20 : 30;
    const zoom = (f) => () => this.zoom(f, 0.5);
    this.element = h("div", { class: "timeline" },
      h("div", { class: "tools" },
        h("button", { type: "button", on: { click: zoom(0.5) }, "aria-label": "zoom in" }, "+"),
        h("button", { type: "button", on: { click: zoom(2) }, "aria-label": "zoom out" }, "−"),
        h("button", { type: "button", on: { click: () => this.show(0, this.end) } }, "Whole step"), this.tip),
      this.canvas, this.key());
    this.canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      this.zoom(e.deltaY > 0 ? 1.25 : 0.8, this.part(e));
    }, { passive: false });
    let held = null;
    this.canvas.addEventListener("pointerdown", (e) => { held = { x: e.clientX, from: this.from, to: this.to, moved: false }; });
    window.addEventListener("pointerup", () => { setTimeout(() => { held = null; }); });
    this.canvas.addEventListener("pointermove", (e) => {
      if (held && e.buttons) {
        const by = ((held.x - e.clientX) / (this.canvas.clientWidth - this.left)) * (held.to - held.from);
        if (Math.abs(held.x - e.clientX) > 3) held.moved = true;
        const span = held.to - held.from;
        const from = Math.min(Math.max(0, held.from + by), this.end - span);
        this.show(from, from + span);
        return;
      }
      const found = this.at(e);
      this.canvas.classList.toggle("over", !!(found && found.id !== undefined));
      if (found) this.tip.textContent = `${labelOf(found)}: ${seconds(found.end - found.begin)}, from ${seconds(found.begin)}`;
    });
    this.canvas.addEventListener("click", (e) => {
      const found = this.at(e);
      if (found && found.id !== undefined && choose && !(held && held.moved)) choose(found.id);
    });
    this.canvas.addEventListener("keydown", (e) => {
      const span = this.to - this.from;
      if (e.key === "+" || e.key === "=") this.zoom(0.5, 0.5);
      else if (e.key === "-") this.zoom(2, 0.5);
      else if (e.key === "ArrowRight") this.show(Math.min(this.end - span, this.from + span / 5), Math.min(this.end, this.to + span / 5));
      else if (e.key === "ArrowLeft") { const from = Math.max(0, this.from - span / 5); this.show(from, from + span); }
      else if (e.key === "Home") this.show(0, this.end);
      else return;
      e.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => { this.colours = null; this.draw(); });
  }
  /** The kinds that there are, in words. */
  key() {
    const words = { "k-compute_forward": "forward", "k-recompute": "run again", "k-compute_backward": "backward", "k-weight_gradients": "gradients of weights", "k-inside_operators": "collectives inside operators", "k-activations": "activations moved", "k-activation_gradients": "their gradients", "k-parameters": "parameters gathered", "k-parameter_gradients": "gradients synchronised", "k-optimizer": "optimizer, and what happens once a step" };
    const found = new Set(this.lanes.flatMap((l) => l.events.flatMap((e) => (e.inside ? [e.kind, "k-inside_operators"] : [e.kind]))));
    return h("ul", { class: "legend" }, this.waits && h("li", null, h("span", { class: "key k-bubble", "aria-hidden": "true" }), "waiting (bubble)"), Object.entries(words).filter(([k]) => found.has(k)).map(([k, word]) => h("li", null, h("span", { class: `key ${k}`, "aria-hidden": "true" }), word)));
  }
  get left() { return this.lanes.some((l) => l.note) ? 142 : 118; }
  part(e) { return Math.max(0, (e.offsetX - this.left) / (this.canvas.clientWidth - this.left)); }
  show(from, to) { this.from = Math.max(0, from); this.to = Math.min(this.end, to); this.draw(); }
  zoom(factor, at) {
    const here = this.from + at * (this.to - this.from);
    const span = Math.min(this.end, Math.max(this.end / 1e5, (this.to - this.from) * factor));
    const from = Math.min(Math.max(0, here - at * span), this.end - span);
    this.show(from, from + span);
  }
  at(e) {
    const lane = this.lanes[Math.floor((e.offsetY - 22) / this.row)];
    if (!lane || e.offsetX < this.left) return null;
    const t = this.from + this.part(e) * (this.to - this.from);
    const near = ((this.to - this.from) / this.canvas.clientWidth) * 1.5;
    let found = null;
    for (const v of lane.events) if (v.begin - near <= t && v.end + near >= t && (!found || Math.abs((v.begin + v.end) / 2 - t) < Math.abs((found.begin + found.end) / 2 - t))) found = v;
    return found;
  }
  colour(kind) {
    if (!this.colours) { this.colours = new Map(); this.styles = getComputedStyle(document.documentElement); }
    if (!this.colours.has(kind)) this.colours.set(kind, this.styles.getPropertyValue(`--${kind}`).trim() || "#888");
    return this.colours.get(kind);
  }
  draw() {
    const width = this.canvas.clientWidth, height = 22 + this.row * this.lanes.length + 4;
    if (!width) return;
    const scale = Math.min(3, window.devicePixelRatio || 1);
    this.canvas.style.setProperty("height", `${height}px`);
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
    }
    const c = this.canvas.getContext("2d");
    c.setTransform(scale, 0, 0, scale, 0, 0);
    c.clearRect(0, 0, width, height);
    const per = (width - this.left - 1) / (this.to - this.from);
    const x = (t) => this.left + (t - this.from) * per;
    c.font = `11px ${FONT}`;
    c.textBaseline = "middle";
    const raw = (this.to - this.from) / Math.max(2, (width - this.left) / 110);
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * power).find((v) => v >= raw);
    for (let t = Math.ceil(this.from / step) * step; t <= this.to; t += step) {
      c.fillStyle = this.colour("line");
      c.fillRect(Math.round(x(t)), 18, 1, height - 20);
      c.fillStyle = this.colour("quiet");
      const text = seconds(Math.abs(t) < step / 1e3 ? 0 : t);
      const room = c.measureText(text).width;
      c.fillText(text, Math.min(Math.max(this.left, x(t) - room / 2), width - room - 2), 9);
    }
    this.lanes.forEach((lane, k) => {
      const y = 22 + k * this.row;
      c.fillStyle = this.colour("text");
      c.fillText(fit(lane.name, this.left - 10, `11px ${FONT}`), 2, y + this.row / 2);
      if (lane.note) { c.textAlign = "right"; c.fillStyle = this.colour("quiet"); c.fillText(lane.note, this.left - 8, y + this.row / 2); c.textAlign = "left"; }
      if (this.waits) { c.fillStyle = this.colour("k-bubble"); c.fillRect(Math.max(this.left, x(0)), y + 3, Math.min(width, x(this.end)) - Math.max(this.left, x(0)), this.row - 6); }
      c.save();
      c.beginPath();
      c.rect(this.left, y, width - this.left, this.row);
      c.clip();
      let last = -1, lastKind = null;
      for (const e of lane.events) {
        if (e.end < this.from || e.begin > this.to) continue;
        const a = x(e.begin), b = Math.max(a + 0.75, x(e.end));
        if (b - a < 1 && Math.floor(a * 2) === last && lastKind === e.kind) continue;
        last = Math.floor(a * 2);
        lastKind = e.kind;
        c.fillStyle = this.colour(e.kind);
        const edge = b - a > 4 ? 1 : 0;
        c.fillRect(a, y + 3, b - a - edge, this.row - 6);
        if (e.inside) { c.fillStyle = this.colour("k-inside_operators"); c.fillRect(Math.max(a, b - e.inside * per), y + 3, Math.min(b - a, e.inside * per) - edge, this.row - 6); }
        if (b - a > 12) {
          c.fillStyle = this.colour(`on-${e.kind}`) === "#888" ? "#fff" : this.colour(`on-${e.kind}`);
          const from = Math.max(a, this.left);
          const said = e.short || labelOf(e); // all of it or nothing
          if (widthOf(said, `11px ${FONT}`) <= Math.min(b, width) - from - 8) c.fillText(said, from + 4, y + this.row / 2);
        }
      }
      c.restore();
      c.fillStyle = this.colour("line");
      c.fillRect(0, y + this.row - 0.5, width, 0.5);
    });
  }
}
