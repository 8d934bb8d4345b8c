// The mesh as a grid of ranks, with what each holds of one tensor.

const MOST_RANKS = 4096; // that are drawn

/** {rank, at, ranges, shard} of the first ranks; as planner/report/mesh.py. */
function shardsOf(plan, shape, layout) {
  const sizes = plan.axes.map((a) => a.size);
  const shownRanks = Math.min(MOST_RANKS, sizes.reduce((a, b) => a * b, 1));
  const out = [];
  const seen = new Map();
  for (let rank = 0; rank < shownRanks; rank++) {
    const at = {};
    let rest = rank;
    for (let k = sizes.length - 1; k >= 0; k--) { at[plan.axes[k].name] = rest % sizes[k]; rest = Math.floor(rest / sizes[k]); }
    const ranges = layout.dims.map((axes, d) => {
      let index = 0, parts = 1;
      for (const a of axes) { const n = plan.axes.find((x) => x.name === a).size; index = index * n + at[a]; parts *= n; }
      const size = shape[d] / parts / layout.parts[d];
      return [index * size, (index + 1) * size];
    });
    const key = ranges.map((r) => r.join(":")).join(",");
    if (!seen.has(key)) seen.set(key, { number: seen.size, ranks: [] });
    seen.get(key).ranks.push(rank);
    out.push({ rank, at, ranges, shard: seen.get(key) });
  }
  return out;
}

function meshGrid(plan, tensor, layoutNumber) {
  const shape = tensor.shape;
  const layout = plan.parsed(layoutNumber);
  if (!shape || shape.length !== layout.dims.length) return h("p", { class: "quiet" }, "The shape is not known.");
  const ranks = shardsOf(plan, shape, layout);
  const last = plan.axes[plan.axes.length - 1].size;
  let across = last;
  if (plan.axes.length === 1 && last > 16) across = 2 ** Math.ceil(Math.log2(Math.sqrt(last)));
  while (across > 64) across /= 2;
  across = Math.max(1, Math.floor(across));
  const small = ranks.length > 64;
  const size = (names) => names.reduce((n, name) => n * plan.axes.find((a) => a.name === name).size, 1);
  const devices = size(plan.axes.map((a) => a.name)), distinct = size(layout.dims.flat()), copies = devices / distinct;
  const split = layout.dims.flatMap((axes, d) => (axes.length ? [d] : []));
  const rows = last > across ? ` (${last / across} rows each)` : "";
  const say = h("p", { class: "shard-said", "aria-live": "polite" });
  const within = (d) => (layout.parts[d] > 1 ? ` ×${layout.parts[d]}` : ""); // the same range in each of the equal parts
  const text = (r) => r.ranges.map(([a, b], d) => `${a}:${b}${within(d)}`).join(", ");
  const longest = Math.max(2, ...split.map((d) => `${shape[d]}:${shape[d]}`.length));
  const grid = h("div", { class: small ? "mesh small" : "mesh", role: "group", "aria-label": "ranks of the mesh", style: { "--across": across, "--cell": `${Math.min(110, 10 + 5.7 * longest)}px` } });
  const cells = ranks.map((r) => {
    const where = plan.axes.map((a) => `${a.name}=${r.at[a.name]}`).join(" ");
    return h("button", {
      type: "button", class: `rank t${r.shard.number % 8}`, tabindex: r.rank ? -1 : 0, data: { rank: r.rank },
      "aria-label": `rank ${r.rank} (${where}) holds [${text(r)}]`,
    }, small ? null : [h("b", null, r.rank), split.length ? split.map((d) => h("span", null, r.ranges[d].join(":") + within(d))) : h("span", null, "whole")]);
  });
  grid.append(...cells);
  const choose = (r) => {
    cells.forEach((c, k) => {
      c.classList.toggle("chosen", k === r.rank);
      c.classList.toggle("copy", k !== r.rank && ranks[k].shard === r.shard);
    });
    const others = r.shard.ranks.filter((x) => x !== r.rank);
    const local = r.ranges.map(([a, b]) => b - a);
    const listed = others.slice(0, 12).join(", ") + (others.length > 12 ? ", …" : "");
    const kind = layout.partial.length ? "the same part, each its own addend or copy" : "replicas";
    say.replaceChildren(
      h("b", null, `rank ${r.rank}`), ` (${plan.axes.map((a) => `${a.name}=${r.at[a.name]}`).join(" ")}) holds `,
      h("code", null, `[${r.ranges.map(([a, b]) => `${a}:${b}`).join(", ")}]`), ` = ${local.join(" × ") || "a scalar"}; `,
      copies > 1 ? `${kind} on ${plural(copies - 1, "rank")}${listed ? `: ${listed}` : ""}` : "nobody else holds this part");
  };
  grid.addEventListener("pointerover", (e) => { const c = e.target.closest(".rank"); if (c) choose(ranks[+c.dataset.rank]); });
  grid.addEventListener("focusin", (e) => { const c = e.target.closest(".rank"); if (c) choose(ranks[+c.dataset.rank]); });
  grid.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across }[e.key];
    const c = e.target.closest(".rank");
    if (!step || !c) return;
    const next = cells[+c.dataset.rank + step];
    if (next) { e.preventDefault(); c.tabIndex = -1; next.tabIndex = 0; next.focus(); }
  });
  choose(ranks[0]);
  const pending = layout.partial.map(([a, how]) => `${how} pending over ${a}`).join(", ");
  return h("div", null,
    h("p", { class: "quiet" }, `${plural(distinct, "distinct part")} of ${shape.join(" × ") || "a scalar"} on ${plural(devices, "rank")}`,
      copies > 1 ? `, each held ${count(copies)} times` : "", pending ? `; ${pending}` : "",
      `. Rows: ${plan.axes.slice(0, -1).map((a) => a.name).join(", ") || "ranks in order"}; across: ${plan.axes[plan.axes.length - 1].name}${rows}.`,
      devices > ranks.length ? ` The first ${count(ranks.length)} ranks are drawn.` : "",
      !small && split.length && distinct > 1 ? ` In the cells: indices of dimension${split.length > 1 ? "s" : ""} ${split.join(", ")}.` : ""),
    h("div", { class: "scroll" }, grid), say);
}
