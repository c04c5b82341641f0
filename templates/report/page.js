"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const body = byId("rows"), rows = [...body.rows], heads = [...document.querySelectorAll("#table thead th")];
  const q = byId("q"), group = byId("group"), state = byId("state"), sort = byId("sort"), down = byId("down"), used = byId("used");
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const place = new Map(rows.map((row, at) => [row, at]));
  let sorted = "";

  // A number where the cell has one; cells without a measurement come last either way.
  const key = (row, column) => {
    const cell = row.cells[column], value = cell.dataset.v;
    if (column < 4) return cell.textContent.trim().toLowerCase();
    return value === undefined ? null : Number(value);
  };
  const order = () => {
    const column = Number(sort.value), sign = down.checked ? -1 : 1, now = column + "/" + sign;
    if (now === sorted) return;
    sorted = now;
    const keyed = rows.map((row) => [key(row, column), row]);
    keyed.sort(([a, left], [b, right]) => {
      if (a === null || b === null) return (a === null) - (b === null) || place.get(left) - place.get(right);
      const nan = Number.isNaN(a) - Number.isNaN(b);
      if (nan) return -nan;
      return (a < b ? -sign : a > b ? sign : 0) || place.get(left) - place.get(right);
    });
    body.append(...keyed.map(([, row]) => row));
    heads.forEach((head, at) => at === column ? head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending") : head.removeAttribute("aria-sort"));
  };
  const filter = () => {
    const words = q.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, at) => {
      const fits = (!used.checked || "used" in row.dataset) && (!group.value || row.dataset.group === group.value) &&
        (!state.value || row.dataset.state.split(" ").includes(state.value)) && words.every((word) => texts[at].includes(word));
      row.hidden = !fits;
      shown += fits;
    });
    body.classList.toggle("all", !used.checked);
    byId("count").textContent = shown + " of " + rows.length + " names";
  };
  const controls = { q, group, state, sort, down, used };
  const read = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    if (!location.hash.includes("=")) return;
    for (const [name, control] of Object.entries(controls)) {
      if (!given.has(name)) continue;
      if (control.type === "checkbox") control.checked = given.get(name) === "1";
      else control.value = given.get(name);
    }
  };
  const write = () => {
    const kept = new URLSearchParams();
    if (q.value) kept.set("q", q.value);
    if (group.value) kept.set("group", group.value);
    if (state.value) kept.set("state", state.value);
    if (sort.value !== "0") kept.set("sort", sort.value);
    if (down.checked) kept.set("down", "1");
    if (!used.checked) kept.set("used", "0");
    const text = kept.toString();
    try { history.replaceState(null, "", text ? "#" + text : location.pathname + location.search); } catch { /* a place without history */ }
  };
  const update = () => { order(); filter(); };
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  for (const control of Object.values(controls)) control.addEventListener("input", () => { update(); write(); });
  heads.forEach((head, at) => head.firstElementChild.addEventListener("click", () => {
    down.checked = Number(sort.value) === at ? !down.checked : at > 3;
    sort.value = String(at);
    update();
    write();
  }));
  addEventListener("hashchange", () => { read(); update(); });
  read();
  update();
})();
