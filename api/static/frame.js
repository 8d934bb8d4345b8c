// A page of the planner inside this one.

import { h, problemBox } from "./dom.js";
import { made } from "./service.js";

// The page is made first; its frame has no origin, so that it cannot reach the service.
export async function framed(panel, path, title) {
  const waiting = h("p", { class: "empty" }, h("span", { class: "spinner", "aria-hidden": "true" }), " being drawn …");
  panel.replaceChildren(waiting);
  try {
    await made(path, { method: "GET", headers: { accept: "text/html" } });
  } catch (error) {
    if (waiting.isConnected) panel.replaceChildren(problemBox(error.document || { title: String(error) }));
    return;
  }
  if (!waiting.isConnected) return; // another tab is open by now
  panel.replaceChildren(
    h("div", { class: "row over-frame" }, h("span", { class: "less" }, title), h("a", { class: "link", href: path, target: "_blank", rel: "noopener" }, "Open on its own")),
    h("iframe", { src: path, title, sandbox: "allow-scripts allow-downloads", loading: "eager" }),
  );
}
