// The page of one plan.

function tile(title, big, exact, note) {
  return h("div", { class: "tile" }, h("p", { class: "kind" }, title), h("p", { class: "big" }, big), h("p", { class: "exact" }, exact), note && h("p", { class: "quiet" }, note));
}

/** What the bound is of; a plan's own may be higher than that of the search, which covers more. */
function below(r) {
  const own = r.cost.step_time_lower_bound_s;
  if (r.proven.of === "plan") return "no plan of the searched space is faster";
  return own > r.proven.bound_s * (1 + 1e-9) ? `no plan is faster; with this plan's stages and micro-batches ${seconds(own)}` : "no plan of the searched space is faster";
}

function header(plan) {
  const r = plan.report, cost = r.cost, limit = r.memory_limit_bytes, m = r.model;
  const mesh = r.mesh.map((a) => `${a.name}=${a.size}`).join(", ");
  const stages = r.stages.length;
  const bind = Object.entries(m.bind).map(([k, v]) => `${shown(k, 40)}=${v}`).join(", ");
  const facts = [
    ["devices", `${r.cluster.devices} × ${r.cluster.hardware}`, r.cluster.devices_per_server ? `${r.cluster.devices_per_server} a server` : ""],
    ["mesh", r.mesh.map((a) => a.size).join(" × "), mesh],
    stages > 1 || r.schedule.micro_batches > 1 ? ["pipeline", plural(stages, "stage"), `${r.schedule.chunks > 1 ? `${r.schedule.chunks} chunks of the model each, ` : ""}${count(r.schedule.micro_batches)} micro-batches${r.schedule.order ? `, ${r.schedule.order}` : ""}`] : null,
    ["mode", r.schedule.mode, r.schedule.mode === "training" ? r.schedule.optimizer : ""],
    ["precision", r.schedule.precision, r.schedule.target !== "any" ? `for ${r.schedule.target}` : ""],
    ["batch", m.batch === null ? "as exported" : count(m.batch), bind || (stages > 1 || r.schedule.micro_batches > 1 ? "a micro-batch" : "")],
    ["model", plural(m.operators, "operator"), `${count(m.parameters)} parameters`],
    r.schedule.recomputed ? ["recompute", plural(r.schedule.recomputed, "operator"), "run again in the backward pass"] : null,
    ["verified", { none: "no", sibling: "on a sibling", forward: "forward", full: "in full" }[r.verification], "by execution"],
  ].filter(Boolean);
  const samples = (m.batch || 0) * r.schedule.micro_batches;
  const use = limit ? cost.peak_memory_bytes / limit : 0;
  const meter = limit ? h("div", { class: `meter${use > 1 ? " over" : ""}`, role: "img", "aria-label": `${percent(use)} of the limit` }, h("span", { style: { width: `${Math.min(100, 100 * use)}%` } })) : null;
  return h("header", { class: "top" },
    h("p", { class: "kind" }, "plan"), h("h1", null, h("span", { class: "name", dir: "auto" }, shown(m.name, 120) || "(without a name)")), plan.data.words ? h("p", { class: "words", dir: "auto" }, shown(plan.data.words, 300)) : null,
    h("dl", { class: "facts" }, facts.map(([k, v, more]) => h("div", null, h("dt", null, k), h("dd", null, v, more && h("small", null, more))))),
    h("div", { class: "tiles" },
      tile("step", seconds(cost.step_time_s), `${cost.step_time_s} s`, samples ? `${count(Math.round(samples / cost.step_time_s))} samples a second` : "as the clock predicts it"),
      tile("lower bound of the step", seconds(r.proven.bound_s), `${r.proven.bound_s} s`, below(r)),
      tile("gap", `${(100 * r.proven.gap).toFixed(2)} %`, `${r.proven.gap}`, r.proven.gap < 1e-9 ? "proved optimal" : "between the step and its bound"),
      tile("memory per device", bytes(cost.peak_memory_bytes), `${count(cost.peak_memory_bytes)} bytes`, [meter, limit ? `${percent(use)} of ${bytes(limit)} (${count(limit)} bytes)` : "no limit given"]),
      tile("everything in sequence", seconds(cost.objective_s), `${cost.objective_s} s`, stages > 1 ? "the objective, of one micro-batch" : "the objective: nothing overlaps")),
    r.notes.length ? h("ul", { class: "notes" }, r.notes.map((n) => h("li", { class: n.level }, h("b", null, n.level), " ", shown(n.text, 600)))) : null);
}

