// One job: watched while it runs, its plan shown when it has ended.

import { chart } from "./chart.js";
import { h, s, bytes, percent, problemBox, seconds, tell } from "./dom.js";
import { explain } from "./explain.js";
import { framed } from "./frame.js";
import { ENDED, asked, follow, put } from "./jobs.js";
import { Problem, json, made, post } from "./service.js";

const PHASES = { import: "reading the model", search: "searching", write: "writing the plan", paused: "paused while others have their turn" };
const TABS = { report: "Report", explain: "Explain", files: "Files", request: "Request" };

// Draws into `main`; returns what ends it.
export function showJob(main, job, tab) {
  const points = [];
  const messages = [];
  const head = h("div", { class: "head" });
  const live = h("section", { class: "card live" });
  const result = h("div", { class: "result" });
  const above = h("div", { class: "result" });
  main.replaceChildren(head, above, live, result);
  let phase = job.progress?.phase;
  let paused = job.progress?.paused;
  let drawn = 0;

  const draw = () => {
    drawn = 0;
    head.replaceChildren(...heading(job, cancel));
    live.hidden = ENDED.has(job.status) && points.length === 0;
    live.replaceChildren(...watching(job, paused ? "paused" : phase, points, messages, live.clientWidth - 40));
  };
  const soon = () => (drawn ||= requestAnimationFrame(draw));

  async function cancel(event) {
    event.target.disabled = true;
    job = await post(`/v1/jobs/${job.id}:cancel`);
    put(job);
    soon();
  }

  async function ended() {
    job = await json(`/v1/jobs/${job.id}`);
    put(job);
    soon();
    if (!ENDED.has(job.status)) return;
    // Of several plans the one with the shortest step is taken, whose objective may be above the least one.
    const last = points[points.length - 1];
    if (job.plan && (!last || job.summary.objective_s <= last.incumbent_s)) add(points, outcome(job.summary, points));
    tell(`${job.name}: ${job.status}`);
    if (job.plan) await showPlan(above, result, job, tab);
    else result.replaceChildren(problemBox(job.error || { title: "Cancelled", detail: "It was cancelled before there was a plan." }));
  }

  const stop = follow(job.id, (type, data) => {
    if (type === "progress" && data.incumbent_s !== undefined) add(points, data);
    if (type === "progress" && data.paused !== undefined) paused = data.paused;
    if (type === "phase") phase = data.phase;
    if (type === "message" && data.text) messages.push(data.text);
    if (type === "started" || type === "restarted") job = { ...job, status: "running" };
    if (type === "restarted") points.length = 0;
    if (ENDED.has(type) || type === "closed") ended().catch((e) => result.replaceChildren(problemBox(e.document || { title: String(e) })));
    soon();
  });
  draw();
  window.addEventListener("resize", soon);
  const clock = setInterval(() => job.status === "running" && soon(), 1000);
  return () => {
    stop();
    window.removeEventListener("resize", soon);
    clearInterval(clock);
    cancelAnimationFrame(drawn);
  };
}

function heading(job, cancel) {
  return [
    h("div", {}, h("h1", {}, job.name), h("p", { class: "less" }, asked(job))),
    h("span", { class: `pill ${job.status}` }, job.status),
    ENDED.has(job.status) ? null : h("button", { type: "button", class: "quiet", onclick: cancel }, "Stop and take the best so far"),
    job.plan ? h("a", { class: "button quiet", href: `#/compare/${job.plan}` }, "Compare …") : null,
  ].filter(Boolean);
}

