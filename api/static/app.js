// The page: what is looked at is named by the address behind `#`, so that it can be kept and shared.

import { showCompare } from "./compare.js";
import { byId, h, problemBox } from "./dom.js";
import { begin } from "./form.js";
import { showJob } from "./job.js";
import { choose, known, put, refresh } from "./jobs.js";
import { json, request } from "./service.js";

const main = byId("main");
let stop = () => {};

async function route() {
  const [kind, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  stop();
  stop = () => {};
  choose(kind === "job" ? rest[0] : "");
  document.body.dataset.view = kind;
  try {
    if (kind === "job") stop = showJob(main, known(rest[0]) || (await json(`/v1/jobs/${encodeURIComponent(rest[0])}`)), rest[1]);
    else if (kind === "compare") await showCompare(main, rest[0], rest[1]);
    else main.replaceChildren(welcome());
  } catch (error) {
    main.replaceChildren(problemBox(error.document || { title: "Something went wrong", detail: String(error) }));
  }
}

function welcome() {
  const step = (title, text) => h("li", {}, h("b", {}, title), h("p", {}, text));
  return h(
    "section",
    { class: "card welcome" },
    h("h1", {}, "How should this model run on many devices?"),
    h("p", {}, "The planner reads an ONNX graph, searches the best way to split every operator, and proves how far from the optimum its plan can be."),
    h(
      "ol",
      {},
      step("Give it a model", "Its weights are not needed and do not leave this browser. Or take a sample."),
      step("Say on what", "How many devices, of which kind; everything else has a default."),
      step("Watch the gap close", "Best plan and proven bound meet. You may stop any time and take the best so far."),
      step("Look, compare, take it", "A report of the whole plan, a comparison of two, files for PyTorch, MindSpore and others."),
    ),
  );
}

async function whose() {
  const session = await json("/v1/sessions");
  byId("whose").textContent = session.keys ? session.tenant : "";
  byId("leave").hidden = !session.keys;
}

byId("leave").addEventListener("click", async () => {
  await request("/v1/sessions", { method: "DELETE" });
  location.hash = "";
  location.reload();
});

window.addEventListener("hashchange", route);
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.document) main.prepend(problemBox(event.reason.document));
});

await whose();
await begin((job) => {
  put(job);
  location.hash = `#/job/${job.id}`;
  refresh().catch(() => {});
  main.focus({ preventScroll: true });
  if (matchMedia("(max-width: 860px)").matches) main.scrollIntoView({ behavior: "smooth" });
});
const jobs = await refresh();
if (!location.hash && jobs.length) history.replaceState(null, "", `#/job/${jobs[0].id}`);
await route();
document.body.dataset.ready = "true";
