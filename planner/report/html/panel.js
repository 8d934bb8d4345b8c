// What is known of one operator, tensor, group or set of redistributions.

class Panel {
  /** go(operator): shows an operator in the graph; address(operator): where the page shows it, if it has such places. */
  constructor(plan, go, address = () => null) {
    Object.assign(this, { plan, go, address });
    this.body = h("div", { class: "panel-body" });
    this.element = h("aside", { class: "panel", "aria-label": "details", "aria-live": "polite" }, this.body);
    this.empty();
  }
  empty() {
    this.body.replaceChildren(h("p", { class: "quiet" }, "Choose a box, a redistribution or a row of a table: what it does, costs and holds is shown here."),
      h("ul", { class: "quiet hints" }, h("li", null, "A click opens a box; − closes it."), h("li", null, "Arrow keys move between boxes, Enter opens."), h("li", null, "The wheel zooms once the graph was clicked, and with Ctrl always; dragging moves.")),
      h("h3", null, "The whole model"), ...this.group(this.plan.nodes[this.plan.root]).slice(1));
  }
  show(what) {
    const { plan } = this;
    this.body.scrollTop = 0;
    if (what.moves) return this.body.replaceChildren(...this.moves(what));
    const n = plan.nodes[what.node];
    if (n.kind === "operator") this.body.replaceChildren(...this.operator(plan.operators[n.i]));
    else if (n.kind === "input") this.tensor(plan.tensors.findIndex((t) => t.name === n.title));
    else this.body.replaceChildren(...this.group(n));
  }
  name(text, most) { return named(text, most || 160, { title: String(text).length > 60 ? shown(text, 2000) : undefined }); }
  head(kind, title, ...more) { return h("header", null, h("p", { class: "kind" }, kind), h("h3", null, this.name(title, 120)), more); }
  key(letter) { return s("svg", { class: "key", width: 14, height: 14, "aria-hidden": "true" }, s("rect", { width: 14, height: 14, rx: 2, fill: `url(#p-${letter})` })); }
  facts(rows) { return h("dl", null, rows.filter(Boolean).map(([k, ...v]) => [h("dt", null, k), h("dd", null, v)])); }
  operatorLink(i) { const o = this.plan.operators[i]; return link([h("b", null, this.plan.nodes[i].title), " ", this.name(o.name, 60)], () => this.go(i)); }
  tensorLink(t) { return t < 0 ? "–" : link(this.name(this.plan.tensors[t].name, 60), () => this.tensor(t)); }
  costs(spent) {
    const names = { forward: "forward", recompute: "run again", backward: "backward", inside: "inside operators", moved: "redistributions", parameters: "parameters moved", optimizer: "optimizer" };
    const rows = Object.entries(names).filter(([k]) => spent[k]).map(([k, label]) => [label, this.plan.time(spent[k]), percent(this.plan.share(spent[k]))]);
    if (!rows.length) return null;
    rows.push([h("b", null, "in all"), h("b", null, this.plan.time(spent.total)), percent(this.plan.share(spent.total))]);
    return table([["cost", ""], ["time", "n"], ["of objective", "n"]], rows);
  }
  operator(o) {
    const { plan } = this;
    const out = [this.head(`operator${o.stage || plan.report.stages.length > 1 ? ` of stage ${o.stage}` : ""}`, o.type.split("::").pop(), h("p", { class: "quiet" }, this.name(o.name)), this.address(o.i) && h("p", null, h("a", { href: this.address(o.i) }, "link to this operator")))];
    out.push(this.facts([
      o.type.includes("::") && ["type", this.name(o.type)],
      o.module && ["module", this.name(o.module)],
      o.source && o.source !== o.name && ["node", this.name(o.source)],
    ]));
    out.push(h("h4", null, "How it is split"), h("ul", { class: "axes" }, plan.axes.map((a, k) =>
      h("li", null, this.key(o.letters[k]), h("b", null, `${a.name} (${a.size})`), " ", plan.splits.get(o.letters[k]).name, " ", h("code", null, o.roles[k]), h("small", null, plan.splits.get(o.letters[k]).meaning)))));
    const costs = this.costs(plan.spent[o.i]);
    if (costs) out.push(costs);
    const row = (t, layout) => {
      const x = t >= 0 ? plan.tensors[t] : null;
      const parameter = t >= 0 && plan.parameters.has(t);
      return [this.tensorLink(t), x && x.shape ? x.shape.join("×") || "scalar" : "–", h("code", null, plan.layout(layout)), h("code", null, x && x.gradient >= 0 ? plan.layout(x.gradient) : parameter && plan.parameters.get(t).gradient >= 0 ? plan.layout(plan.parameters.get(t).gradient) : "–")];
    };
    const heads = [["tensor", "wrap"], ["shape", ""], ["as read", ""], ["gradient", ""]];
    out.push(h("h4", null, "Operands"), table(heads, o.inputs.map((t, k) => row(t, o.operands[k]))));
    out.push(h("h4", null, "Results"), table(heads.map(([a, b]) => [a === "as read" ? "as made" : a, b]), o.outputs.map((t, k) => row(t, o.results[k]))));
    if (o.inner.length) out.push(h("h4", null, "Collectives inside"), table([["kind", ""], ["over", ""], ["bytes", "n"], ["times", "n"], ["when", ""]], o.inner.map((c) => [c.kind.replaceAll("_", "-"), c.axes.join("."), count(c.bytes), c.count, c.backward ? "backward" : "forward"])));
    if (o.runs.length) out.push(h("h4", null, "Runs in the simulated step"), table([["phase", ""], ["begins", "n"], ["takes", "n"], ["of it inside", "n"]], o.runs.map((r) => [r.phase === "recompute" ? "run again" : r.phase, plan.time(r.begin), plan.time(r.units), r.inside ? plan.time(r.inside) : "–"])));
    const parameters = [...new Set(o.inputs)].filter((t) => plan.parameters.has(t));
    for (const t of parameters) out.push(...this.parameter(t));
    const moves = [...new Set([...o.moves, ...o.waits])].filter((i) => !parameters.includes(plan.moves[i].tensor));
    if (moves.length) out.push(h("h4", null, "Redistributions of its results"), this.moveTable(moves));
    const arriving = [...new Set(o.inputs)].filter((t) => t >= 0 && !plan.parameters.has(t)).flatMap((t) => plan.tensors[t].moves).filter((i) => plan.moves[i].reader < 0 || plan.moves[i].reader === o.i);
    if (arriving.length) out.push(h("h4", null, "Redistributions of its operands"), this.moveTable(arriving));
    const before = [...new Set(o.inputs.filter((t) => t >= 0).map((t) => plan.tensors[t].producer))].filter((i) => i >= 0);
    const after = [...new Set(o.outputs.filter((t) => t >= 0).flatMap((t) => plan.tensors[t].readers.map(([i]) => i)))];
    out.push(h("h4", null, "Neighbours"), h("ul", { class: "links" }, before.slice(0, 40).map((i) => h("li", null, "from ", this.operatorLink(i))), after.slice(0, 40).map((i) => h("li", null, "to ", this.operatorLink(i))), after.length > 40 && h("li", null, `and ${after.length - 40} more`)));
    return out;
  }
  parameter(t) {
    const { plan } = this, p = plan.parameters.get(t), x = plan.tensors[t];
    const moves = x.moves;
    return [h("h4", null, "Parameter"), this.facts([
      ["name", this.tensorLink(t)], ["shape", p.shape.join(" × ") || "scalar"], ["stored", h("code", null, plan.layout(p.stored))],
      ["computed with", p.compute.map((k) => h("code", null, plan.layout(k))).flatMap((c, i) => (i ? [", ", c] : [c]))],
      p.gradient >= 0 && ["gradient", h("code", null, plan.layout(p.gradient))],
      p.optimizer >= 0 && ["optimizer state", h("code", null, plan.layout(p.optimizer))],
      p.units > 0 && ["optimizer", plan.time(p.units)],
    ]), moves.length ? this.moveTable(moves) : null].filter(Boolean);
  }
  moveTable(moves) {
    const { plan } = this;
    return h("div", { class: "moves" }, moves.slice(0, 60).map((i) => {
      const m = plan.moves[i];
      return h("div", { class: "move" },
        h("p", null, h("b", null, m.gradient ? "gradient of " : "", this.tensorLink(m.tensor)), h("span", { class: "cost" }, plan.time(m.units))),
        h("p", { class: "route" }, h("code", null, plan.layout(m.source)), " → ", h("code", null, plan.layout(m.target)), m.reader >= 0 && [" for ", this.operatorLink(m.reader)]),
        h("ol", null, m.steps.map((t) => h("li", null, t.kind.replaceAll("_", "-"), t.axes.length ? ` over ${t.axes.join(".")}` : "", t.dim >= 0 ? `, dimension ${t.dim}${t.to >= 0 ? ` to ${t.to}` : ""}` : "", ` · ${bytes(t.bytes)} → `, h("code", null, plan.layout(t.target))))));
    }), moves.length > 60 && h("p", { class: "quiet" }, `and ${moves.length - 60} more`));
  }
  moves(what) {
    const { plan } = this;
    const units = what.moves.reduce((a, i) => a + plan.moves[i].units, 0);
    const size = what.moves.reduce((a, i) => a + plan.moveBytes(plan.moves[i]), 0);
    return [this.head("redistribution", what.moves.length > 1 ? plural(what.moves.length, "redistribution") : plan.moveText(plan.moves[what.moves[0]])),
      this.facts([["time", plan.time(units), ` (${percent(plan.share(units))} of the objective)`], ["bytes", `${bytes(size)} (${count(size)})`],
        what.source !== undefined && ["from", this.nodeLink(what.source)], what.targets && what.targets.length && ["to", what.targets.flatMap((t, i) => (i ? [", ", this.nodeLink(t)] : [this.nodeLink(t)]))]]),
      this.moveTable([...what.moves].sort((a, b) => plan.moves[b].units - plan.moves[a].units))];
  }
  nodeLink(i) { return link(this.name(this.plan.label(i), 60), () => this.go(i)); }
  group(n) {
    const { plan } = this;
    const spent = {};
    for (const i of n.operators) for (const [k, v] of Object.entries(plan.spent[i])) spent[k] = (spent[k] || 0) + v;
    const kinds = new Map();
    for (const i of n.operators) {
      const o = plan.operators[i], key = `${o.type} ${o.letters}`;
      const row = kinds.get(key) || { o, n: 0, units: 0 };
      row.n += 1;
      row.units += plan.spent[i].total;
      kinds.set(key, row);
    }
    const rows = [...kinds.values()].sort((a, b) => b.units - a.units || b.n - a.n);
    const kind = n.kind === "pile" ? `${n.alike} blocks, alike` : n.kind;
    return [this.head(kind, plan.path(n.i).slice(1).map((i) => plan.nodes[i].title).join(" › "), h("p", { class: "quiet" }, n.detail)),
      n.alike ? h("p", null, "Their operators have equal shapes, strategies, layouts and redistributions.") : null,
      h("h4", null, "How it is split"), h("ul", { class: "axes" }, plan.axes.map((a, k) => h("li", null, h("b", null, `${a.name} (${a.size})`), plan.mixture(n, k).sort((p, q) => q[1] - p[1]).map(([l, part]) => h("span", { class: "mix" }, this.key(l), `${plan.splits.get(l).name} ${percent(part)}`))))),
      this.costs(spent),
      h("h4", null, "Operators"), table([["operator", ""], ["split", ""], ["number", "n"], ["time", "n"]], rows.slice(0, 30).map((r) => [link(r.o.type.split("::").pop(), () => this.go(r.o.i)), plan.splitText(r.o.letters), r.n, r.units ? plan.time(r.units) : "–"])),
    ].filter(Boolean);
  }
  tensor(t) {
    const { plan } = this, x = plan.tensors[t];
    this.body.scrollTop = 0;
    const choices = new Map();
    const add = (layout, what) => { if (layout >= 0) choices.set(layout, [...(choices.get(layout) || []), what]); };
    const p = plan.parameters.get(t);
    if (p) { add(p.stored, "stored"); p.compute.forEach((k) => add(k, "computed with")); }
    else add(x.layout, x.producer >= 0 ? "produced" : "fed");
    x.moves.forEach((i) => { const m = plan.moves[i]; if (!m.gradient) add(m.target, "converted to"); });
    add(x.gradient, "gradient wanted");
    x.moves.forEach((i) => { const m = plan.moves[i]; if (m.gradient) add(m.source, "gradient made"); });
    const place = h("div", null);
    const draw = (layout) => place.replaceChildren(meshGrid(plan, x, layout));
    const select = h("select", { on: { change: (e) => draw(+e.target.value) } }, [...choices].map(([layout, names]) => h("option", { value: layout }, `${plan.layout(layout)} – ${[...new Set(names)].join(", ")}`)));
    this.body.replaceChildren(...[this.head(p ? "parameter" : "tensor", x.name),
      this.facts([["shape", x.shape ? x.shape.join(" × ") || "scalar" : "not known"], x.dtype && ["type", x.dtype], x.role && ["role", x.role], x.producer >= 0 && ["made by", this.operatorLink(x.producer)]]),
      choices.size ? [h("h4", null, "Who holds what"), h("label", { class: "choice" }, "layout ", select), place] : h("p", { class: "quiet" }, "A constant: the plan does not lay it out."),
      p ? this.parameter(t).slice(1) : x.moves.length ? [h("h4", null, "Redistributions"), this.moveTable(x.moves)] : null,
      h("h4", null, "Read by"), h("ul", { class: "links" }, x.readers.slice(0, 60).map(([i, slot]) => h("li", null, this.operatorLink(i), ` operand ${slot}`)), x.readers.length > 60 && h("li", null, `and ${x.readers.length - 60} more`), !x.readers.length && h("li", null, "no operator: a result of the model"))].flat(3).filter(Boolean));
    if (choices.size) draw(choices.keys().next().value);
  }
}
