// Two plans beside each other.

import { h, ago, problemBox, seconds } from "./dom.js";
import { framed } from "./frame.js";
import { json } from "./service.js";

export async function showCompare(main, a, b) {
  const { items } = await json("/v1/plans?limit=200");
  if (items.length < 2) {
    main.replaceChildren(h("div", { class: "card" }, h("h1", {}, "Compare two plans"), h("p", {}, "There are not two plans yet. Plan a model twice: with another hardware, batch or pin.")));
    return;
  }
  a = items.some((p) => p.id === a) ? a : items[1].id;
  b = items.some((p) => p.id === b) ? b : items.find((p) => p.id !== a).id;
  const panel = h("section", { class: "card panel" });
  const go = () => {
    history.replaceState(null, "", `#/compare/${from.value}/${to.value}`);
    if (from.value === to.value) panel.replaceChildren(problemBox({ title: "A plan compared with itself is identical", detail: "Choose two." }));
    else framed(panel, `/v1/diffs/${from.value}/${to.value}?format=html`, "What B does differently");
  };
  const choice = (id, value) => h("select", { id, onchange: go }, items.map((p) => h("option", { value: p.id, selected: p.id === value }, named(p))));
  const from = choice("from", a);
  const to = choice("to", b);
  const swap = () => {
    [from.value, to.value] = [to.value, from.value];
    go();
  };
  main.replaceChildren(
    h(
      "div",
      { class: "card sides" },
      h("h1", {}, "Compare two plans"),
      h("div", { class: "field" }, h("label", { for: "from" }, "A"), from),
      h("button", { type: "button", class: "quiet", onclick: swap, title: "Swap A and B" }, "⇄"),
      h("div", { class: "field" }, h("label", { for: "to" }, "B"), to),
    ),
    panel,
  );
  go();
}

function named(plan) {
  const { summary: d, options: o } = plan;
  const extra = [o.strategy, ...[o.pin || []].flat(), o.mode, o.memory_limit].filter(Boolean).join(", ");
  const words = d.in_words ? d.in_words.split(/; | \(--details/)[0].replaceAll(" x ", " × ") : `mesh ${d.mesh}`;
  return `${plan.name} · ${seconds(d.step_time_s)} · ${o.devices} × ${o.hardware || "a100-80"} · ${words}${extra ? ` · ${extra}` : ""} · ${ago(plan.created_at)}`;
}