const STEP_KEYS = { compute: "compute_forward", collectives: "activations", host: "m-buffers", optimizer: "optimizer", outside: "m-inputs" };

function timeSection(plan) {
  const r = plan.report, content = [];
  const step = r.step.filter((p) => p.seconds).map((p) => ({ key: STEP_KEYS[p.part] || "optimizer", label: p.label, value: p.seconds, text: seconds(p.seconds), exact: `${p.seconds} s` }));
  if (step.length) content.push(h("h3", null, "The step"), stacked(step, r.cost.step_time_s, "the step"), partsTable(step, r.cost.step_time_s, ["part of the step", "time"]), h("h3", null, "Everything in sequence"));
  const parts = r.time.map((p) => ({ key: p.part, label: p.label, value: plan.data.units[p.part], text: seconds(p.seconds), exact: `${p.seconds} s` })).filter((p) => p.value);
  const whole = parts.reduce((a, p) => a + p.value, 0);
  const adds = Math.round(r.cost.objective_s / plan.data.unit) === whole;
  content.push(stacked(parts, whole, "time"), partsTable(parts, whole, ["part", "time"]),
    h("p", { class: "quiet" }, `Parts ${adds ? "add" : "do not add"} up to the objective, ${r.cost.objective_s} s${adds ? "" : ": the file was edited"}; in the step communication overlaps computing.`));
  return section("time", "Where time goes", content);
}

function operatorSection(plan, go) {
  const r = plan.report;
  if (!r.operators.length || !r.timed) return null;
  return section("operators", "Operators that cost most", h("p", { class: "quiet" }, "With the redistributions of their results and parameters; operators of one type, split and cost are one row."), table([["operator", "wrap"], ["split", "wrap further"], ["number", "n"], ["computing", "n further"], ["inside", "n further"], ["moved", "n further"], ["optimizer", "n further"], ["in all", "n"], ["share", "n further"]],
      r.operators.slice(0, 20).map((o) => {
        const at = (k) => (o.by[k] ? seconds(o.by[k]) : "–");
        const first = plan.byName.get(o.names[0]);
        const compute = (o.by.forward || 0) + (o.by.backward || 0);
        return [link([h("b", null, shown(o.type.split("::").pop(), 60)), " ", named(o.names[0], 60)], () => go(first)), plan.splitText(o.letters, true), o.count, compute ? seconds(compute) : "–", at("inside"), at("moved"), at("optimizer"), h("b", null, seconds(o.seconds)), percent(o.share)];
    })));
}

function moveSection(plan, show) {
  const r = plan.report;
  if (!r.redistributions.length) return section("moves", "Redistributions", h("p", { class: "quiet" }, "None: every tensor is read as it is made."));
  return section("moves", "Redistributions",
    table([["redistribution", "wrap"], ["of", "further"], ["from", "further"], ["to", "further"], ["number", "n"], ["bytes", "n"], ["time", "n"], ["share", "n further"]],
      r.redistributions.slice(0, 20).map((m) => [link([h("b", null, m.what), " ", named(m.tensors[0], 50)], () => show({ moves: m.indices })), m.direction === "gradient" ? "gradient" : m.of, h("code", null, m.source), h("code", null, m.target), m.count, bytes(m.bytes), h("b", null, seconds(m.seconds)), percent(m.share)])),
    table([["collective", ""], ["over", ""], ["number", "n"], ["bytes in all", "n"]], r.collectives.map((c) => [c.kind.replaceAll("_", "-"), c.axes || "–", count(c.count), bytes(c.bytes)])));
}

