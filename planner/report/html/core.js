// Element builders, formats, and the page's data.  Text goes in as text nodes only.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "on") for (const [event, call] of Object.entries(value)) element.addEventListener(event, call);
    else if (key === "data") Object.assign(element.dataset, value);
    else if (key === "style") for (const [name, v] of Object.entries(value)) element.style.setProperty(name, v);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** h("p", {class: "note"}, "text", element, …) */
const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
/** The same for drawings. */
const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 4, useGrouping: false });
const four = (x) => digits.format(x);

function seconds(x) {
  const a = Math.abs(x);
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) if (a >= size) return `${four(x / size)} ${unit}`;
  return a ? `${four(x / 1e-9)} ns` : "0 s";
}

function bytes(x) {
  const a = Math.abs(x);
  for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (a >= size) return `${four(x / size)} ${unit}`;
  return `${x} B`;
}

const grouped = new Intl.NumberFormat("en");
const count = (x) => grouped.format(x);
const percent = (x) => (x && x < 0.0005 ? "< 0.1 %" : `${(100 * x).toFixed(1)} %`);
const plural = (n, what) => `${count(n)} ${what}${n === 1 ? "" : "s"}`;

/** Names may hold anything: control and direction characters are shown, not obeyed. */
function shown(name, most = 400) {
  const text = String(name);
  const cut = text.length > most ? text.slice(0, most - 1) + "…" : text;
  return cut.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** A name of the model; lines break behind its dots, slashes and underscores, and inside of a part only where it is wider than a line. */
const named = (text, most, properties) => h("span", { class: "name", dir: "auto", ...properties }, shown(text, most).split(/(?<=[./_])/).map((part, k) => (k ? [h("wbr"), part] : part)));

const shortened = new Map();
const pen = document.createElement("canvas").getContext("2d");
/** The text, cut in the middle so that it fits the width in CSS pixels. */
function fit(text, width, font) {
  const key = `${font}|${Math.round(width)}|${text}`;
  if (shortened.has(key)) return shortened.get(key);
  pen.font = font;
  let out = text;
  if (text.length * 14 > width && pen.measureText(text).width > width) {
    let low = 0, high = Math.min(text.length, Math.ceil(width / 2));
    const at = (n) => text.slice(0, Math.ceil(n * 0.6)) + "…" + text.slice(text.length - Math.floor(n * 0.4));
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(at(middle)).width <= width) low = middle;
      else high = middle - 1;
    }
    out = low > 0 ? at(low) : width > 10 ? "…" : "";
  }
  shortened.set(key, out);
  return out;
}
/** How wide a text is, in CSS pixels. */
function widthOf(text, font) {
  const key = `${font}|${text}`;
  if (!widths.has(key)) { pen.font = font; widths.set(key, pen.measureText(text).width); }
  return widths.get(key);
}
const widths = new Map();
/** Parts with dots between them, as many as the width has room for: no part is cut, and those left out are counted. */
function fitList(parts, width, font) {
  for (let n = parts.length; n > 0; n--) {
    const text = parts.slice(0, n).join(" · ") + (n < parts.length ? ` · and ${parts.length - n} more` : "");
    if (n === 1 || widthOf(text, font) <= width) return n === 1 ? fit(text, width, font) : text;
  }
  return "";
}
const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif";

/** The data of the page, decompressed. */
async function load() {
  const packed = atob(JSON.parse(document.getElementById("data").textContent));
  const raw = Uint8Array.from(packed, (c) => c.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** Begins a page: `build(data, main)` fills it; what goes wrong is said on the page. */
async function begin(build) {
  const main = document.getElementById("page");
  try {
    const data = await load();
    main.replaceChildren();
    build(data, main);
    document.body.dataset.ready = "yes";
    performance.mark("ready");
  } catch (error) {
    main.append(h("p", { class: "failed", role: "alert" }, `This page cannot be shown: ${error}`));
    throw error;
  }
}

const cell = (value, name) => h("td", name ? { class: name } : null, value);
/** Columns: [title, class]; rows: lists of values. */
function table(columns, rows, caption) {
  return h("div", { class: "scroll", tabindex: "0" },
    h("table", null,
      caption && h("caption", null, caption),
      h("thead", null, h("tr", null, columns.map(([title, name]) => (title ? h("th", { scope: "col", class: name }, title) : h("td", { class: name }))))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((v, i) => cell(v, columns[i][1])))))));
}

const section = (id, title, ...content) => h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), content);
const link = (text, call, title) => h("button", { type: "button", class: "link", title, on: { click: call } }, text);
