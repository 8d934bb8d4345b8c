// Requests to the service.  Problem documents are thrown; a missing key is asked for.

import { byId } from "./dom.js";

const PATIENCE = 15; // seconds for which a busy or restarting service is asked again

export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title);
    this.document = document;
  }
}

const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// The answer, its status below 400.
export async function request(path, options = {}) {
  const until = Date.now() + 1000 * PATIENCE;
  for (let wait = 300; ; wait *= 2) {
    let response = null;
    try {
      response = await fetch(path, { credentials: "same-origin", ...options });
    } catch (error) {
      if (error.name === "AbortError") throw error;
    }
    if (response?.ok) return response;
    if (response?.status === 401) {
      await login();
      continue;
    }
    const again = !response || response.status === 429 || response.status === 503;
    const delay = Math.max(wait, 1000 * Number(response?.headers.get("retry-after") || 0));
    if (!again || Date.now() + delay > until) throw await problemOf(response);
    await pause(delay);
  }
}

export async function json(path, options) {
  return (await request(path, { headers: { accept: "application/json" }, ...options })).json();
}

// Something that has to be made first: asked for until it is there.
export async function made(path, options = {}) {
  for (;;) {
    const headers = { ...(options.headers || {}), prefer: "wait=20" };
    const response = await request(path, { ...options, headers });
    if (response.status !== 202) return response;
    options.onwait?.(await response.json());
    await pause(300);
  }
}

export function post(path, options = {}) {
  return json(path, { method: "POST", ...options, headers: { accept: "application/json", ...options.headers } });
}

async function problemOf(response) {
  if (!response) {
    return new Problem({ title: "The service cannot be reached", detail: "It may be stopping or gone. What was accepted is kept." });
  }
  try {
    return new Problem(await response.json());
  } catch {
    return new Problem({ title: `The service answers with status ${response.status}`, detail: "" });
  }
}

let asked = null;

// Resolves once there is a session; several requests wait for the same one.
function login() {
  asked ||= new Promise((done) => {
    const [dialog, form, problem, key] = ["login", "login-form", "login-problem", "key"].map(byId);
    problem.hidden = true;
    dialog.addEventListener("cancel", (e) => e.preventDefault());
    form.onsubmit = async (event) => {
      event.preventDefault();
      const response = await fetch("/v1/sessions", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ key: key.value.trim() }),
      }).catch(() => null);
      if (!response?.ok) {
        problem.textContent = (await problemOf(response)).message;
        problem.hidden = false;
        key.select();
        return;
      }
      key.value = "";
      dialog.close();
      asked = null;
      document.dispatchEvent(new Event("session"));
      done();
    };
    dialog.showModal();
  });
  return asked;
}