function memorySection(plan) {
  const r = plan.report, peak = r.cost.peak_memory_bytes, limit = r.memory_limit_bytes;
  const parts = r.memory.map((m) => ({ key: `m-${m.kind}`, label: m.label, value: m.bytes, text: bytes(m.bytes), exact: `${count(m.bytes)} bytes` })).filter((p) => p.value);
  const content = [];
  if (parts.length) content.push(stacked(parts, peak, "memory at the peak"), limit && h("div", { class: "bar thin", role: "img", "aria-label": "against the limit" }, h("span", { class: "part k-used", style: { width: `${Math.min(100, (100 * peak) / limit)}%` } })), limit && h("p", { class: "quiet" }, `${percent(peak / limit)} of the limit of ${bytes(limit)} is used; ${bytes(limit - peak)} is left.`), partsTable(parts, peak, ["held at the peak", "bytes"]));
  else content.push(h("p", null, `${bytes(peak)} at the peak (${count(peak)} bytes).`), h("p", { class: "quiet" }, r.stages.length > 1 ? "Of a pipeline the plan gives the peak of each stage, below." : "The plan does not say what it consists of."));
  if (r.parameters.length) content.push(table([["parameters stored as", ""], ["number", "n"], ["elements", "n"]], r.parameters.slice(0, 10).map((p) => [h("code", null, p.layout), count(p.parameters), count(p.elements)])));
  return section("memory", "Where memory goes", content);
}

function search(plan, go) {
  const list = h("ul", { class: "found", role: "listbox", id: "found", hidden: true });
  const input = h("input", { type: "search", placeholder: "Find an operator …", "aria-label": "find an operator by name, type, module or split", role: "combobox", "aria-controls": "found", "aria-expanded": "false", autocomplete: "off", spellcheck: "false" });
  let texts = null; // made when somebody searches
  let at = -1, hits = [];
  const mark = () => { [...list.children].forEach((li, k) => li.setAttribute("aria-selected", String(k === at))); list.children[at]?.scrollIntoView({ block: "nearest" }); input.setAttribute("aria-activedescendant", at >= 0 ? `found-${at}` : ""); };
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); };
  const look = () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    texts ||= plan.operators.map((o) => `${o.name} ${o.type} ${o.module} ${o.source} ${plan.splitText(o.letters)}`.slice(0, 2000).toLowerCase());
    hits = words.length ? plan.operators.filter((o) => words.every((w) => texts[o.i].includes(w))) : [];
    at = hits.length ? 0 : -1;
    list.replaceChildren(...hits.slice(0, 50).map((o, k) => h("li", { role: "option", id: `found-${k}`, on: { pointerdown: (e) => { e.preventDefault(); pick(k); } } }, h("b", null, shown(plan.nodes[o.i].title, 40)), " ", named(o.name, 80), h("small", null, plan.splitText(o.letters)))),
      ...(words.length && !hits.length ? [h("li", { class: "quiet" }, "nothing found")] : []), ...(hits.length > 50 ? [h("li", { class: "quiet" }, `and ${hits.length - 50} more`)] : []));
    list.hidden = !words.length;
    input.setAttribute("aria-expanded", String(!!words.length));
    mark();
  };
  const pick = (k) => { if (hits[k]) { go(hits[k].i); close(); } };
  input.addEventListener("input", look);
  input.addEventListener("focus", () => input.value && look());
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (e) => {
    if (e.key === "ArrowDown") at = Math.min(Math.min(hits.length, 50) - 1, at + 1);
    else if (e.key === "ArrowUp") at = Math.max(0, at - 1);
    else if (e.key === "Enter") return pick(at);
    else if (e.key === "Escape") return close();
    else return;
    e.preventDefault();
    mark();
  });
  return h("div", { class: "search" }, input, list);
}

