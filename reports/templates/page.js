// The page as a whole: links to layers, copying, theme, keys, print, and the first drawing.

for (const element of document.querySelectorAll("[data-layer]")) {
  if (element.closest("#time-table")) continue;
  const open = (event) => { if (element.tagName === "A") event.preventDefault(); select(Number(element.dataset.layer), "link"); };
  element.addEventListener("click", open);
  if (element.tagName === "TR") {
    element.tabIndex = 0;
    element.addEventListener("keydown", (event) => { if (event.key === "Enter") open(event); });
  }
}

for (const button of document.querySelectorAll(".copy")) {
  const source = button.parentElement.querySelector("pre");
  button.addEventListener("click", async () => {
    let done = true;
    try { await navigator.clipboard.writeText(source.textContent); } catch {
      getSelection().selectAllChildren(source);
      done = document.execCommand("copy");
    }
    button.textContent = done ? "copied" : "selected";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}

$("theme").addEventListener("click", () => {
  const root = document.documentElement, chosen = root.dataset.theme;
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});

/** Select the next layer that differs, in execution order, around the end. */
function nextDiffering(step) {
  for (let k = 1; k <= count; k++) {
    const i = (((selected + step * k) % count) + count) % count;
    if (differs(i)) return select(i, "key");
  }
}

document.addEventListener("keydown", (event) => {
  if (event.target.matches("input, select, textarea")) { if (event.key === "Escape") event.target.blur(); return; }
  if (event.ctrlKey || event.metaKey || event.altKey || !count) return;
  const actions = { n: () => nextDiffering(1), p: () => nextDiffering(-1), j: () => select(selected + 1, "key"),
    k: () => select(selected - 1, "key"), "/": () => $("search").focus() };
  if (!(event.key in actions)) return;
  event.preventDefault();
  actions[event.key]();
});

function redraw() {
  depth.redraw();
  latency.redraw();
}

function printRows() {
  const rows = layers.filter(differs), cell = (words, kind) => make("td", { class: kind || null }, words);
  show($("print-rows"), rows.slice(0, 200).map((i) => make("tr", null, cell("#" + i, "num"), cell(text("op", i)), cell(nameOf(data.name[i], 100)),
    ["own", "inherited", "error", "limit"].map((name) => cell(number(figure(name, i)), "num")), cell(statusWords(i)))),
    rows.length > 200 ? make("tr", null, make("td", { colspan: 8 }, `and ${group(rows.length - 200)} more`)) : null);
}

const layerOfAddress = () => Number((/^#layer=(\d+)$/.exec(location.hash) || [])[1] ?? NaN);
let knownWidth = innerWidth;

addEventListener("hashchange", () => select(layerOfAddress(), "link"));
addEventListener("resize", () => {
  if (innerWidth === knownWidth) return;
  knownWidth = innerWidth;
  redraw();
  table.layout();
  if (selected >= 0) detail.open(selected);
});
addEventListener("beforeprint", () => { if (count) printRows(); });

if (count) {
  table.layout();
  table.refresh();
  redraw();
  const worst = document.querySelector("#worst [data-layer]");
  select(layerOfAddress(), "address");
  if (selected < 0) select(data.first ?? Number(worst ? worst.dataset.layer : 0), "load");
}
