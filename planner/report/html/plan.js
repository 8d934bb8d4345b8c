// What the page knows of one plan.  Rows are as planner/report/html/data.py writes them.

// Bytes of what no precision changes: whole numbers and truth values.
const WIDTHS = { int64: 8, uint64: 8, int32: 4, uint32: 4, int16: 2, uint16: 2, int8: 1, uint8: 1, bool: 1 };

class Plan {
  constructor(data) {
    this.data = data;
    this.report = data.report;
    this.unit = data.unit;
    this.axes = data.report.mesh;
    this.operators = data.operators.map((r, i) => ({
      i, name: r[0], type: r[1], source: r[2], module: r[3], roles: r[4], letters: r[5], stage: r[6],
      inputs: r[7], operands: r[8], outputs: r[9], results: r[10],
      inner: r[11].map(([kind, axes, size, backward, n]) => ({ kind, axes, bytes: size, backward: !!backward, count: n })),
      runs: r[12].map(([phase, begin, units, inside]) => ({ phase, begin, units, inside })),
      moves: [], waits: data.waits[i] || [], parameters: [], weights: [],
    }));
    this.moves = data.moves.map((r, i) => ({
      i, tensor: r[0], gradient: !!r[1], reader: r[2], source: r[3], target: r[4],
      steps: r[5].map(([kind, axes, dim, to, target, size]) => ({ kind, axes, dim, to, target, bytes: size })),
      units: r[6], begin: r[7], owner: r[8], part: data.labels[r[9]][0],
    }));
    this.tensors = data.tensors.map((r, i) => ({ i, name: r[0], shape: r[1] || null, dtype: r[2], role: r[3], layout: r[4] ?? -1, gradient: r[5] ?? -1, producer: -1, readers: [], moves: [] }));
    for (const [tensor, layout, shape, dtype] of data.inputs) {
      const t = this.tensors[tensor];
      t.fed = true;
      if (t.layout < 0) Object.assign(t, { layout, shape: t.shape || shape, dtype: t.dtype || dtype, role: t.role || "input" });
    }
    for (const o of this.operators) {
      for (const t of o.outputs) if (t >= 0) this.tensors[t].producer = o.i;
      o.inputs.forEach((t, k) => t >= 0 && this.tensors[t].readers.push([o.i, k]));
    }
    for (const m of this.moves) {
      this.tensors[m.tensor].moves.push(m.i);
      if (m.owner >= 0 && m.owner < this.operators.length) this.operators[m.owner].moves.push(m.i);
    }
    this.parameters = new Map();
    for (const [key, r] of Object.entries(data.parameters)) {
      const p = { tensor: +key, shape: r[0], stored: r[1], compute: r[2], gradient: r[3], optimizer: r[4], units: r[5], owner: r[6] };
      this.parameters.set(+key, p);
      const t = this.tensors[+key];
      t.shape = t.shape || p.shape;
      if (t.layout < 0) t.layout = p.stored;
      if (p.owner >= 0) this.operators[p.owner].parameters.push(p);
      if (t.readers.length) this.operators[t.readers[0][0]].weights.push(p);
    }
    this.nodes = data.operators.map((r, i) => ({ i, kind: "operator", title: r[1].split("::").pop(), detail: data.details[i], parent: data.parents[i], children: [], alike: 0, operators: [i] }));
    data.nodes.forEach(([kind, title, detail, parent, children, alike], k) =>
      this.nodes.push({ i: data.operators.length + k, kind, title, detail, parent, children, alike, operators: null }));
    this.root = data.root;
    this.splits = new Map(data.splits.map(([letter, name, meaning, pattern]) => [letter, { letter, name, meaning, pattern }]));
    this.below(this.root);
    this.spent = this.operators.map((o) => this.unitsOf(o));
    this.total = Object.values(data.units).reduce((a, b) => a + b, 0);
    for (const n of this.nodes) n.units = n.operators.reduce((a, i) => a + this.spent[i].total, 0);
    this.byName = new Map(this.operators.map((o) => [o.name, o.i]));
  }
  below(i) {
    const n = this.nodes[i];
    if (n.operators === null) n.operators = n.children.flatMap((c) => this.below(c));
    return n.operators;
  }
  unitsOf(o) {
    const out = { forward: 0, recompute: 0, backward: 0, inside: 0, moved: 0, parameters: 0, optimizer: 0, total: 0 };
    for (const r of o.runs) { out[r.phase] += r.units - r.inside; out.inside += r.inside; }
    for (const i of o.moves) out[this.parameters.has(this.moves[i].tensor) ? "parameters" : "moved"] += this.moves[i].units;
    for (const p of o.parameters) out.optimizer += p.units;
    out.total = out.forward + out.recompute + out.backward + out.inside + out.moved + out.parameters + out.optimizer;
    return out;
  }
  time(units) { return seconds(units * this.unit); }
  share(units) { return this.total ? units / this.total : 0; }
  layout(k) { return k < 0 ? "–" : this.data.layouts[k]; }
  /** "[x,_,z.y:3]+w(max)" → {dims: [["x"], [], ["z","y"]], parts: [1, 1, 3], partial: [["w","max"]]} */
  parsed(k) {
    const text = this.data.layouts[k];
    const end = text.indexOf("]");
    const inside = text.slice(1, end);
    return {
      dims: inside ? inside.split(",").map((d) => (d === "_" ? [] : d.split(":")[0].split("."))) : [],
      parts: inside ? inside.split(",").map((d) => Number(d.split(":")[1] || 1)) : [],
      partial: text.slice(end + 1).split("+").filter(Boolean).map((p) => { const [axis, how] = p.split("("); return [axis, how ? how.slice(0, -1) : "sum"]; }),
    };
  }
  /** "x batch · y columns"; `short` leaves out axes over which nothing is split. */
  splitText(letters, short) { return this.splitList(letters, short).join(" · "); }
  splitList(letters, short) {
    const all = [...letters].map((l, k) => [l, `${this.axes[k].name} ${this.splits.get(l).name}`]);
    const said = short ? all.filter(([l]) => l !== "r") : all;
    return said.length ? said.map(([, text]) => text) : ["replicated"];
  }
  /** Bytes of a tensor on one device in a layout, in the precision of the plan; 0 where the shape is not known. */
  localBytes(t, layoutNumber) {
    const x = this.tensors[t];
    if (!x.shape || layoutNumber < 0) return 0;
    const size = (names) => names.reduce((n, name) => n * this.axes.find((a) => a.name === name).size, 1);
    const split = this.parsed(layoutNumber).dims.reduce((n, names) => n * size(names), 1);
    const wide = WIDTHS[x.dtype] || (this.report.schedule.precision === "fp32" ? 4 : 2);
    return (x.shape.reduce((n, d) => n * d, 1) * wide) / split;
  }
  /** Bytes that a device holds of the results and weights of a node's operators, one after the other. */
  held(node) {
    if (!this.heldOf) this.heldOf = this.operators.map((o) =>
      o.outputs.reduce((sum, t, k) => sum + (t < 0 ? 0 : this.localBytes(t, o.results[k] ?? -1)), 0) + o.weights.reduce((sum, p) => sum + this.localBytes(p.tensor, p.stored), 0));
    if (node.held === undefined) node.held = Math.round(node.operators.reduce((sum, i) => sum + this.heldOf[i], 0));
    return node.held;
  }
  moveText(m) { return m.steps.map((t) => t.kind.replaceAll("_", "-") + (t.axes.length ? ` over ${t.axes.join(".")}` : "")).join(", ") || "nothing moved"; }
  moveBytes(m) { return m.steps.reduce((a, t) => a + t.bytes, 0); }
  /** Letters and shares of what a node's operators do on one mesh axis, by time where there is any. */
  mixture(node, axis) {
    node.mixtures ||= [];
    return (node.mixtures[axis] ||= this.mixed(node, axis)).slice();
  }
  mixed(node, axis) {
    const sums = new Map();
    const timed = node.units > 0;
    for (const i of node.operators) {
      const letter = this.operators[i].letters[axis];
      sums.set(letter, (sums.get(letter) || 0) + (timed ? this.spent[i].total : 1));
    }
    const whole = [...sums.values()].reduce((a, b) => a + b, 0) || 1;
    return [...this.splits.keys()].filter((l) => sums.has(l)).map((l) => [l, sums.get(l) / whole]).filter(([, part]) => part > 0);
  }
  path(i) {
    const out = [];
    for (let n = i; n >= 0; n = this.nodes[n].parent) out.unshift(n);
    return out;
  }
  label(i) {
    const n = this.nodes[i];
    return n.kind === "operator" ? `${n.title} ${n.detail}` : n.title;
  }
}