function watching(job, phase, points, messages, width) {
  const last = points[points.length - 1];
  const over = ENDED.has(job.status);
  const told = over
    ? last && `${last.gap === 0 ? "Proven optimal" : `Within ${percent(last.gap)} of the optimum`} after ${seconds(last.seconds)} of searching`
    : job.status === "queued"
      ? "Waiting for a worker"
      : PHASES[phase] || "starting";
  return [
    h(
      "div",
      { class: "row" },
      h("h2", {}, over ? "The search" : [h("span", { class: "spinner", "aria-hidden": "true" }), capital(told)]),
      h("span", { class: "less" }, over ? told : last ? `gap ${percent(last.gap)} after ${elapsed(last).toFixed(0)} s` : ""),
    ),
    points.length > (over ? 1 : 0) ? [chart(points, over ? 0 : elapsed(last), width), h("p", { class: "less" }, "Seconds of everything in sequence, where operators are laid out one by one.")] : over ? null : h("p", { class: "empty" }, "The first plan has not been found yet."),
    over || !messages.length ? null : h("p", { class: "less" }, messages[messages.length - 1]),
  ]
    .flat()
    .filter(Boolean);
}

// Seconds of searching until now; the point says when it was found by the clock of the service.
const elapsed = (last) => last.seconds + Math.max(0, (Date.now() - Date.parse(last.at)) / 1000);

// The plan that the search ended with, which no event tells.
function outcome(d, points) {
  const last = points.length ? points[points.length - 1].seconds : 0;
  const seconds = d.cached ? last : Math.max(last, d.search_seconds);
  return { seconds, incumbent_s: d.objective_s, bound_s: d.objective_lower_bound_s, gap: d.gap, at: 0 };
}

// Equal points say nothing new.
function add(points, point) {
  const last = points[points.length - 1];
  if (last && last.incumbent_s === point.incumbent_s && last.bound_s === point.bound_s) {
    last.gap = point.gap; // the answer's, which is that of the step
    return;
  }
  points.push(point);
}

const capital = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

async function showPlan(above, result, job, tab) {
  const found = await json(`/v1/plans/${job.plan}/artifacts/search.json`);
  const [warnings, notes] = remarks(found, job);
  const panels = { report, explain, files, request };
  const panel = h("div", { role: "tabpanel", class: "panel", id: "panel", tabindex: 0 });
  const open = (name) => {
    for (const b of list.children) {
      b.setAttribute("aria-selected", b.dataset.tab === name);
      b.tabIndex = b.dataset.tab === name ? 0 : -1;
    }
    panel.setAttribute("aria-labelledby", `tab-${name}`);
    panel.replaceChildren();
    panels[name](panel, job);
    history.replaceState(null, "", `#/job/${job.id}${name === "report" ? "" : `/${name}`}`);
  };
  const list = h(
    "div",
    {
      role: "tablist",
      "aria-label": "The plan",
      onkeydown: (event) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const all = [...list.children];
        const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
        next.focus();
        open(next.dataset.tab);
      },
    },
    Object.entries(TABS).map(([name, title]) =>
      h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", "data-tab": name, onclick: () => open(name) }, title),
    ),
  );
  above.replaceChildren(figures(found));
  result.replaceChildren(
    warnings.length ? h("section", { class: "card warnings", "aria-label": "Warnings" }, h("h2", {}, warnings.length === 1 ? "A warning of the planner" : `${warnings.length} warnings of the planner`), h("ul", {}, warnings.map((w) => h("li", {}, w)))) : "",
    notes.length ? h("details", { class: "card notes" }, h("summary", {}, `${notes.length} ${notes.length === 1 ? "note" : "notes"} of the planner`), h("ul", {}, notes.map((w) => h("li", {}, w)))) : "",
    h("section", { class: "card tabs" }, list, panel),
  );
  open(TABS[tab] ? tab : "report");
}

// What the import and the search had to say: warnings, and notes that need no answer.
function remarks(found, job) {
  const lines = job.summary.messages || [];
  const said = (kind) => lines.filter((line) => line.startsWith(`${kind}: `)).map((line) => line.slice(kind.length + 2));
  const without = found.operators_replicated_for_want_of_a_rule || [];
  const warnings = [...(found.warnings || []), ...said("warning"), ...(without.length ? [`no rule splits operators of type ${without.join(", ")}: every device computes them whole`] : [])];
  const others = lines.filter((line) => !/^(warning|note): /.test(line));
  return [[...new Set(warnings)], [...new Set([...said("note"), ...others])]];
}

