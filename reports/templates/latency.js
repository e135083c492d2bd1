// Where the time goes: both sides in execution order, and the slowest layers.

const latency = (() => {
  const host = $("time-chart");
  if (!host) return { redraw() {} };
  const DRAWN = 40, FIRST = 10;
  const sides = [["A", "timeA", "var(--a)"], ["B", "timeB", "var(--b)"]].filter((side) => has(side[1]));
  const time = (side, i) => figure(side[1], i) || 0;
  const total = new Map(sides.map((side) => [side[0], layers.reduce((sum, i) => sum + time(side, i), 0)]));
  const most = layers.map((i) => sides.reduce((longest, side) => Math.max(longest, time(side, i)), 0));
  const largest = (i) => most[i];
  const slowest = layers.slice().sort((a, b) => largest(b) - largest(a) || a - b).slice(0, DRAWN).filter((i) => largest(i) > 0);
  const share = (side, i) => percent(total.get(side[0]) ? time(side, i) / total.get(side[0]) : 0);
  let all = false;

  function read(i) {
    show($("time-readout"), make("b", null, title(i)), nameOf(data.name[i], 90), sides.map((side) =>
      make("span", null, `${side[0]} ${seconds(figure(side[1], i))} (${share(side, i)})`)));
  }

  /** Return one side's bar: the slow layers in colour, what lies between them in grey. */
  function bar(side, y, x) {
    const parts = [label(4, y + 24, side[0], { class: "ink" })], slow = new Set(slowest);
    let end = 0, rest = 0;
    const flush = () => {
      if (end > rest) parts.push(draw("rect", { x: x(rest), y, width: Math.max(0, x(end) - x(rest)), height: 40, fill: "var(--limit)" }));
    };
    for (const i of layers) {
      if (!slow.has(i)) { end += time(side, i); continue; }
      flush();
      const from = x(end), width = x(end + time(side, i)) - from;
      parts.push(draw("rect", { class: "slice", x: from, y, width, height: 40, fill: side[2],
        onpointerenter: () => read(i), onclick: () => select(i, "link") }));
      const fit = { fill: "var(--panel)", "pointer-events": "none" };
      if (width > 58) parts.push(label(from + 5, y + 17, "#" + i, { style: fit }), label(from + 5, y + 31, seconds(time(side, i)), { style: fit }));
      end += time(side, i);
      rest = end;
    }
    flush();
    return parts;
  }

  function redraw() {
    const width = Math.max(280, host.clientWidth), LEFT = 22, longest = Math.max(...total.values()) || 1;
    const x = (t) => LEFT + (t / longest) * (width - LEFT - 2), bottom = 8 + 52 * sides.length;
    const step = niceStep(longest / Math.max(2, width / 130)), parts = [];
    for (let t = 0; t <= longest; t += step)
      parts.push(draw("line", { x1: x(t), x2: x(t), y1: 4, y2: bottom, class: "line" }),
        label(Math.min(x(t), width - 22), bottom + 14, seconds(t), { "text-anchor": t ? "middle" : "start" }));
    show(host, canvas(width, bottom + 20, "time of the layers one after another", [parts, sides.map((side, k) => bar(side, 8 + 52 * k, x))]));
  }

  function row(i) {
    const longest = largest(slowest[0]), open = () => select(i, "link");
    const both = sides.length === 2, a = both ? time(sides[0], i) : 0, b = both ? time(sides[1], i) : 0;
    const change = Math.abs(b - a) < 0.03 * a ? "≈ same" : (b > a ? "+" : "−") + seconds(Math.abs(b - a));
    return make("tr", { "data-layer": i, tabindex: 0, onclick: open, onkeydown: (event) => { if (event.key === "Enter") open(); } },
      make("td", { class: "num" }, "#" + i), make("td", { class: "op" }, text("op", i)), make("td", { class: "wide" }, nameOf(data.name[i], 60)),
      make("td", { class: "bars wide" }, sides.map((side) => make("i", { style: { width: (100 * time(side, i)) / longest + "%", background: side[2] } }))),
      sides.map((side) => make("td", { class: "num" }, seconds(figure(side[1], i)))),
      both ? make("td", { class: "num wide" }, change) : null,
      sides.map((side, k) => make("td", { class: k ? "num wide" : "num" }, share(side, i))));
  }

  function list() {
    const heads = [["#", "num"], ["op", ""], ["layer", "wide"], ["bars", "wide", true], ...sides.map((side) => [side[0], "num"]),
      ...(sides.length === 2 ? [["B − A", "num wide"]] : []), ...sides.map((side, k) => ["share of " + side[0], k ? "num wide" : "num"])];
    const shown = slowest.slice(0, all ? DRAWN : FIRST), more = $("time-more");
    show($("time-table").tHead, make("tr", null, heads.map(([words, kind, unseen]) =>
      make("th", { scope: "col", class: kind || null }, unseen ? make("span", { class: "unseen" }, words) : words))));
    show($("time-table").tBodies[0], shown.map(row));
    more.hidden = slowest.length <= FIRST;
    more.textContent = all ? `show the ${FIRST} slowest` : `show the ${slowest.length} slowest`;
  }

  $("time-more").addEventListener("click", () => { all = !all; list(); });
  list();
  if (slowest.length) read(slowest[0]);
  return { redraw };
})();
