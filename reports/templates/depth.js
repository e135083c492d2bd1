// Error along depth: one chart of all layers, a slider for the keyboard, a readout of the layer under the pointer.

const depth = (() => {
  if (!count) return { redraw() {} };
  const host = $("depth-chart"), readout = $("depth-readout");
  const LEFT = 46, RIGHT = 12, TOP = 26, BOTTOM = 30, ZERO = 22;
  const series = [
    { name: "own", words: "own", paint: "var(--own)", dots: true, on: true },
    { name: "inherited", words: "inherited", paint: "var(--inherited)", dash: "", on: true },
    { name: "limit", words: "limit", paint: "var(--stroke)", area: true, on: true },
    { name: "error", words: "total", paint: "var(--ink)", dash: "", on: !has("inherited") },
    { name: "truthA", words: "A to float64", paint: "var(--a)", dash: "2 2", on: false },
    { name: "truthB", words: "B to float64", paint: "var(--b)", dash: "5 2", on: false },
  ].filter((one) => has(one.name));
  const [lowest, highest] = decades();
  let span = Infinity, hovered = -1, view = null;

  /** Return the powers of ten that hold all finite errors and limits. */
  function decades() {
    let low = Infinity, high = -Infinity;
    for (const one of series)
      for (const v of data[one.name])
        if (v > 0 && v < Infinity) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low > high) return [-8, 0];
    const top = Math.ceil(Math.log10(high) + 0.15);
    return [Math.min(Math.max(Math.floor(Math.log10(low)), top - 14), top - 4), top];
  }

  /** Return the range of layers shown and the scales of the chart. */
  function layout() {
    const width = Math.max(280, host.clientWidth), height = width < 560 ? 250 : 300;
    let from = 0, to = count - 1;
    if (2 * span < count - 1) {
      from = Math.max(0, Math.min(Math.max(0, selected) - span, count - 1 - 2 * span));
      to = from + 2 * span;
    }
    const shown = to - from + 1, inner = width - LEFT - RIGHT, floor = height - BOTTOM - ZERO;
    const x = (i) => +(LEFT + ((i - from + 0.5) / shown) * inner).toFixed(1);
    const level = (power) => TOP + ((highest - power) / (highest - lowest)) * (floor - TOP);
    const y = (v) => {
      if (!(v > 0)) return floor + ZERO / 2;
      return v === Infinity ? TOP - 6 : +Math.min(floor, level(Math.log10(v))).toFixed(1);
    };
    return { width, height, from, to, shown, inner, floor, x, y, level };
  }

  /** Call emit(x, lowest, highest, layer of the highest) once for each pixel column that has values. */
  function perPixel(name, emit) {
    const values = data[name], { from, to, shown, inner, x } = view;
    const step = Math.max(1, Math.floor(shown / inner));
    for (let start = from; start <= to; start += step) {
      const end = Math.min(to, start + step - 1);
      let low = null, high = null, at = start;
      for (let i = start; i <= end; i++) {
        const v = values[i];
        if (v === null || Number.isNaN(v)) continue;
        if (low === null || v < low) low = v;
        if (high === null || v > high) { high = v; at = i; }
      }
      emit(x((start + end) / 2), low, high, at);
    }
  }

  function linePath(name) {
    let path = "", pen = false;
    perPixel(name, (px, low, high) => {
      if (high === null) { pen = false; return; }
      if (low === 0) path += `M${px - 1.5} ${view.y(0)}h3`;
      if (high === 0) { pen = false; return; }
      path += `${pen ? "L" : "M"}${px} ${view.y(high)}`;
      if (low > 0 && low !== high) path += `L${px} ${view.y(low)}`;
      else if (!pen) path += "h.1";
      pen = true;
    });
    return path;
  }

  function areaPath(name) {
    let path = "", last = null;
    const close = () => { if (last !== null) path += `L${last} ${view.floor}Z`; last = null; };
    perPixel(name, (px, low, high) => {
      if (!(high > 0)) { close(); return; }
      if (last === null) path += `M${px - 0.5} ${view.floor}`;
      path += `L${px} ${view.y(high)}`;
      last = px + 0.5;
    });
    close();
    return path;
  }

  /** Return the points of a series as one path of dots, and those of layers that are wrong as diamonds. */
  function dotPaths(name) {
    let dots = "", diamonds = "";
    perPixel(name, (px, low, high, i) => {
      if (high === null || (high === 0 && view.shown > 400)) return;
      const py = view.y(high);
      if (statusClass(i) === "own" || statusClass(i) === "nan") diamonds += `M${px - 5} ${py}l5 -6 5 6 -5 6Z`;
      else dots += `M${px} ${py}h0`;
    });
    return [dots, diamonds];
  }

  function drawSeries(one) {
    if (one.area) return draw("path", { d: areaPath(one.name), fill: "var(--limit)" });
    if (!one.dots)
      return draw("path", { d: linePath(one.name), fill: "none", stroke: one.paint, "stroke-width": 1.4,
        "stroke-dasharray": one.dash, "stroke-linejoin": "round" });
    const [dots, diamonds] = dotPaths(one.name);
    return [
      draw("path", { d: dots, stroke: one.paint, "stroke-width": view.shown < 100 ? 5 : 3, "stroke-linecap": "round" }),
      draw("path", { d: diamonds, fill: "var(--bad)", stroke: "var(--panel)", "stroke-width": 1.2 }),
    ];
  }

  function drawAxes() {
    const { width, height, floor, level, from, to, shown, x } = view, parts = [];
    const every = Math.ceil((highest - lowest) / 8);
    for (let power = lowest; power <= highest; power++) {
      parts.push(draw("line", { x1: LEFT, x2: width - RIGHT, y1: level(power), y2: level(power), class: "line" }));
      if ((highest - power) % every === 0)
        parts.push(label(LEFT - 6, level(power) + 4, power ? "1e" + power : "1", { "text-anchor": "end" }));
    }
    parts.push(draw("line", { x1: LEFT, x2: width - RIGHT, y1: floor, y2: floor, class: "axis" }));
    parts.push(label(LEFT - 6, height - BOTTOM - 6, "0", { "text-anchor": "end" }));
    const step = Math.max(1, niceStep(shown / Math.max(3, width / 110)));
    for (let i = Math.ceil(from / step) * step; i <= to; i += step)
      parts.push(
        draw("line", { x1: x(i), x2: x(i), y1: height - BOTTOM, y2: height - BOTTOM + 4, class: "axis" }),
        label(x(i), height - BOTTOM + 16, "#" + i, { "text-anchor": "middle" }));
    parts.push(label(width - RIGHT, height - 2, "layer in execution order", { "text-anchor": "end" }));
    parts.push(label(4, 10, "relative error"));
    return parts;
  }

  /** Return a stroke above each layer that differs, and the flag of the first. */
  function drawMarks() {
    const { from, to, shown, inner, x, width, floor } = view, parts = [];
    let strokes = "";
    for (let i = from; i <= to; i++) if (differs(i)) strokes += `M${x(i)} ${TOP - 8}v7`;
    parts.push(draw("path", { d: strokes, stroke: "var(--bad)", "stroke-width": Math.max(1, Math.min(4, inner / shown - 1)) }));
    const first = data.first;
    if (first === null || first < from || first > to) return parts;
    const side = x(first) > width * 0.6 ? -6 : 6, anchor = side < 0 ? "end" : "start";
    parts.push(draw("line", { x1: x(first), x2: x(first), y1: TOP - 8, y2: floor + ZERO, stroke: "var(--bad)", "stroke-dasharray": "3 3" }));
    parts.push(label(x(first) + side, TOP + 12, shorten(`${statusOf(first)[1]} first: ${title(first)}`, 44), { class: "bad", "text-anchor": anchor }));
    return parts;
  }

  function drawCursor() {
    const cursor = $("depth-cursor");
    if (!cursor || !view) return;
    cursor.replaceChildren();
    const bottom = view.height - BOTTOM;
    for (const [i, weight] of [[selected, 1.2], [hovered, 0.6]]) {
      if (i < view.from || i > view.to || i < 0) continue;
      const px = view.x(i);
      cursor.append(draw("line", { x1: px, x2: px, y1: TOP - 8, y2: bottom, stroke: "var(--ink)", "stroke-width": weight }));
      if (i === selected) cursor.append(draw("path", { d: `M${px - 5} ${bottom + 6}l5 -7 5 7Z`, fill: "var(--ink)" }));
    }
  }

  function redraw() {
    view = layout();
    const areas = series.filter((one) => one.area && one.on), others = series.filter((one) => !one.area && one.on);
    const svg = draw("svg", { viewBox: `0 0 ${view.width} ${view.height}`, "aria-hidden": "true" },
      areas.map(drawSeries), drawAxes(), others.reverse().map(drawSeries), drawMarks(), draw("g", { id: "depth-cursor" }));
    show(host, svg);
    drawCursor();
  }

  /** Return "own 0.81 (limit 9.8e-4)", or null where it was not measured. */
  function reading(words, name, limit) {
    if (!has(name)) return null;
    const bound = limit && figure(limit, view ? readAt : 0);
    return make("span", null, words + " ", make("b", null, number(figure(name, readAt))),
      bound === null || bound === undefined ? "" : ` (limit ${number(bound)})`);
  }

  let readAt = 0;
  function read(i) {
    readAt = i;
    show(readout, make("b", null, title(i)), nameOf(data.name[i], 90), statusMark(i),
      reading("own", "own", "ownLimit"), reading("inherited", "inherited"), reading("total", "error", "limit"),
      make("a", { href: "#detail" }, "open detail"));
  }

  function under(event) {
    const box = host.getBoundingClientRect();
    const across = (((event.clientX - box.left) / box.width) * view.width - LEFT) / view.inner;
    return Math.max(view.from, Math.min(view.to, Math.floor(view.from + across * view.shown)));
  }

  function press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.round(view.shown / 10));
    const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageUp: page, PageDown: -page,
      Home: -count, End: count };
    if (event.key === "Enter") { $("detail").focus(); $("detail").scrollIntoView(); }
    else if (moves[event.key]) select(Math.max(0, Math.min(count - 1, selected + moves[event.key])), "depth");
    else return;
    event.preventDefault();
  }

  function swatch(one) {
    const shape = one.area ? draw("path", { d: "M0 0h16v10H0z", fill: one.paint, opacity: 0.4 })
      : one.dots ? draw("path", { d: "M4 5h0M12 5h0", stroke: one.paint, "stroke-width": 4, "stroke-linecap": "round" })
      : draw("path", { d: "M0 5h16", stroke: one.paint, "stroke-width": 2, "stroke-dasharray": one.dash });
    return draw("svg", { class: "swatch", viewBox: "0 0 16 10", "aria-hidden": "true" }, shape);
  }

  function tools() {
    const toggles = series.map((one) => {
      const flip = () => { one.on = !one.on; button.setAttribute("aria-pressed", one.on); redraw(); };
      const button = make("button", { type: "button", "aria-pressed": one.on, onclick: flip }, swatch(one), one.words);
      return button;
    });
    const zooms = [[Infinity, "all"], [200, "± 200"], [20, "± 20 layers"]].filter(([half]) => half === Infinity || 2 * half < count - 1);
    const buttons = zooms.map(([half, words]) => make("button", { type: "button", "aria-pressed": half === span,
      onclick() { span = half; buttons.forEach((b, k) => b.setAttribute("aria-pressed", zooms[k][0] === span)); redraw(); } }, words));
    show($("depth-tools"), make("span", { role: "group", "aria-label": "Series shown", class: "tools" }, toggles),
      make("span", { class: "gap" }), zooms.length > 1 ? make("span", { role: "group", "aria-label": "Range", class: "tools" }, buttons) : null);
  }

  host.addEventListener("pointermove", (event) => { hovered = under(event); drawCursor(); read(hovered); });
  host.addEventListener("pointerleave", () => { hovered = -1; drawCursor(); if (selected >= 0) read(selected); });
  host.addEventListener("click", (event) => select(under(event), "depth"));
  host.addEventListener("keydown", press);
  listeners.push((i) => {
    if (span === Infinity) drawCursor(); else redraw();
    read(i);
    host.setAttribute("aria-valuenow", i);
    host.setAttribute("aria-valuetext", `layer ${i}, ${text("op", i)} ${shorten(data.name[i], 90)}, ${statusOf(i)[0]}, total error ${number(figure("error", i))}`);
  });
  tools();
  return { redraw };
})();
