// What is around the graph of a page: colours, a small map, the whole screen, pictures to take away, and its address.

const MAP = [190, 150]; // pixels of the map at most
const MAPPED = 3000; // boxes that the map draws
const CLEAR = 0.68; // the scale at which the words of the graph are read easily; it opens at no less where it can

class Viewer {
  /** `graph` in a page; `pick(node)`: shows what is known of it. */
  constructor(graph) {
    Object.assign(this, { graph, plan: graph.plan });
    this.canvas = h("canvas");
    this.sight = h("div", { class: "map-sight" });
    this.box = h("div", { class: "map", "aria-hidden": "true", hidden: true }, this.canvas, this.sight);
    graph.element.append(this.box);
    graph.options.ondraw = () => this.map();
    graph.options.onview = () => { this.soon ||= requestAnimationFrame(() => { this.soon = 0; this.frame(); }); };
    const tool = (text, name, call) => h("button", { type: "button", "aria-label": name, title: name, on: { click: call } }, text);
    this.wide = tool("Full screen", "show the graph on the whole screen", () => this.full(!this.section.classList.contains("full")));
    graph.tools.append(this.wide, tool("SVG", "save the graph as it is open now, as SVG", () => this.save("svg")), tool("PNG", "save the graph as it is open now, as PNG", () => this.save("png")));
    this.colours = h("select", { "aria-label": "colour by", on: { change: (e) => this.paintBy(e.target.value) } }, [["split", "colour by split"], ["time", "colour by time"], ["memory", "colour by memory"]].filter(([k]) => k !== "time" || this.plan.report.timed).map(([value, text]) => h("option", { value }, text)));
    this.legend = h("ul", { class: "legend", "aria-label": "colours" });
    this.explain();
    this.wheel();
    this.drag();
    document.addEventListener("fullscreenchange", () => { if (!document.fullscreenElement) this.full(false); });
    document.addEventListener("keydown", (e) => { if (e.key === "Escape" && this.section.classList.contains("full")) this.full(false); });
    new ResizeObserver(() => this.map()).observe(graph.paper);
  }
  get section() { return this.graph.element.closest("section"); }
  paintBy(colours) { this.colours.value = colours; this.graph.paintBy(colours); this.explain(); }
  /** The legend of the colours that are shown. */
  explain() {
    const { plan } = this;
    const moved = h("li", null, h("span", { class: "pill-key" }), "redistribution");
    if (this.colours.value !== "split") {
      const words = { time: "share of the objective", memory: "bytes of results and weights on a device" };
      this.legend.replaceChildren(h("li", { class: `scale-${this.colours.value}` }, "least", h("span", { class: "scale", "aria-hidden": "true" }), `most: ${words[this.colours.value]}`), moved);
      return;
    }
    const used = new Set(plan.operators.flatMap((o) => [...o.letters]));
    this.legend.replaceChildren(...(plan.axes.length > 1 ? [h("li", null, h("span", { class: "quiet" }, `bands, left to right: ${plan.axes.map((a) => a.name).join(", ")}`))] : []),
      ...[...plan.splits.values()].filter((x) => used.has(x.letter)).map((x) => h("li", { title: x.meaning }, s("svg", { width: 14, height: 14, class: "key", "aria-hidden": "true" }, s("rect", { width: 14, height: 14, rx: 2, fill: `url(#p-${x.letter})` })), x.name)), moved);
  }
  /** The wheel zooms once the graph has been chosen by a click or a key, and on the whole screen; before, it scrolls the
   * page, which it would otherwise be caught on.  With Ctrl it always zooms (`Graph`). */
  wheel() {
    const { paper, element } = this.graph;
    let chosen = false;
    document.addEventListener("pointerdown", (e) => { chosen = element.contains(e.target); });
    element.addEventListener("focusin", () => { chosen = true; });
    element.addEventListener("focusout", (e) => { if (e.relatedTarget && !element.contains(e.relatedTarget)) chosen = false; });
    paper.addEventListener("wheel", (e) => {
      if (e.ctrlKey || e.metaKey || e.shiftKey || !(chosen || this.section.classList.contains("full"))) return;
      e.preventDefault();
      const r = paper.getBoundingClientRect();
      this.graph.zoom(Math.exp(-Math.max(-60, Math.min(60, e.deltaY)) / 300), e.clientX - r.left, e.clientY - r.top);
    }, { passive: false });
  }
  full(on) {
    const { section } = this;
    if (section.classList.contains("full") === on) return;
    section.classList.toggle("full", on);
    document.body.classList.toggle("covered", on);
    this.wide.textContent = on ? "Back" : "Full screen";
    // Where the page may not have the screen (in a frame, say), the window is what it fills.
    if (on) section.requestFullscreen?.().catch(() => {});
    else if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
    setTimeout(() => { this.graph.fit(); this.map(); }, 60);
  }
  map() {
    const { graph } = this, [w, hgt] = graph.size || [0, 0], room = [graph.paper.clientWidth, graph.paper.clientHeight];
    this.room = room;
    this.box.hidden = !(w * graph.scale > room[0] + 4 || hgt * graph.scale > room[1] + 4) || room[0] < 500;
    if (this.box.hidden) return;
    this.per = Math.min(MAP[0] / w, MAP[1] / hgt);
    const size = [Math.max(24, w * this.per), hgt * this.per], ratio = Math.min(2, devicePixelRatio || 1);
    Object.assign(this.canvas, { width: size[0] * ratio, height: size[1] * ratio });
    this.canvas.style.setProperty("width", `${size[0]}px`);
    this.canvas.style.setProperty("height", `${size[1]}px`);
    const c = this.canvas.getContext("2d"), style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(name).trim();
    c.scale(ratio, ratio);
    c.fillStyle = colour("--raised");
    c.fillRect(0, 0, ...size);
    let left = MAPPED;
    for (const b of graph.placed.boxes) {
      if (b.t.pill || b.h * this.per < 0.4 || left-- < 0) continue;
      const n = this.plan.nodes[b.t.node];
      const opened = b.t.items && b.h * this.per > 12; // else what is in it is too small for the map
      const letter = n.kind === "input" || opened ? null : this.plan.mixture(n, 0).sort((p, q) => q[1] - p[1])[0]?.[0];
      c.fillStyle = opened ? colour("--line") : letter ? colour(`--${letter}`) : colour("--quiet");
      c.globalAlpha = opened ? 0.35 : 0.85;
      c.fillRect(b.x * this.per, b.y * this.per, Math.max(0.6, b.w * this.per), Math.max(0.6, b.h * this.per));
    }
    this.frame();
  }
  /** The part that is in sight, on the map. */
  frame() {
    const { graph, room } = this;
    if (!room) return;
    const [w, hgt] = graph.size.map((x) => x * graph.scale), over = w > room[0] + 4 || hgt > room[1] + 4;
    if (over === this.box.hidden) this.map();
    if (this.box.hidden) return;
    const k = this.per / graph.scale, set = (name, v) => this.sight.style.setProperty(name, `${v.toFixed(1)}px`);
    set("width", Math.min(w, room[0]) * k);
    set("height", Math.max(3, Math.min(hgt, room[1]) * k));
    this.sight.style.setProperty("transform", `translate(${(w > room[0] ? graph.paper.scrollLeft * k : 0).toFixed(1)}px, ${(hgt > room[1] ? graph.paper.scrollTop * k : 0).toFixed(1)}px)`);
  }
  drag() {
    const { graph, box } = this;
    const to = (e) => {
      const r = this.canvas.getBoundingClientRect(), k = graph.scale / this.per;
      graph.paper.scrollTo((e.clientX - r.left) * k - graph.paper.clientWidth / 2, (e.clientY - r.top) * k - graph.paper.clientHeight / 2);
    };
    box.addEventListener("pointerdown", (e) => { e.preventDefault(); box.setPointerCapture(e.pointerId); to(e); });
    box.addEventListener("pointermove", (e) => { if (e.buttons) to(e); });
  }
  /** The whole graph as a drawing that stands alone: what styles say is written into it. */
  drawing() {
    const { graph } = this;
    graph.everything = true;
    graph.render();
    const copy = graph.svg.cloneNode(true), [w, hgt] = graph.size;
    const from = [graph.svg, ...graph.svg.querySelectorAll("*")], into = [copy, ...copy.querySelectorAll("*")];
    const names = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "text-anchor"];
    from.forEach((element, k) => {
      const style = getComputedStyle(element);
      if (element.closest("defs") && !element.matches("path, rect, circle")) return;
      for (const name of names) { const value = style.getPropertyValue(name); if (value && value !== "none" && value !== "normal" && value !== "auto") into[k].setAttribute(name, value); else if (name === "fill" || name === "stroke") into[k].setAttribute(name, value || "none"); }
      for (const gone of ["class", "style", "tabindex", "role", "data-node", "data-pill", "data-group", "aria-expanded", "aria-label"]) into[k].removeAttribute(gone);
    });
    fill(copy, { xmlns: SVG, width: Math.ceil(w), height: Math.ceil(hgt), viewBox: `0 0 ${w} ${hgt}`, "font-family": "Helvetica, Arial, sans-serif" }, []);
    copy.prepend(s("rect", { width: w, height: hgt, fill: getComputedStyle(graph.element).backgroundColor }));
    graph.everything = false;
    graph.render();
    return { text: new XMLSerializer().serializeToString(copy), w, h: hgt };
  }
  async save(kind) {
    const { text, w, h: hgt } = this.drawing();
    const name = `${shown(this.plan.report.model.name, 60).replace(/[^\w.-]+/g, "_") || "plan"}.${kind}`;
    if (kind === "svg") return this.give(new Blob([text], { type: "image/svg+xml" }), name);
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
    await image.decode();
    const scale = Math.min(2, 16000 / w, 16000 / hgt); // the largest canvas that browsers have
    const canvas = h("canvas", { width: Math.ceil(w * scale), height: Math.ceil(hgt * scale) });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    this.give(await new Promise((done) => canvas.toBlob(done, "image/png")), name);
  }
  give(blob, name) {
    const a = h("a", { href: URL.createObjectURL(blob), download: name });
    a.click();
    setTimeout(() => URL.revokeObjectURL(a.href), 5000);
  }
}

/** The operator that the page's address names: `#op=NAME`. */
function operatorOf(plan) {
  const found = /^#op=(.+)$/.exec(location.hash);
  if (!found) return undefined;
  try { return plan.byName.get(decodeURIComponent(found[1])); } catch { return undefined; }
}
const addressOf = (plan, i) => { try { return `#op=${encodeURIComponent(plan.operators[i].name)}`; } catch { return null; } }; // lone surrogates have none