/** Lanes of one step: what computes and what communicates. */
function stepLanes(plan) {
  const compute = [];
  for (const o of plan.operators) for (const r of o.runs) if (r.units) compute.push({ begin: r.begin * plan.unit, end: (r.begin + r.units) * plan.unit, inside: r.inside * plan.unit, kind: r.phase === "forward" ? "k-compute_forward" : r.phase === "backward" ? "k-compute_backward" : "k-recompute", short: plan.nodes[o.i].title, label: () => `${r.phase === "recompute" ? "run again" : r.phase} ${plan.nodes[o.i].title} ${shown(o.name, 80)}`, id: o.i });
  let last = Math.max(0, ...compute.map((e) => e.end));
  const lanes = { activations: [], parameters: [] };
  for (const m of plan.moves) {
    if (!m.units) continue;
    const stream = plan.parameters.has(m.tensor) ? "parameters" : "activations";
    const end = (m.begin + m.units) * plan.unit;
    last = Math.max(last, end);
    lanes[stream].push({ begin: m.begin * plan.unit, end, kind: `k-${m.part}`, get short() { return plan.moveText(m); }, label: () => `${plan.moveText(m)} of ${m.gradient ? "the gradient of " : ""}${shown(plan.tensors[m.tensor].name, 80)}`, id: m.owner >= 0 ? m.owner : undefined });
  }
  const update = (plan.data.units.optimizer || 0) * plan.unit;
  if (update) compute.push({ begin: last, end: last + update, kind: "k-optimizer", label: "optimizer", short: "optimizer" });
  const order = (a, b) => a.begin - b.begin;
  const all = [{ name: "compute", events: compute.sort(order) }, { name: "activations", events: lanes.activations.sort(order) }, { name: "parameters", events: lanes.parameters.sort(order) }];
  return { end: last + update, lanes: all.filter((lane) => lane.events.length || lane.name === "compute") };
}

/** What of the step the picture does not show, where that is a part of it that one can see. */
function undrawn(r, end) {
  const step = r.cost.step_time_s, outside = (r.step.find((p) => p.part === "outside") || { seconds: 0 }).seconds;
  const seen = (x) => x > 0.002 * step, longer = step - end - outside;
  const exchanges = r.redistributions.some((m) => m.of === "parameter");
  const rest = [seen(outside) && `${seconds(outside)} pass outside of the model`, exchanges && seen(longer) && `exchanges of parameters and gradients take ${seconds(longer)} longer beside computing than alone, as they are drawn`].filter(Boolean);
  return rest.length ? h("p", { class: "quiet" }, `The picture shows ${seconds(end)} of the step's ${seconds(step)}: ${rest.join(", and ")}.`) : null;
}

function timelineSection(plan, go) {
  const out = [];
  const r = plan.report;
  if (r.timed) {
    const { lanes, end } = stepLanes(plan);
    out.push(section("timeline", r.stages.length > 1 ? "One micro-batch through all stages" : "The simulated step", r.stages.length > 1 ? null : undrawn(r, end), new Timeline(lanes, end, go).element));
  }
  if (r.pipeline && r.pipeline.together.length) {
    const lanes = new Map();
    for (let copy = 0; copy < r.pipeline.copies; copy++) for (const stream of ["compute", "collectives"]) lanes.set(`${stream} of copy ${copy}`, []);
    let end = 0;
    for (const [copy, stream, phase, name, begin, units] of r.pipeline.together) {
      const kind = stream === "collectives" ? "k-activations" : phase === "forward" ? "k-compute_forward" : phase === "backward" ? "k-compute_backward" : "k-recompute";
      lanes.get(`${stream} of copy ${copy}`).push({ begin: begin * plan.unit, end: (begin + units) * plan.unit, kind, short: String(copy), label: `copy ${copy}, ${phase} ${shown(name, 80)}` });
      end = Math.max(end, (begin + units) * plan.unit);
    }
    out.push(section("copies-timeline", `${count(r.pipeline.copies)} micro-batches that pass together`, h("p", { class: "quiet" }, "The collectives of one run beside the computing of another; what computing loses to them is not drawn."), new Timeline([...lanes].map(([name, events]) => ({ name, events })), end, go).element));
  }
  if (r.pipeline) {
    const stages = r.stages.map((st, k) => ({ name: `stage ${k}`, events: [] }));
    const kinds = { F: ["k-compute_forward", "forward"], B: ["k-compute_backward", "backward"], W: ["k-weight_gradients", "weight gradients"] };
    for (const [stage, kind, part, begin, end, chunk] of r.pipeline.passes) stages[stage].events.push({ begin, end, kind: kinds[kind][0], short: String(part), label: () => `stage ${stage}${r.schedule.chunks > 1 ? `, chunk ${chunk}` : ""}, ${r.pipeline.copies > 1 ? `micro-batches ${part} to ${part + r.pipeline.copies - 1}` : `micro-batch ${part}`}, ${kinds[kind][1]}` });
    let end = Math.max(...r.pipeline.passes.map((p) => p[4]));
    const idle = stages.map((lane) => 1 - lane.events.reduce((a, e) => a + e.end - e.begin, 0) / (end || 1));
    stages.forEach((lane, k) => { lane.note = `waits ${percent(Math.max(0, idle[k]))}`; });
    r.stages.forEach((st, k) => { if (st.once_s) stages[k].events.push({ begin: end, end: end + st.once_s, kind: "k-optimizer", short: "step", label: `stage ${k}: parameters gathered, gradients summed, update` }); });
    end += Math.max(0, ...r.stages.map((st) => st.once_s || 0));
    out.push(section("pipeline-timeline", "Micro-batches over the stages", h("p", { class: "quiet" }, `The bubble: stages wait ${percent(Math.max(0, idle.reduce((a, x) => a + x, 0) / idle.length))} of the time between the first and the last pass, which is left grey.`), r.pipeline.shown_micro_batches < r.pipeline.micro_batches && h("p", { class: "quiet" }, `The first ${count(r.pipeline.shown_micro_batches)} of ${count(r.pipeline.micro_batches)} micro-batches.`), new Timeline(stages, end, null, true).element));
  }
  if (r.stages.length > 1) out.push(section("stages", "Stages", table([["stage", "n"], ["operators", "n further"], ["forward", "n"], ["backward", "n"], ["once a step", "n further"], ["sends", "n further"], ["peak memory", "n"], ["exact", "n exact"]],
    r.stages.map((st) => [st.stage, count(st.operators), ...["forward_s", "backward_s", "once_s", "sends_s"].map((k) => seconds(st[k])), bytes(st.peak_memory_bytes), `${count(st.peak_memory_bytes)} bytes`]))));
  return out;
}

