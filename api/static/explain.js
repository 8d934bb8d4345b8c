// Why an operator is split as it is: the document of `planner explain` (docs/explain.md).

import { h, bytes, percent, problemBox, seconds } from "./dom.js";
import { json, made } from "./service.js";

export async function explain(panel, job) {
  const operator = h("input", { id: "operator", list: "operators", placeholder: "the plan as a whole", autocomplete: "off", spellcheck: "false" });
  const names = h("datalist", { id: "operators" });
  const answer = h("div", { class: "answer", "aria-live": "polite" });
  const form = h(
    "form",
    {
      class: "ask-row",
      onsubmit: (event) => {
        event.preventDefault();
        ask(answer, job, operator.value.trim());
      },
    },
    h("div", { class: "field" }, h("label", { for: "operator" }, "Operator"), operator, names),
    h("button", { type: "submit", class: "quiet" }, "Explain"),
  );
  panel.replaceChildren(form, h("p", { class: "less" }, "Every alternative is searched again with it pinned: this may take as long as the search did."), answer);
  const plan = await json(`/v1/plans/${job.plan}`);
  const listed = Object.keys(plan.operators);
  names.replaceChildren(...listed.slice(0, 3000).map((name) => h("option", { value: name })));
}

async function ask(answer, job, operator) {
  answer.replaceChildren(h("p", { class: "empty" }, h("span", { class: "spinner", "aria-hidden": "true" }), "searching alternatives …"));
  const query = operator ? `?operator=${encodeURIComponent(operator)}` : "";
  try {
    const response = await made(`/v1/plans/${job.plan}/explanation${query}`, { headers: { accept: "application/json" } });
    answer.replaceChildren(...told(await response.json()));
  } catch (error) {
    answer.replaceChildren(problemBox(error.document || { title: String(error) }));
  }
}

function told(d) {
  const out = [h("h3", {}, "What stops a better plan"), h("p", {}, d.binding)];
  const limits = d.limits.filter((l) => l.why && !d.binding.includes(l.why));
  if (limits.length) out.push(h("ul", {}, limits.map((l) => h("li", {}, h("b", {}, l.name || l.kind), `: ${l.why}`))));
  if (d.choice) out.push(...choice(d.choice));
  if (d.alternatives.length) out.push(h("h3", {}, "The best alternatives"), alternatives(d.alternatives));
  if (d.refused.length) out.push(h("h3", {}, "What cannot be"), h("ul", {}, d.refused.map((r) => h("li", {}, h("code", {}, split(r.split)), ` ${r.reason}`))));
  if (d.meshes.length) out.push(h("h3", {}, "Meshes"), meshes(d.meshes));
  if (d.operators.length) out.push(h("h3", {}, "The most expensive operators"), expensive(d.operators));
  if (d.redistributions.length) out.push(h("h3", {}, "The most expensive redistributions"), moves(d.redistributions));
  if (d.notes.length) out.push(h("h3", {}, "Notes"), h("ul", {}, d.notes.map((n) => h("li", {}, n))));
  return out;
}

const split = (factors) => Object.entries(factors).map(([f, n]) => `${f} over ${n}`).join(", ") || "whole on every device";

function table(head, rows) {
  const cells = (row, name) => row.map((c) => (c instanceof Node ? h(name, {}, c) : h(name, { class: typeof c === "string" && /^[+−]?\d/.test(c) ? "number" : null }, c)));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head.map((t) => h("th", { scope: "col" }, t)))), h("tbody", {}, rows.map((r) => h("tr", {}, cells(r, "td"))))));
}

const more = (value) => (value === 0 ? "0 s" : `${value > 0 ? "+" : "−"}${seconds(Math.abs(value))}`);

function choice(c) {
  const runs = Object.entries(c.runs_s).map(([phase, s]) => `${phase} ${seconds(s)}`);
  return [
    h("h3", {}, "The choice"),
    h("p", {}, h("code", {}, c.operator), ` (${c.type}${c.module ? `, ${c.module}` : ""}): ${split(c.split)}. It costs ${seconds(c.own_s)}: ${runs.join(", ")}${c.inside_s ? `, of which ${seconds(c.inside_s)} in collectives` : ""}.`),
  ];
}

function alternatives(list) {
  return table(
    ["Split", "Objective", "Difference", "Gap", "Memory", "Why it loses"],
    list.map((a) => [h("code", {}, split(a.split)), seconds(a.objective_s), more(a.difference_s), percent(a.gap), bytes(a.peak_memory_bytes), h("details", {}, h("summary", {}, a.why), h("pre", {}, a.command))]),
  );
}

function meshes(list) {
  return table(["Mesh", "Objective", "Bound", "Status"], list.map((m) => [`${m.mesh}${m.recompute ? ", recomputed" : ""}`, seconds(m.objective_s), seconds(m.bound_s), m.status]));
}

function expensive(list) {
  return table(
    ["Operator", "Type", "Split", "Costs", "Best alternative"],
    list.map((t) => [h("code", {}, t.choice.operator + (t.choice.alike > 1 ? ` and ${t.choice.alike - 1} alike` : "")), t.choice.type, split(t.choice.split), seconds(t.choice.own_s), t.alternative ? `${split(t.alternative.split)}: ${more(t.alternative.difference_s)}` : t.reason]),
  );
}

function moves(list) {
  return table(
    ["Tensor", "For", "From", "To", "Collectives", "Takes"],
    list.map((m) => [h("code", {}, m.tensor), m.direction, m.source, m.target, m.collectives.join(", "), seconds(m.seconds)]),
  );
}
