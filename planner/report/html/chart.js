// What charts on a canvas have in common: their size, the colours of the page, grid lines, and ticks in round numbers.

class Chart {
  /** `label`: what the picture shows, for those who do not see it. */
  constructor(label, height = 200, left = 76) {
    Object.assign(this, { height, left }); // beside the labels of rows
    this.canvas = h("canvas", { role: "img", tabindex: "0", "aria-label": label });
    this.canvas.addEventListener("pointermove", (e) => this.say(e));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", () => this.draw());
  }
  say() {}
  /** The canvas, cleared, in CSS pixels; null where it is not shown. */
  begin() {
    const width = (this.width = this.canvas.clientWidth);
    if (!width) return null;
    const ratio = Math.min(3, devicePixelRatio || 1), style = getComputedStyle(document.documentElement);
    this.colour = (name) => style.getPropertyValue(`--${name}`).trim();
    this.canvas.style.setProperty("height", `${this.height}px`);
    Object.assign(this.canvas, { width: Math.round(width * ratio), height: Math.round(this.height * ratio) });
    const c = this.canvas.getContext("2d");
    c.scale(ratio, ratio);
    c.font = `11px ${FONT}`;
    c.textBaseline = "middle";
    return c;
  }
  /** Round numbers from `low` to `high`, in multiples of `unit`, of which `most` fit. */
  ticks(low, high, unit, most) {
    const raw = (high - low) / unit / most || 1, power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((v) => v >= raw * 0.999999) * unit, out = [];
    for (let k = Math.max(0, Math.ceil(low / step - 1e-9)); k * step <= high + step * 1e-9; k++) out.push(k * step);
    return out;
  }
  /** The same on a logarithmic scale: 1, 2, 5, 10 … */
  decades(low, high, unit, most) {
    const out = [], first = Math.floor(Math.log10(low / unit));
    for (let p = first; 10 ** p <= high / unit; p++) for (const m of [1, 2, 5]) { const v = m * 10 ** p * unit; if (v >= low && v <= high) out.push(v); }
    return out.length > most ? out.filter((v) => /^1(\.|$|0|e)/.test(four(v / unit)) || /^0\.0*1$/.test(four(v / unit))) : out;
  }
  /** What stands beside both axes, with their units. */
  titles(c, rows, columns) {
    c.fillStyle = this.colour("quiet");
    c.textAlign = "left";
    c.fillText(rows, 0, 7);
    c.textAlign = "center";
    c.fillText(columns, this.left + (this.width - this.left) / 2, this.height - 10);
  }
  /** What stands below the picture at these values. */
  columns(c, values, x, text) {
    c.fillStyle = this.colour("quiet");
    for (const v of values) { c.textAlign = x(v) > this.width - 16 ? "right" : "center"; c.fillText(text(v), x(v), this.height - 30); }
  }
  /** Grid lines at these values with what `text` calls them. */
  rows(c, values, y, text) {
    for (const v of values) {
      c.fillStyle = this.colour("line");
      c.fillRect(this.left, y(v), this.width - this.left, 1);
      c.fillStyle = this.colour("quiet");
      c.textAlign = "right";
      c.fillText(text(v), this.left - 6, Math.max(7, y(v)));
    }
  }
  /** A text on paper, so that no line runs through it; from `x` to the left or to the right. */
  note(c, text, x, y, name, align = "right") {
    const width = c.measureText(text).width + 8;
    c.fillStyle = this.colour("paper");
    c.fillRect(align === "right" ? x - width + 4 : x - 4, y - 7, width, 13);
    c.textAlign = align;
    c.fillStyle = this.colour(name);
    c.fillText(text, x, y);
  }
}
const SECONDS = [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]];
const BYTES = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10], ["B", 1]];
/** The largest unit that a figure has one of. */
const unitOf = (units, x) => units.find(([, size]) => x >= size) || units[units.length - 1];
