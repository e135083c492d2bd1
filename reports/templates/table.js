// The table of all layers: only the rows in sight exist, so it stays quick at 10 000 layers.

const table = (() => {
  if (!count) return { layout() {}, refresh() {} };
  const ROW = 26, SPARE = 6, HEAD = 30;
  const host = $("grid"), head = $("grid-head"), body = $("grid-body"), pad = $("grid-pad");

  // title, least width in px, share of what is left, sort key, how a cell is filled, rank for leaving out
  const all = [
    { title: "#", width: 40, key: (i) => i, cell: (e, i) => { e.textContent = i; }, num: true, rank: 0 },
    { title: "Layer", width: 150, grow: 2.4, key: (i) => data.name[i], cell: nameCell, rank: 0 },
    { title: "Op", width: 62, grow: 1, key: (i) => text("op", i), cell: (e, i) => { e.textContent = text("op", i); }, rank: 3 },
    { title: "Shape", width: 78, grow: 0.8, key: (i) => size(i), cell: (e, i) => { e.textContent = text("shape", i); }, rank: 7 },
    figureColumn("Own", "own", 4),
    figureColumn("Inherited", "inherited", 6),
    figureColumn("Total", "error", 1),
    { title: "Of limit", width: 64, grow: 0.6, key: (i) => figure("ofLimit", i), cell: barCell, rank: 5 },
    { title: "Effect", source: "effect", width: 68, num: true, down: true, rank: 2, key: (i) => figure("effect", i),
      cell: (e, i) => { e.textContent = figure("effect", i) === null ? UNKNOWN : effectWords(figure("effect", i)); } },
    { title: "Status", width: 96, key: (i) => -data.status[i], cell: statusCell, rank: 0, down: true },
  ].filter((column) => !column.source || has(column.source));
  let columns = all, order = [], rows = [], painting = 0, letters = 24;
  let sorted = all[all.length - 1], direction = -1;
  const filter = { words: [], status: "", op: "" };
  const haystacks = [];

  function figureColumn(title, source, rank) {
    return { title, source, width: title.length > 6 ? 66 : 54, num: true, rank, down: true,
      key: (i) => figure(source, i), cell: (e, i) => { e.textContent = number(figure(source, i)); } };
  }

  function effectWords(share) {
    return share > 0 && share < 1e-4 ? "<0.01 %" : number(100 * share) + " %";
  }

  function size(i) {
    const sizes = text("shape", i).split("×").map(Number);
    return sizes.some(Number.isNaN) ? null : sizes.reduce((a, b) => a * b, 1);
  }

  function nameCell(element, i) {
    element.className = "name";
    element.title = shorten(data.name[i], 300);
    element.textContent = shorten(data.name[i], letters);
  }

  function barCell(element, i) {
    const ratio = figure("ofLimit", i);
    if (ratio === null) { element.textContent = UNKNOWN; return; }
    const part = Math.max(0, Math.min(1, (Math.log10(Math.max(ratio, 1e-9)) + 2) / 5));
    show(element, make("span", { class: "bar", title: times(ratio).replace("×", "× the limit") },
      make("i", { class: ratio > 1 ? "over" : null, style: { width: 100 * part + "%" } }), make("u")));
  }

  function statusCell(element, i) {
    element.className = "status " + statusClass(i);
    element.textContent = statusWords(i);
  }

  /** Choose the columns that fit and lay them out. */
  function layout() {
    const room = body.clientWidth - 16;
    columns = all.slice();
    all[1].width = room < 420 ? 110 : 150;
    const needed = () => columns.reduce((sum, column) => sum + column.width + 10, -10);
    while (needed() > room && columns.some((column) => column.rank))
      columns.splice(columns.indexOf(columns.reduce((a, b) => (b.rank > a.rank ? b : a))), 1);
    host.style.setProperty("--grid", columns.map((c) => (c.grow ? `minmax(${c.width}px, ${c.grow}fr)` : c.width + "px")).join(" "));
    body.setAttribute("aria-colcount", columns.length);
    show(head, columns.map((column) => make("span", { role: "columnheader", class: column.num ? "num" : null },
      make("button", { type: "button", title: "Sort by " + column.title.toLowerCase(), onclick: () => sortBy(column) }))));
    letters = Math.max(12, Math.floor(head.children[1].clientWidth / 7.6));
    rows.forEach((row) => row.remove());
    rows = [];
    titles();
    paint();
  }

  function titles() {
    columns.forEach((column, k) => {
      const here = column === sorted, arrow = direction < 0 ? " ▾" : " ▴";
      head.children[k].setAttribute("aria-sort", here ? (direction < 0 ? "descending" : "ascending") : "none");
      head.children[k].firstChild.textContent = column.title + (here ? arrow : "");
    });
  }

  function sortBy(column) {
    direction = column === sorted ? -direction : column.down || column.rank === 5 ? -1 : 1;
    sorted = column;
    titles();
    refresh();
  }

  const haystack = (i) =>
    haystacks[i] || (haystacks[i] = `#${i} ${data.name[i]} ${text("op", i)} ${valueName(i)} ${text("scope", i)}`.toLowerCase());

  function passes(i) {
    if (filter.status === "differs" ? !differs(i) : filter.status && statusOf(i)[0] !== filter.status) return false;
    if (filter.op && text("op", i) !== filter.op) return false;
    return filter.words.every((word) => (/^#\d+$/.test(word) ? word === "#" + i : haystack(i).includes(word)));
  }

  /** Filter and sort; unknown values come last either way, ties in execution order. */
  function refresh() {
    order = layers.filter(passes);
    const keys = new Map(order.map((i) => [i, sorted.key(i)]));
    const empty = (key) => key === null || key === undefined || Number.isNaN(key);
    const known = order.filter((i) => !empty(keys.get(i))), unknown = order.filter((i) => empty(keys.get(i)));
    known.sort((a, b) => {
      const x = keys.get(a), y = keys.get(b);
      return (x < y ? -1 : x > y ? 1 : 0) * direction || a - b;
    });
    order = known.concat(unknown);
    pad.style.setProperty("height", order.length * ROW + "px");
    body.setAttribute("aria-rowcount", order.length + 1);
    body.scrollTop = 0;
    say();
    paint();
  }

  function say() {
    const wrong = group(order.filter(differs).length), part = order.length === count ? "" : `${group(order.length)} of `;
    $("grid-count").textContent = order.length
      ? `${part}${group(count)} layers, ${wrong} differ`
      : "No layer matches. Clear the search or the filters.";
  }

  /** Fill the rows in sight. */
  function paint() {
    painting = 0;
    const start = Math.max(0, Math.floor(body.scrollTop / ROW) - SPARE);
    const end = Math.min(order.length, Math.ceil((body.scrollTop + body.clientHeight - HEAD) / ROW) + SPARE);
    while (rows.length < end - start) {
      const row = make("div", { role: "row", class: "row" }, columns.map((c) => make("span", { role: "gridcell", class: c.num ? "num" : null })));
      rows.push(row);
      pad.append(row);
    }
    rows.forEach((row, k) => place(row, start + k, end));
    const shown = rows.some((row) => row.layer === selected && !row.hidden);
    if (shown) body.setAttribute("aria-activedescendant", "row-" + selected); else body.removeAttribute("aria-activedescendant");
  }

  function place(row, position, end) {
    row.hidden = position >= end;
    row.style.setProperty("display", row.hidden ? "none" : "");
    if (row.hidden) { row.removeAttribute("id"); return; }
    const i = order[position];
    if (row.layer !== i) columns.forEach((column, k) => column.cell(row.children[k], i));
    row.layer = i;
    row.id = "row-" + i;
    row.style.setProperty("transform", `translateY(${position * ROW}px)`);
    row.setAttribute("aria-rowindex", position + 2);
    row.setAttribute("aria-selected", i === selected);
  }

  function bring(position) {
    const top = position * ROW, room = body.clientHeight - HEAD;
    if (top < body.scrollTop) body.scrollTop = top;
    else if (top + ROW > body.scrollTop + room) body.scrollTop = top + ROW - room;
    paint();
  }

  function press(event) {
    if (event.target !== body) return;
    if (event.key === "Enter") { $("detail").focus(); return; }
    const page = Math.floor((body.clientHeight - HEAD) / ROW) - 1, at = order.indexOf(selected);
    const targets = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: order.length - 1 };
    if (!(event.key in targets) || !order.length) return;
    event.preventDefault();
    const position = Math.max(0, Math.min(order.length - 1, targets[event.key]));
    select(order[position], "table");
    bring(position);
  }

  function options() {
    const used = data.statuses.filter((_, k) => data.status.includes(k));
    const differ = layers.some(differs) ? [make("option", { value: "differs" }, "differs")] : [];
    $("filter-status").append(...differ, ...used.map((s) => make("option", { value: s[0] }, `${s[1]} ${s[0]}`)));
    $("filter-op").append(...data.op.texts.slice().sort().map((op) => make("option", { value: op }, shorten(op, 40))));
  }

  let typing = 0;
  $("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => { filter.words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean); refresh(); }, 60);
  });
  for (const name of ["status", "op"])
    $("filter-" + name).addEventListener("change", (event) => { filter[name] = event.target.value; refresh(); });
  body.addEventListener("scroll", () => { if (!painting) painting = requestAnimationFrame(paint); }, { passive: true });
  body.addEventListener("click", (event) => { const row = event.target.closest(".row"); if (row) select(row.layer, "table"); });
  body.addEventListener("keydown", press);
  listeners.push((i, from) => {
    const position = order.indexOf(i);
    if (position >= 0 && from !== "table" && from !== "load") bring(position); else paint();
  });
  options();
  body.style.setProperty("--rows", HEAD + Math.max(5, count) * ROW + "px");
  return { layout, refresh, filter, get order() { return order; } };
})();