const PINS = 40; // rows of the table of pins

/** Pins that differ in the numbers of their names alone are one row. */
function pinSection(pins) {
  const rows = new Map();
  for (const p of pins) {
    const name = p.name.replace(/\d+/g, "*"), key = [p.object, name, p.pin, p.source].join("\u0000");
    if (!rows.has(key)) rows.set(key, { ...p, like: name, count: 0 });
    rows.get(key).count += 1;
  }
  const all = [...rows.values()];
  const source = new Set(pins.map((p) => p.source)).size === 1 ? pins[0].source : null;
  const columns = [["object", ""], ["name", "wrap"], ["number", "n"], ["pin", "wrap"], source === null && ["follows from", "wrap"]].filter(Boolean);
  const row = (p) => [p.object, shown(p.count > 1 ? p.like : p.name, 120) || "–", count(p.count), h("code", { class: "long" }, shown(p.pin, 120)), shown(p.source, 120)].slice(0, columns.length);
  return section("pins", "Pins", h("p", { class: "quiet" }, `${plural(pins.length, "pin")}${source === null ? "" : ", which all follow from "}`, source === null ? "" : h("code", { class: "long" }, shown(source, 300)), all.length < pins.length ? "; those whose names differ in numbers alone are one row." : "."),
    table(columns, all.slice(0, PINS).map(row)), all.length > PINS && h("details", null, h("summary", null, `${count(all.length - PINS)} more`), table(columns, all.slice(PINS, 25 * PINS).map(row)), all.length > 25 * PINS && h("p", { class: "quiet" }, `and ${count(all.length - 25 * PINS)} more, in plan.json`)));
}

