// The first screen of the page of two plans: totals, the step by cause as a waterfall, changes by rule.
// Figures are texts that add up as they are printed; nothing is rounded here.

const minus = (text) => text.replace(/^-/, "−");
const bent = (n) => (n < 0 ? "saves" : n > 0 ? "costs" : "even");
const arrows = (text) => text.replaceAll(" -> ", " → ").replaceAll(" x ", " × ");

function verdict(d) {
  const s = d.summary.step;
  if (d.identical) return "The plans are identical";
  if (d.other_work) return d.other_work;
  if (!s.amount) return "A step takes as long in both plans";
  return `A step of B is ${s.delta.replace(/^[+-]/, "")} ${d.summary.unit} ${s.amount < 0 ? "shorter" : "longer"}${s.relative ? ` (${minus(s.relative)})` : ""}`;
}

function diffHeader(d) {
  const same = d.heads.a[0] === d.heads.b[0];
  const plan = (key) => h("p", { class: `plan side-${key}` }, h("b", { class: "letter" }, key.toUpperCase()),
    d.names && h("code", null, shown(d.names[key], 160)),
    h("b", { class: "name", dir: "auto" }, arrows(shown(d.heads[key][1].replace(/ \(--details\)$/, ""), 200))),
    same ? null : h("span", { class: "quiet name", dir: "auto" }, arrows(shown(d.heads[key][0], 200))));
  return h("header", { class: "top" },
    h("p", { class: "kind" }, "difference of two plans", same ? [" · ", h("span", { class: "name", dir: "auto" }, arrows(shown(d.heads.a[0], 200)))] : null),
    h("h1", null, verdict(d)), plan("a"), plan("b"),
    d.warnings.length ? h("ul", { class: "notes" }, d.warnings.map((n) => h("li", { class: "warning" }, shown(n, 600)))) : null);
}

function totalTiles(d) {
  return h("dl", { class: "tiles totals" }, d.summary.totals.map((r) => h("div", { class: "tile" },
    h("dt", { class: "kind" }, r.name),
    h("dd", { class: `big ${d.other_work && r.key === "step" ? "even" : bent(r.way)}` }, h("span", { class: "delta-text" }, minus(r.delta)), r.relative ? h("span", { class: "percent" }, minus(r.relative)) : null),
    h("dd", { class: "quiet" }, `${r.a} → ${r.b}`))));
}

/** The step of A, what each cause adds or takes, the step of B: bars on one scale that begins where the caption says. */
function waterfall(s) {
  const number = (text) => Number(text);
  let at = number(s.step.a);
  const rows = [["A", null, s.step.a, at, at, "total"]];
  for (const r of s.causes) { const next = at + number(r.delta); rows.push([r.name, r, r.delta, at, next, bent(r.amount)]); at = next; }
  rows.push(["B", null, s.step.b, at, at, "total"]);
  const levels = rows.flatMap((r) => [r[3], r[4]]);
  const high = Math.max(...levels), span = high - Math.min(...levels);
  const low = span > high * 0.5 ? 0 : Math.max(0, Math.min(...levels) - span * 0.3);
  const share = (x) => (high > low ? (100 * (x - low)) / (high - low) : 0);
  const bar = (from, to, kind) => {
    const [x, y] = kind === "total" ? [0, share(to)] : [share(Math.min(from, to)), share(Math.max(from, to))];
    return h("div", { class: "fall", "aria-hidden": "true" }, h("span", { class: `level ${kind}`, style: { "margin-left": `${x}%`, width: `${Math.max(0.4, y - x)}%` } }));
  };
  const line = ([name, r, text, from, to, kind]) => [kind === "total" ? h("b", null, `step of ${name}`) : name, bar(from, to, kind),
    r ? r.a : "", r ? r.b : "", kind === "total" ? h("b", null, text) : h("span", { class: `delta ${kind}` }, minus(text))];
  const body = rows.slice(0, -1).map(line);
  if (s.alike) body.push([h("span", { class: "quiet" }, s.alike.name), "", s.alike.a, s.alike.b, h("span", { class: "quiet" }, s.alike.delta)]);
  body.push(line(rows[rows.length - 1]));
  const from = low ? `; bars begin at ${four(low)} ${s.unit}` : "";
  return table([[[`step by cause, ${s.unit}`, from ? h("span", { class: "bar-note" }, from) : null], "wrap cause"], ["bars", "bars"], ["A", "n"], ["B", "n"], ["B − A", "n"]], body);
}

/** Rules as buttons; go(change) shows the operators. */
function ruleList(d, go) {
  const s = d.summary;
  const item = (c) => {
    const roles = c.roles.slice(0, 4).map(([name]) => shown(name, 40)).join(", ") + (c.roles.length > 4 ? ` and ${c.roles.length - 4} more` : "");
    const words = c.changes.length ? c.changes.map(([what, a, b], i) => [i ? "; " : null, what ? h("span", { class: "quiet" }, `${shown(what, 40)} `) : null, `${arrows(shown(a, 60))} → `, h("b", null, arrows(shown(b, 60)))]) : shown(c.text.replace(" (--details)", ""), 160);
    const head = h("b", { class: `delta ${bent(c.amount)}` }, minus(c.delta));
    const text = h("span", { class: "said" }, c.operators ? h("span", { class: "times" }, `${count(c.operators)} × `) : null, roles ? h("span", { class: "name", dir: "auto" }, `${roles}: `) : null, words);
    return h("li", null, c.groups.length ? h("button", { type: "button", class: "rule", on: { click: () => go(c) } }, head, text) : h("p", { class: "rule" }, head, text));
  };
  if (!s.changes.length) return h("p", { class: "quiet" }, d.identical ? "Every operator, parameter and redistribution is the same." : "No operator does anything otherwise.");
  return [h("ol", { class: "rules" }, s.changes.map(item)), h("p", { class: "rule total" }, h("b", { class: `delta ${bent(s.step.amount)}` }, minus(s.step.delta)), h("b", { class: "said" }, "step"))];
}

function summarySection(d, go) {
  const s = d.summary;
  const changed = new Set(d.objective.groups.flatMap((g) => g.operators.map((p) => p[0]))).size;
  return h("div", { class: "summary" },
    totalTiles(d),
    h("section", { id: "cause", "aria-labelledby": "cause-title" }, h("h2", { id: "cause-title" }, "Why the step differs"), waterfall(s)),
    h("section", { id: "rules", "aria-labelledby": "rules-title" }, h("h2", { id: "rules-title" }, "What changes", h("small", null, `${s.unit} of a step before anything is hidden; ${count(changed)} of ${plural(d.matching.operators, "operator")}`)), ruleList(d, go)));
}

/** A section that is closed until it is asked for; `opened` is called once, when it first is. */
function fold(id, title, note, opened, ...content) {
  const box = h("details", { id, class: "fold" }, h("summary", null, h("h2", null, title), note ? h("span", { class: "quiet" }, note) : null), content);
  if (opened) box.addEventListener("toggle", () => { if (box.open) opened(); }, { once: true });
  return box;
}
