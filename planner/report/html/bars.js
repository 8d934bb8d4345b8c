// Stacked bars with their table.

/** parts: [{key, label, value, text, exact}]; the first bar's whole is `whole`. */
function stacked(parts, whole, name, room) {
  const bar = h("div", { class: "bar", role: "img", "aria-label": `${name}: ${parts.map((p) => `${p.label} ${p.text}`).join(", ")}` });
  const extent = Math.max(room || 0, whole) || 1;
  for (const p of parts) {
    if (!p.value) continue;
    const share = p.value / extent;
    bar.append(h("span", { class: `part k-${p.key}`, title: `${p.label}: ${p.text} (${percent(p.value / whole)})`, style: { width: `${100 * share}%` } }, share > 0.1 ? h("i", null, p.label) : null));
  }
  return bar;
}

function partsTable(parts, whole, heads) {
  return table([["", "swatch"], [heads[0], ""], [heads[1], "n"], ["share", "n"], ["exact", "n exact"]],
    parts.map((p) => [h("span", { class: `key k-${p.key}`, "aria-hidden": "true" }), p.label, p.text, percent(whole ? p.value / whole : 0), p.exact]));
}