function figures(d) {
  const full = d.memory_limit_bytes ? d.peak_memory_bytes / d.memory_limit_bytes : null;
  const item = (name, value, more, extra) => h("div", {}, h("dt", {}, name), h("dd", {}, value), more ? h("dd", { class: "less" }, more) : null, extra || null);
  const whole = (x) => Math.round(x).toLocaleString("en");
  const rates = [d.samples_per_s && `${whole(d.samples_per_s)} samples/s`, d.tokens_per_s && `${whole(d.tokens_per_s)} tokens/s`].filter(Boolean);
  const bound = d.step_time_lower_bound_s;
  return h(
    "div",
    { class: "figures card" },
    d.in_words ? h("p", {}, d.in_words.replaceAll(" x ", " × ").replace(" (--details)", "")) : null,
    h(
      "dl",
      {},
      item("Step", seconds(d.step_time_s), rates.join(", ") || (d.batch ? `batch ${d.batch}` : null)),
      item("Gap to the optimum", percent(d.gap), d.gap === 0 ? "proven optimal" : bound ? `a step takes at least ${seconds(bound)}` : null),
      item("Memory of a device", bytes(d.peak_memory_bytes), full === null ? "no limit" : `${percent(full)} of ${bytes(d.memory_limit_bytes)}`, full === null ? null : share(full)),
      d.mfu ? item("MFU", percent(d.mfu), `${(d.flops_per_s_per_device / 1e12).toPrecision(4)} TFLOP/s of the model per device`) : null,
    ),
  );
}

const share = (part) =>
  s("svg", { class: part > 0.9 ? "share much" : "share", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" }, s("rect", { width: 100 * Math.min(1, part), height: 6 }));

function report(panel, job) {
  framed(panel, `/v1/plans/${job.plan}/artifacts/report.html`, `Report of ${job.name}`);
}

async function files(panel, job) {
  const { items } = await json(`/v1/plans/${job.plan}/artifacts`);
  const group = (title, chosen) => [h("h3", {}, title), h("ul", { class: "files" }, chosen.map((a) => file(a, job)))];
  const made = items.filter((a) => a.name.endsWith(".zip"));
  panel.replaceChildren(...group("The plan", items.filter((a) => !a.name.endsWith(".zip"))), ...group("For a runtime", made));
}

function file(artifact, job) {
  const told = h("span", { class: "less" }, artifact.size === null ? "made when asked for" : bytes(artifact.size));
  const fetchIt = async (event) => {
    event.preventDefault();
    told.textContent = "being made …";
    try {
      const blob = await (await made(artifact.href)).blob();
      told.textContent = bytes(blob.size);
      const url = URL.createObjectURL(blob);
      h("a", { href: url, download: `${job.name}-${artifact.name}` }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60000);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      told.textContent = error.document.title;
      told.title = error.document.detail;
      told.after(h("span", { class: "why" }, error.document.detail));
    }
  };
  return h("li", {}, h("a", { href: artifact.href, onclick: fetchIt }, artifact.name), told);
}

function request(panel, job) {
  const options = Object.entries(job.options).filter(([name]) => name !== "name");
  const words = options.flatMap(([k, v]) => [v].flat().map((one) => `--${k.replaceAll("_", "-")} ${/^[\w.,:=/@%+-]+$/.test(one) ? one : `'${String(one).replaceAll("'", "'\\''")}'`}`));
  panel.replaceChildren(
    h("p", {}, "The same by hand:"),
    h("pre", {}, `planner search ${job.name}.onnx ${words.join(" ")}`),
    h("table", { class: "options" }, h("tbody", {}, options.map(([k, v]) => h("tr", {}, h("th", { scope: "row" }, k), h("td", {}, [v].flat().join(", ")))))),
  );
}