function moreSections(plan) {
  const r = plan.report, out = [];
  const rows = [...r.candidates].sort((a, b) => (a.objective_s ?? Infinity) - (b.objective_s ?? Infinity) || a.bound_s - b.bound_s);
  const finite = rows.flatMap((c) => [c.bound_s, c.objective_s]).filter((x) => x !== null && isFinite(x));
  const low = Math.min(...finite), high = Math.max(...finite), from = high > 1.5 * low ? 0 : low - 0.15 * (high - low || high), at = (x) => `${(96 * (x - from)) / (high - from || 1) + 2}%`;
  const span = (c) => h("span", { class: "span", "aria-hidden": "true" },
    c.objective_s === null ? h("i", { class: "span-bar open", style: { left: at(c.bound_s), right: "0" } }) : h("i", { class: "span-bar", style: { left: at(c.bound_s), width: `max(2px, calc(${at(c.objective_s)} - ${at(c.bound_s)}))` } }),
    h("i", { class: "span-bound", style: { left: at(c.bound_s) } }), c.objective_s === null ? null : h("i", { class: "span-plan", style: { left: at(c.objective_s) } }));
  const chosen = plan.report.mesh.map((a) => a.size).join("x");
  if (rows.length) out.push(section("meshes", "Meshes tried", h("p", { class: "quiet" }, "Of each mesh the best objective that was found, and the bound below which there is none; where they meet, the search of that mesh is finished. The plan is the one with the shortest step."),
    h("ul", { class: "legend" }, h("li", null, h("span", { class: "dot-key bound" }), "lower bound"), h("li", null, h("span", { class: "dot-key plan" }), "best plan")),
    table([["mesh", ""], ["outcome", ""], ["bound to plan", "spans"], ["objective", "n"], ["lower bound", "n further"], ["exact objective", "n exact"]], rows.map((c) => [c.mesh === chosen ? h("b", null, `${c.mesh}${c.recompute ? " with recomputation" : ""}`) : `${c.mesh}${c.recompute ? " with recomputation" : ""}`, c.status, span(c), c.objective_s === null ? "–" : seconds(c.objective_s), seconds(c.bound_s), c.objective_s === null ? "–" : `${c.objective_s} s`])),
    h("p", { class: "quiet" }, `Solver: ${r.search.solver}; planner ${r.search.version}.`)));
  if (r.pins.length) out.push(pinSection(r.pins));
  return out;
}

begin((data, main) => {
  const plan = new Plan(data);
  const addressed = (what) => { // the address names the operator that is chosen, so that it can be sent
    const i = what && what.node;
    const to = i !== undefined && plan.nodes[i].kind === "operator" ? addressOf(plan, i) : null;
    if (to) try { history.replaceState(null, "", to); } catch { /* a frame without an origin has no address */ }
  };
  const graph = new Graph(plan, { onselect: (what) => { panel.show(what); addressed(what); }, shrink: () => matchMedia("(max-width: 900px)").matches && !graph.element.closest(".full") });
  const viewer = new Viewer(graph);
  const go = (i) => { if (graph.scale < CLEAR) graph.scale = CLEAR; graph.reveal(i); const box = graph.element.getBoundingClientRect(); if (box.top < 0 || box.top > innerHeight * 0.6) graph.element.scrollIntoView({ block: "start" }); };
  const panel = new Panel(plan, go, (i) => addressOf(plan, i));
  const show = (what) => { graph.select(what); graph.element.scrollIntoView({ block: "start" }); };
  const sections = [
    h("div", { class: "pair" }, timeSection(plan), memorySection(plan)),
    section("graph", "The graph", h("div", { class: "graph-bar" }, search(plan, go), h("span", { class: "tools" }, viewer.colours), graph.tools, viewer.legend), h("div", { class: "graph-row" }, graph.element, panel.element)),
    ...timelineSection(plan, go), heldSection(plan), clusterSection(plan), operatorSection(plan, go), moveSection(plan, show), ...foundSections(plan), ...moreSections(plan),
  ].filter(Boolean);
  const nav = h("nav", { "aria-label": "sections" }, sections.flatMap((x) => [...x.querySelectorAll("h2")]).map((x) => h("a", { href: `#${x.parentElement.id}` }, x.textContent)));
  main.append(header(plan), nav, ...sections, h("footer", { class: "quiet" }, `Made from plan.json${plan.report.history || plan.report.front ? " and the record of its search beside it" : " alone"}; model digest ${plan.report.model.digest}.`));
  graph.openFitting(CLEAR);
  const arrive = () => { const i = operatorOf(plan); if (i !== undefined) go(i); };
  addEventListener("hashchange", arrive);
  arrive();
});
