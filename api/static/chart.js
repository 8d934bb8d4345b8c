// The gap closing: objective of the best plan and proven bound over the time of the search.

import { h, s, percent, seconds } from "./dom.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [190, 76, 12, 10, 26];

// `points`: [{seconds, incumbent_s, bound_s, gap}], in order; lines go on to `until` seconds; `width` in pixels.
export function chart(points, until, width) {
  const figure = h("figure", { class: "chart" });
  if (points.length === 0) return figure;
  const last = points[points.length - 1];
  const told = `Best plan ${seconds(last.incumbent_s)}, bound ${seconds(last.bound_s)}, gap ${percent(last.gap)} after ${seconds(last.seconds)}`;
  figure.append(
    h("figcaption", {}, key("incumbent", "best plan"), key("bound", "proven bound"), key("between", "gap")),
    picture(points, until, told, Math.max(280, width)),
  );
  return figure;
}

function key(kind, text) {
  return h("span", { class: "key" }, s("svg", { width: 18, height: 10, "aria-hidden": "true" }, mark(kind)), text);
}

function mark(kind) {
  if (kind === "between") return s("rect", { class: "between", width: 18, height: 10, rx: 2 });
  return s("line", { class: kind, x1: 0, x2: 18, y1: 5, y2: 5 });
}

function picture(points, until, told, width) {
  const end = Math.max(until, points[points.length - 1].seconds, 0.05);
  const [first, best] = [points[0], points[points.length - 1]];
  // What comes long before the first plan shows nothing.
  const begin = first.seconds > 0.3 * end ? Math.max(0, first.seconds - 0.06 * (end - first.seconds)) : 0;
  const high = Math.max(...points.map((p) => p.incumbent_s));
  // A first bound far below would flatten everything that follows.
  const floor = best.incumbent_s - 2.5 * Math.max(high - best.incumbent_s, best.incumbent_s - best.bound_s, 0.02 * high);
  // A gap of next to nothing looks like it: less than a hundredth never fills the picture.
  const low = Math.max(Math.min(...points.map((p) => p.bound_s), 0.99 * high), floor, 0);
  const margin = 0.08 * (high - low || high || 1);
  const [bottom, top] = [Math.max(0, low - margin), high + margin];
  const x = (t) => LEFT + ((width - LEFT - RIGHT) * (t - begin)) / (end - begin);
  const y = (v) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (Math.max(v, bottom) - bottom) / (top - bottom));
  const upper = steps(points, "incumbent_s", x, y, end);
  const lower = steps(points, "bound_s", x, y, end);
  const band = `M${upper.join("L")}L${[...lower].reverse().join("L")}Z`;
  const svg = s(
    "svg",
    { viewBox: `0 0 ${width} ${HEIGHT}`, width: width, height: HEIGHT, role: "img", "aria-label": told },
    ...ticks(bottom, top).map((v) =>
      s("g", { class: "tick" }, s("line", { x1: LEFT, x2: width - RIGHT, y1: y(v), y2: y(v) }), label(LEFT - 8, y(v) + 4, seconds(+v.toPrecision(12)), "end")),
    ),
    ...ticks(begin, end).map((t) => s("g", { class: "tick" }, label(x(t), HEIGHT - 8, t === 0 ? "0" : `${+t.toPrecision(6)} s`, "middle"))),
    s("path", { class: "between", d: band }),
    s("path", { class: "bound", d: `M${lower.join("L")}` }),
    s("path", { class: "incumbent", d: `M${upper.join("L")}` }),
  );
  for (const p of points.length < 60 ? points : points.slice(-1)) {
    svg.append(s("circle", { class: "incumbent", cx: x(p.seconds), cy: y(p.incumbent_s), r: 2.5 }));
  }
  return svg;
}

// Corners of a line that keeps its value until the next point.
function steps(points, name, x, y, end) {
  const out = [];
  points.forEach((p, k) => {
    if (k > 0) out.push(`${x(p.seconds).toFixed(1)} ${y(points[k - 1][name]).toFixed(1)}`);
    out.push(`${x(p.seconds).toFixed(1)} ${y(p[name]).toFixed(1)}`);
  });
  out.push(`${x(end).toFixed(1)} ${y(points[points.length - 1][name]).toFixed(1)}`);
  return out;
}

function label(x, y, text, anchor) {
  const element = s("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function ticks(from, to) {
  const rough = (to - from) / 4 || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough);
  const out = [];
  for (let v = Math.ceil(from / step) * step; v <= to + 1e-9 * step; v += step) out.push(v);
  return out;
}
