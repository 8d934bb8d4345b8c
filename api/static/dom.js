// Elements, and numbers in words.

const SVG = "http://www.w3.org/2000/svg";

// Element from a name, attributes and children; text is never read as markup.  `on…` attributes are listeners.
export function h(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function s(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

// Says it to those who do not see it.
export function tell(text) {
  byId("told").textContent = text;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0 s";
  const [scale, unit] = value >= 1 ? [1, "s"] : value >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  return `${significant(value * scale)} ${unit}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let k = 0;
  while (value >= 1024 && k < units.length - 1) [value, k] = [value / 1024, k + 1];
  return `${k ? significant(value) : value} ${units[k]}`;
}

export function percent(value) {
  if (value === null || value === undefined) return "–";
  return value === 0 ? "0 %" : `${significant(100 * value, 2)} %`;
}

export function significant(value, digits = 4) {
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toFixed(Math.min(places, 6));
}

export function ago(moment) {
  const past = Math.max(0, (Date.now() - Date.parse(moment)) / 1000);
  if (past < 60) return "just now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return new Date(moment).toLocaleDateString();
}

// A problem document, or whatever went wrong, for the reader.
export function problemBox(problem) {
  const fields = (problem.errors || [])
    .filter((e) => !(problem.detail || "").includes(e.detail))
    .map((e) => h("li", {}, h("code", {}, e.name), ` ${e.detail}`));
  const more = [];
  if (problem.lower_bound_bytes) more.push(`No plan needs less than ${bytes(problem.lower_bound_bytes)} on a device.`);
  if (problem.sufficient_bytes) more.push(`${bytes(problem.sufficient_bytes)} would do.`);
  return h(
    "div",
    { class: "problem", role: "alert" },
    h("b", {}, problem.title || "Something went wrong"),
    h("p", {}, problem.detail || ""),
    more.length ? h("p", {}, more.join(" ")) : null,
    fields.length ? h("ul", {}, fields) : null,
    problem.type ? h("code", { class: "type" }, problem.type) : null,
  );
}
