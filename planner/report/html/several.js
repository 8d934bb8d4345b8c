// The page of several plans beside one baseline: a row for each, and the causes of their steps as a table.

const CAUSE_KEYS = { compute: "compute_forward", recompute: "recompute", collectives: "activations", unhidden: "activations", together: "activations", host: "m-buffers", offload: "activation_gradients", bubble: "bubble", optimizer: "optimizer", outside: "m-inputs" };
const signs = (text) => text.replace(/^-/, "−");
const toward = (text) => (/^-/.test(text) && !/^-0(\.0*)?%?$/.test(text) ? "saves" : /^\+/.test(text) ? "costs" : "even");

begin((d, main) => {
  const longest = Math.max(...d.plans.map((p) => p.causes.reduce((a, c) => a + c.seconds, 0))) || 1;
  const bar = (p) => h("div", { class: "bar", role: "img", "aria-label": p.causes.map((c) => `${c.label} ${c.text} ${d.unit}`).join(", ") },
    p.causes.filter((c) => c.seconds).map((c) => h("span", { class: `part k-${CAUSE_KEYS[c.key]}`, title: `${c.label}: ${c.text} ${d.unit}`, style: { width: `${(100 * c.seconds) / longest}%` } })));
  const known = d.plans[0].causes.map((c, k) => [c, k]).filter(([, k]) => d.plans.some((p) => p.causes[k].seconds));
  const plan = (p) => [h("code", { class: "long" }, shown(p.name, 160)), h("b", { class: "name said-plan", dir: "auto" }, shown(p.words, 240).replaceAll(" x ", " × ")), p.about ? h("small", { class: "name", dir: "auto" }, shown(p.about, 200).replaceAll(" x ", " × ")) : null];
  const delta = (p, text) => h("span", { class: `delta ${p.about ? "even" : toward(text)}` }, signs(text)); // of other work nothing is called faster
  const heads = [["", ""], ["plan", "wrap"], ["step by cause", "bars-wide"], [`step (${d.unit})`, "n"], ["against base", "n"], d.rates && ["samples/s", "n"], ["memory (GiB)", "n"], ["sent (GiB)", "n"]].filter(Boolean);
  const rows = d.plans.map((p, k) => [h("b", { class: "letter" }, k || "0"), plan(p), bar(p), h("b", null, p.step), k ? [delta(p, p.delta), " ", delta(p, p.relative)] : "base", ...(d.rates ? [p.rate] : []), p.memory, p.sent]);
  main.append(
    h("header", { class: "top" }, h("p", { class: "kind" }, "several plans beside one baseline"), h("h1", null, h("span", { class: "name", dir: "auto" }, shown(d.headline, 200).replaceAll(" x ", " × ")))),
    section("plans", "The step of each plan", table(heads, rows),
      h("ul", { class: "legend" }, known.map(([c]) => h("li", null, h("span", { class: `key k-${CAUSE_KEYS[c.key]}`, "aria-hidden": "true" }), c.label)))),
    h("details", { id: "causes", class: "fold" }, h("summary", null, h("h2", null, "The step by cause, in figures")), table([[d.unit, "wrap"], ...d.plans.map((p, k) => [k ? String(k) : "base", "n"])],
      [...known.map(([c, k]) => [c.label, ...d.plans.map((p) => p.causes[k].text)]), [h("b", null, "step"), ...d.plans.map((p) => h("b", null, p.step))]]),
      h("p", { class: "quiet" }, "Every column adds up to its last line as printed. Memory and what is sent are of one device.")));
});
