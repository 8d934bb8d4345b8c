// The cluster: servers with their devices, what a rank is, and what goes over links.

function clusterSection(plan) {
  const { traffic, cluster, stages } = plan.report;
  const devices = cluster.devices, size = devices / stages.length, per = cluster.devices_per_server || devices;
  const drawn = Math.min(devices, MOST_RANKS);
  const place = (rank) => {
    const stage = Math.floor(rank / size), at = {};
    let rest = rank % size;
    for (let k = plan.axes.length - 1; k >= 0; k--) { at[plan.axes[k].name] = rest % plan.axes[k].size; rest = Math.floor(rest / plan.axes[k].size); }
    return { stage, at, server: Math.floor(rank / per) };
  };
  const said = h("div", { class: "rank-said", "aria-live": "polite" });
  const cells = [];
  const colour = (by) => cells.forEach((cell, rank) => { const p = place(rank); cell.className = `rank t${(by === "stage" ? p.stage : by === "server" ? p.server : p.at[by]) % 8}${cell.classList.contains("chosen") ? " chosen" : ""}`; });
  const choices = [...(stages.length > 1 ? ["stage"] : []), ...plan.axes.map((a) => a.name), "server"];
  const select = h("select", { on: { change: (e) => colour(e.target.value) } }, choices.map((c) => h("option", { value: c }, c === "stage" || c === "server" ? c : `place on axis ${c}`)));
  const rows = traffic ? traffic.rows : [];
  const sent = (stage, key) => rows.filter((r) => r.stage === stage).reduce((a, r) => a + r[key], 0);
  const choose = (rank) => {
    const p = place(rank);
    cells.forEach((cell, k) => cell.classList.toggle("chosen", k === rank));
    const peers = plan.axes.filter((a) => a.size > 1).map((axis) => {
      const stride = plan.axes.slice(plan.axes.indexOf(axis) + 1).reduce((n, a) => n * a.size, 1), first = rank - p.at[axis.name] * stride;
      const all = Array.from({ length: axis.size }, (_, k) => first + k * stride);
      const servers = new Set(all.map((r) => Math.floor(r / per))).size;
      return [`group on axis ${axis.name}`, `ranks ${all.slice(0, 12).join(", ")}${all.length > 12 ? `, … (${count(all.length)})` : ""}; ${servers > 1 ? `on ${plural(servers, "server")}` : "on one server"}`];
    });
    said.replaceChildren(h("h3", null, `Rank ${count(rank)}`), h("dl", { class: "rank-facts" }, [
      ["server", `${p.server}, device ${rank % per} of it`], stages.length > 1 && ["stage", `${p.stage} of ${stages.length}`],
      ["place on the mesh", plan.axes.map((a) => `${a.name}=${p.at[a.name]}`).join(", ")], ...peers,
      ["memory at the peak", bytes(stages[p.stage].peak_memory_bytes || plan.report.cost.peak_memory_bytes)],
      traffic && ["sends in a step", `${bytes(sent(p.stage, "inside_bytes"))} inside of servers, ${bytes(sent(p.stage, "between_bytes"))} between them`],
    ].filter(Boolean).map(([k, v]) => [h("dt", null, k), h("dd", null, v)])));
  };
  const servers = [];
  for (let first = 0; first < drawn; first += per) {
    const here = [];
    for (let rank = first; rank < Math.min(drawn, first + per); rank++) {
      const cell = h("button", { type: "button", class: "rank", tabindex: rank ? -1 : 0, "aria-label": `rank ${rank}`, data: { rank } }, devices <= 256 ? rank : null);
      cells.push(cell);
      here.push(cell);
    }
    servers.push(h("div", { class: "server" }, h("p", null, devices <= 512 ? `server ${first / per}` : String(first / per)), h("div", { class: "server-devices", style: { "--across": Math.min(per, per > 16 ? 16 : per > 4 ? per / 2 : per) } }, here)));
  }
  const grid = h("div", { class: `servers${devices > 256 ? " small" : ""}`, role: "group", "aria-label": "servers and their devices" }, servers);
  grid.addEventListener("click", (e) => { const c = e.target.closest(".rank"); if (c) choose(+c.dataset.rank); });
  grid.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: per, ArrowUp: -per }[e.key], c = e.target.closest(".rank");
    const next = step && c && cells[+c.dataset.rank + step];
    if (!next) return;
    e.preventDefault();
    c.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    choose(+next.dataset.rank);
  });
  colour(choices[0]);
  choose(0);
  return section("cluster", "The cluster", h("p", { class: "quiet" }, `${plural(Math.ceil(devices / per), "server")} of ${plural(per, "device")}; ranks are numbered stage by stage, the last mesh axis fastest.${drawn < devices ? ` The first ${count(drawn)} ranks are drawn.` : ""}`),
    h("label", { class: "choice" }, "colour ranks by ", select), h("div", { class: "cluster-row" }, grid, said), traffic ? trafficTable(plan, traffic) : null);
}

/** What a device sends in a step: stages that send alike are one row. */
function trafficTable(plan, traffic) {
  if (!traffic.rows.length) return h("p", { class: "quiet" }, "Nothing is sent between devices.");
  const alike = new Map();
  for (const r of traffic.rows) {
    const key = JSON.stringify([r.axes, r.what, r.inside_bytes, r.between_bytes]);
    if (!alike.has(key)) alike.set(key, { ...r, stages: [] });
    alike.get(key).stages.push(r.stage);
  }
  const rows = [...alike.values()].sort((a, b) => b.between_bytes - a.between_bytes || b.inside_bytes - a.inside_bytes);
  const most = Math.max(...rows.map((r) => Math.max(r.inside_bytes, r.between_bytes)), 1);
  const several = plan.report.stages.length > 1, speed = traffic.links;
  const at = (size, link) => h("span", { class: "sent" }, h("span", { class: "sent-bar", "aria-hidden": "true" }, h("span", { class: `part k-${link === "inside" ? "parameters" : "activations"}`, style: { width: `${(100 * size) / most}%` } })), h("span", null, size ? bytes(size) : "–", speed[link] && size > 1e5 ? h("span", { class: "quiet further" }, `, ${seconds(size / speed[link])} at full speed`) : null));
  const names = { stages: "to another stage" };
  return h("div", null, h("h3", null, "Bytes that a device sends in a step"), h("p", { class: "quiet" }, `Averages over the devices of a stage; collectives go around in rings, all-to-all from each to each.${speed.inside ? ` The profile gives a device ${bytes(speed.inside)}/s inside of a server` : ""}${speed.between ? `${speed.inside ? " and" : " The profile gives a device"} ${bytes(speed.between)}/s between servers.` : speed.inside ? "." : ""}`),
    table([["what", "wrap"], ["over", ""], ["ranks", "n further"], several && ["stages", ""], ["inside of servers", "sends"], ["between servers", "sends"]].filter(Boolean),
      rows.slice(0, 40).map((r) => [r.what, names[r.axes] || `axis ${r.axes.replaceAll(".", ", ")}`, count(r.ranks), ...(several ? [ranges(r.stages)] : []), at(r.inside_bytes, "inside"), at(r.between_bytes, "between")])),
    rows.length > 40 && h("p", { class: "quiet" }, `and ${rows.length - 40} more, in the report's JSON`));
}

/** 0, 1, 2, 5 → "0–2, 5" */
function ranges(numbers) {
  const out = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) { const last = out[out.length - 1]; if (last && last[1] === n - 1) last[1] = n; else out.push([n, n]); }
  return out.map(([a, b]) => (a === b ? a : `${a}–${b}`)).join(", ");
}
