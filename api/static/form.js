// What is asked for: a model and options.

import { byId, h, bytes, problemBox, tell } from "./dom.js";
import { Problem, json, post, request } from "./service.js";
import { Malformed, holdsGraph, strip } from "./strip.js";

const MOST = 1900 * 2 ** 20; // bytes that a browser holds in one piece
let model = null; // {name, body}

export async function begin(onjob) {
  const [form, drop, file] = ["ask", "drop", "file"].map(byId);
  file.addEventListener("change", () => file.files[0] && take(file.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });
  // A file that misses the field must not replace the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  byId("samples").addEventListener("click", (event) => {
    const name = event.target.dataset?.sample;
    if (name) sample(name);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send(form).then((job) => job && onjob(job));
  });
  form.addEventListener("input", (event) => event.target.removeAttribute("aria-invalid"));
  byId("hardware").addEventListener("change", describe);
  await machines();
}

let known = [];

async function machines() {
  known = await json("/v1/hardware");
  const select = byId("hardware");
  const chosen = select.value || "a100-80";
  select.replaceChildren(...known.map((m) => h("option", { value: m.name, selected: m.name === chosen }, m.name)));
  describe();
}

function describe() {
  const found = known.find((m) => m.name === byId("hardware").value);
  const memory = found?.memory_bytes ? `, ${bytes(found.memory_bytes)} each` : "";
  byId("hardware-told").textContent = found ? `${found.description}${memory}` : "";
}

async function sample(name) {
  const response = await request(`/static/samples/${name}.onnx`);
  take(new File([await response.blob()], `${name}.onnx`));
}

async function take(file) {
  complain(null);
  const [name, told] = [byId("file-name"), byId("drop-told")];
  model = null;
  name.textContent = file.name;
  told.textContent = "reading …";
  byId("drop").classList.remove("taken", "refused");
  if (file.size > MOST) {
    told.textContent = "too large for a browser";
    byId("drop").classList.add("refused");
    return complain({ title: "The file is too large for a browser", detail: "Use planner submit, which reads files of any size." });
  }
  try {
    const data = new Uint8Array(await file.arrayBuffer());
    if (!holdsGraph(data)) throw new Malformed("it holds no graph of operators");
    const pieces = strip(data);
    const size = pieces.reduce((sum, p) => sum + p.length, 0);
    model = { name: file.name.replace(/\.onnx$/i, ""), body: await new Blob(pieces).arrayBuffer() };
    told.textContent =
      size < 0.99 * file.size ? `${bytes(file.size)}, of which ${bytes(size)} are sent: weights stay here` : bytes(file.size);
    byId("drop").classList.add("taken");
    tell(`${file.name} is ready`);
    byId("send").focus();
  } catch (error) {
    told.textContent = "not an ONNX model; nothing of it is sent";
    byId("drop").classList.add("refused");
    const wrong = error instanceof Malformed ? `${file.name} is no ONNX model, or is cut off: ${error.message}.` : String(error);
    complain({ title: "This file cannot be read", detail: wrong });
  }
}

function query(form) {
  const out = new URLSearchParams();
  for (const field of form.elements) {
    if (!field.name || !field.value.trim() || (field.type === "checkbox" && !field.checked)) continue;
    const lines = field.tagName === "TEXTAREA" ? field.value.split("\n") : [field.value];
    for (const line of lines) if (line.trim()) out.append(field.name, line.trim());
  }
  const name = model.name.replace(/[^A-Za-z0-9._-]/g, "_").slice(0, 100);
  out.set("name", /^[A-Za-z0-9_]/.test(name) ? name : `_${name}`.slice(0, 100));
  return out;
}

async function send(form) {
  complain(null);
  if (!model) {
    complain({ title: "There is no model yet", detail: "Drop an ONNX file above, choose one, or take a sample." });
    byId("file").focus();
    return null;
  }
  const button = byId("send");
  button.disabled = true;
  const headers = { "idempotency-key": key() };
  let body = model.body;
  const constraints = byId("constraints").files[0];
  if (constraints) {
    body = new FormData();
    body.append("model", new Blob([model.body]), "model.onnx");
    body.append("constraints", constraints, constraints.name);
  } else headers["content-type"] = "application/octet-stream";
  try {
    return await post(`/v1/plans?${query(form)}`, { headers, body });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    complain(error.document);
    mark(form, error.document.errors || []);
    return null;
  } finally {
    button.disabled = false;
  }
}

// For one press of the button, however often it has to be sent.
function key() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((b) => b.toString(16).padStart(2, "0")).join("");
}

function mark(form, errors) {
  for (const error of errors) {
    const field = form.elements[error.name];
    if (!field?.setAttribute) continue;
    field.setAttribute("aria-invalid", "true");
    const folded = field.closest("details");
    if (folded) folded.open = true;
  }
  form.querySelector("[aria-invalid]")?.focus();
}

function complain(problem) {
  const box = byId("ask-problem");
  box.hidden = !problem;
  box.replaceChildren(...(problem ? problemBox(problem).childNodes : []));
}
