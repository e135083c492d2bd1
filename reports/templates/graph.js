// The graph around a layer: up to two steps towards the inputs and two towards the outputs.

const graph = (() => {
  const REACH = 2, MOST = 5, HIGH = 38, GAP = 26;

  /** Return layer → row, the layer itself in row 0; every edge points down. */
  function rowsAround(i) {
    const row = new Map([[i, 0]]);
    for (const [next, sign] of [[(j) => data.inputs[j], -1], [(j) => readers[j], 1]]) {
      let front = [i];
      for (let step = 1; step <= REACH; step++) {
        const found = [];
        for (const j of front)
          for (const k of next(j)) if (!row.has(k) && found.length < MOST) { row.set(k, sign * step); found.push(k); }
        front = found;
      }
    }
    const shown = [...row.keys()].sort((a, b) => a - b);
    for (const j of shown.filter((k) => k < i).reverse()) {
      const below = shown.filter((k) => data.inputs[k].includes(j)).map((k) => Math.min(row.get(k), 0));
      row.set(j, Math.min(0, ...below) - 1);
    }
    for (const j of shown.filter((k) => k > i)) {
      const above = data.inputs[j].filter((k) => row.has(k)).map((k) => Math.max(row.get(k), 0));
      row.set(j, Math.max(0, ...above) + 1);
    }
    return row;
  }

  function positions(row, width) {
    const levels = new Map();
    [...row].sort((a, b) => a[0] - b[0]).forEach(([i, level]) => levels.set(level, [...(levels.get(level) || []), i]));
    const widest = Math.max(...[...levels.values()].map((line) => line.length));
    const box = Math.min(212, width / widest - 10), place = new Map();
    [...levels.keys()].sort((a, b) => a - b).forEach((level, k) => levels.get(level).forEach((i, n, line) =>
      place.set(i, [width / 2 + (n - (line.length - 1) / 2) * (box + 10), k * (HIGH + GAP) + HIGH / 2 + 2])));
    return { place, box, height: levels.size * (HIGH + GAP) - GAP + 4 };
  }

  function edge([x1, y1], [x2, y2], box) {
    const start = y1 + HIGH / 2, end = y2 - HIGH / 2, middle = (start + end) / 2;
    const bow = y2 - y1 > HIGH + GAP + 1 && x1 === x2 ? box * 0.62 : 0;
    return [
      draw("path", { class: "edge", d: `M${x1} ${start}C${x1 + bow} ${middle} ${x2 + bow} ${middle} ${x2} ${end}` }),
      draw("path", { d: `M${x2 - 3.5} ${end - 6}l3.5 6 3.5 -6Z`, fill: "var(--stroke)" }),
    ];
  }

  function node(i, centre, [x, y], box) {
    const left = x - box / 2, top = y - HIGH / 2, wrong = ["own", "nan"].includes(statusClass(i));
    const error = `${statusOf(i)[1]} ${number(figure("error", i))}`, room = box - 16 - 6.4 * error.length;
    const open = () => select(i, "graph");
    const head = shorten(title(i), Math.max(4, Math.floor(room / 6.2))), name = shorten(data.name[i], Math.max(4, Math.floor((box - 14) / 6.6)));
    const shown = box > 90 ? [head, error, name] : [head, name], spoken = [...shown, statusOf(i)[0], i === centre ? "this layer" : ""];
    return draw("g", { class: "node" + (i === centre ? " here" : "") + (wrong ? " wrong" : ""), tabindex: 0, role: "link", "data-node": i,
      "aria-label": spoken.filter(Boolean).join(" "), onclick: open, onkeydown: (event) => press(event, i) },
      draw("rect", { x: left, y: top, width: box, height: HIGH, rx: 3 }),
      label(left + 7, top + 15, head, { class: "ink" }), " ",
      box > 90 ? label(left + box - 7, top + 15, error, { "text-anchor": "end", class: wrong ? "bad" : null }) : null, " ",
      label(left + 7, top + 30, name, { class: "mono" }));
  }

  /** Open a layer, or move the focus to what it reads (up), to what reads it (down), or beside it. */
  function press(event, i) {
    if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(i, "graph"); return; }
    const shown = [...event.currentTarget.parentElement.querySelectorAll("[data-node]")], at = (j) => shown.find((g) => Number(g.dataset.node) === j);
    const here = shown.indexOf(event.currentTarget);
    const next = { ArrowUp: data.inputs[i].map(at).find(Boolean), ArrowDown: readers[i].map(at).find(Boolean), ArrowLeft: shown[here - 1], ArrowRight: shown[here + 1] }[event.key];
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    if (next) next.focus();
  }

  /** Return the drawing for a place `space` px wide. */
  function around(i, space) {
    const row = rowsAround(i), width = space < 560 ? 360 : 700;
    const { place, box, height } = positions(row, width);
    const edges = [...place].flatMap(([j, at]) =>
      data.inputs[j].filter((k) => place.has(k)).map((k) => edge(place.get(k), at, box)));
    const boxes = [...place].sort((a, b) => a[0] - b[0]);
    return make("div", { class: "figure graph" }, draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "group",
      "aria-label": "graph around the layer" }, edges, boxes.map(([j, at]) => node(j, i, at, box))));
  }

  return { around };
})();
