// The list of jobs, and what happens to the one that is looked at.

import { byId, h, ago, percent, seconds } from "./dom.js";
import { json, request } from "./service.js";

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
const EVERY = 1500; // ms between two looks at jobs that nobody watches: a browser opens few streams at a time

let listed = new Map();
let timer = 0;
let shown = "";

export const known = (id) => listed.get(id);

export function put(job) {
  listed.set(job.id, job);
  draw();
}

export function choose(id) {
  shown = id;
  draw();
}

export async function refresh() {
  clearTimeout(timer);
  const page = await json("/v1/jobs?limit=50");
  listed = new Map(page.items.map((j) => [j.id, j]));
  draw();
  if (page.items.some((j) => !ENDED.has(j.status))) timer = setTimeout(() => refresh().catch(() => {}), EVERY);
  return page.items;
}

function draw() {
  const items = [...listed.values()].sort((a, b) => Date.parse(b.created_at) - Date.parse(a.created_at));
  byId("no-jobs").hidden = items.length > 0;
  byId("to-compare").hidden = new Set(items.map((j) => j.plan).filter(Boolean)).size < 2;
  byId("jobs").replaceChildren(...items.map(entry));
}

function entry(job) {
  return h(
    "li",
    {},
    h(
      "a",
      { href: `#/job/${job.id}`, "aria-current": job.id === shown ? "true" : null },
      h("span", { class: `dot ${job.status}`, title: job.status }),
      h("span", { class: "name" }, job.name),
      h("span", { class: "figure" }, figure(job)),
      h("span", { class: "less" }, asked(job)),
      h("span", { class: "less end" }, ago(job.created_at)),
    ),
  );
}

export function asked(job) {
  const o = job.options;
  return [`${o.devices} × ${o.hardware || "a100-80"}`, o.mode, o.strategy, o.mesh && `mesh ${o.mesh}`, o.batch && `batch ${o.batch}`, o.memory_limit, ...[o.pin || []].flat()].filter(Boolean).join(" · ");
}

function figure(job) {
  if (job.summary?.step_time_s) return seconds(job.summary.step_time_s);
  if (job.status === "running" && job.progress.gap !== undefined && job.progress.gap !== null) return `gap ${percent(job.progress.gap)}`;
  return job.status;
}

// Calls `on(type, data)` for every event; the browser takes broken streams up itself.  Returns what ends it.
export function follow(id, on) {
  const source = new EventSource(`/v1/jobs/${id}/events`);
  for (const type of ["queued", "started", "phase", "progress", "message", "restarted", ...ENDED]) {
    source.addEventListener(type, (event) => {
      if (ENDED.has(type)) source.close();
      on(type, JSON.parse(event.data || "{}"));
    });
  }
  source.onerror = () => {
    // Closed for good: the session ended, or there is nothing more to come.
    if (source.readyState === EventSource.CLOSED) request(`/v1/jobs/${id}`).then(() => on("closed", {}), () => {});
  };
  return () => source.close();
}
