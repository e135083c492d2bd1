// Drawings of a layer's values: histograms of both sides, where they differ, how far from the ends of the dtype.
// A picture is what compare/picture.py describes; a few layers have one.

const pictures = (() => {
  const W = 300;
  /** dtype → exponents of its smallest normal and of its largest number. */
  const ENDS = new Map(Object.entries({
    float64: [-1022, 1023], float32: [-126, 127], bfloat16: [-126, 127], float16: [-14, 15],
    float8_e5m2: [-14, 15], float8_e5m2fnuz: [-15, 15], float8_e4m3fn: [-6, 8], float8_e4m3fnuz: [-7, 7],
    float8_e8m0fnu: [-127, 127], float4_e2m1fn: [0, 2],
  }));
  const LETTERS = "abcdefghijklmnopqrstuvwxyz", PER_DECADE = 4;

  const power = (exponent) => "2" + [...String(exponent)].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("");
  const box = (description, height, parts) => make("div", { class: "figure" }, canvas(W, height, description, parts));
  const sum = (counts) => counts.reduce((a, b) => a + b, 0);

  // Counts per bin, on a log scale: A as an area, B as a line

  function counts(a, b, left, right, top, bottom) {
    const most = Math.max(...a, ...b, 1), step = (right - left) / a.length, parts = [];
    const x = (k) => +(left + k * step).toFixed(1);
    const y = (n) => +(n ? bottom - 2 - (Math.log10(n) / (Math.log10(most) || 1)) * (bottom - top - 4) : bottom).toFixed(1);
    const steps = (values) => values.map((n, k) => `V${y(n)}H${x(k + 1)}`).join("");
    const decades = Math.floor(Math.log10(most)), every = Math.max(1, Math.ceil(decades / 3));
    for (let p = decades; p >= 0; p -= every)
      parts.push(draw("line", { x1: left, x2: right, y1: y(10 ** p), y2: y(10 ** p), class: "line" }),
        label(left - 4, y(10 ** p) + 4, p > 3 ? "1e" + p : group(10 ** p), { "text-anchor": "end" }));
    parts.push(
      draw("path", { d: `M${left} ${bottom}${steps(a)}V${bottom}Z`, fill: "var(--area)", stroke: "var(--a)", "stroke-width": 0.8 }),
      draw("path", { d: `M${left} ${bottom}${steps(b)}V${bottom}`, fill: "none", stroke: "var(--b)", "stroke-width": 1.4 }),
      draw("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    return parts;
  }

  function histogram(h) {
    const LEFT = 34, bottom = 112, parts = counts(h.a, h.b, LEFT, W - 2, 4, bottom);
    const at = (v) => LEFT + ((v - h.low) / (h.high - h.low)) * (W - 2 - LEFT);
    const ends = h.low === h.high ? [[(LEFT + W) / 2, h.low, "middle"]] : [[LEFT, h.low, "start"], [W - 2, h.high, "end"]];
    if (h.low < 0 && h.high > 0 && at(0) > LEFT + 52 && at(0) < W - 54) ends.push([at(0), 0, "middle"]);
    ends.forEach(([x, v, anchor]) => parts.push(label(x, bottom + 14, number(v, 3), { "text-anchor": anchor })));
    return box(`histogram of both sides from ${number(h.low, 3)} to ${number(h.high, 3)}`, bottom + 18, parts);
  }

  function histogramCard(card, caption, picture, size) {
    const h = picture.histogram;
    if (!h) return null;
    const part = h.counted < size ? ` Of ${group(h.counted)} elements, evenly spaced.` : "";
    const masks = h.masked ? ` ${group(h.masked)} mask values are left out.` : "";
    return card("Histograms of both sides", "", histogram(h),
      caption(key("var(--area)", "A"), key("var(--b)", "B"), `Elements per bin, log scale.${part}${masks}`));
  }

  const key = (paint, words) => make("span", { class: "key" }, make("i", { class: "swatch", style: { background: paint } }), words);

  // Powers of two against the ends of the dtype

  /** Return the range of exponents drawn: the values, what fp16 holds, and the dtype's own ends where near. */
  function range(lows, highs, ends) {
    let low = Math.min(-24, ...lows) - 2, high = Math.max(16, ...highs) + 3;
    if (ends && low - ends[0] < 24) low = Math.min(low, ends[0] - 4);
    if (ends && ends[1] - high < 24) high = Math.max(high, ends[1] + 3);
    return [low, high];
  }

  function field(x, from, to, words, y, height, low, high) {
    const start = x(Math.max(from, low)), end = x(Math.min(to + 1, high));
    return [draw("rect", { x: start, y, width: Math.max(0, end - start), height, fill: "var(--limit)", "fill-opacity": 0.55 }),
      label((start + end) / 2, y + 10, words, { "text-anchor": "middle" })];
  }

  function reach(kind, magnitudes, marks) {
    const LEFT = 34, TOP = 16, bottom = 112, ends = ENDS.get(kind);
    const a = magnitudes ? magnitudes.a : [], first = magnitudes ? magnitudes.low : Infinity;
    const points = marks.flatMap((mark) => [mark.low, mark.high]).filter(Number.isFinite);
    const lows = magnitudes ? [first] : points, highs = magnitudes ? [first + a.length] : points;
    const [low, high] = range(lows, highs, ends);
    const x = (exponent) => +(LEFT + ((exponent - low) / (high - low)) * (W - 2 - LEFT)).toFixed(1);
    const parts = field(x, -14, 15, "fp16", 0, bottom, low, high);
    if (magnitudes) parts.push(counts(a, magnitudes.b, x(first), x(first + a.length), TOP, bottom).filter((part) => part.tagName !== "text"));
    else marks.forEach((mark, k) => parts.push(bar(mark, x, 40 + 30 * k)));
    for (const end of ends && kind !== "float16" ? [ends[0], ends[1] + 1] : [])
      if (end > low && end < high)
        parts.push(draw("line", { x1: x(end), x2: x(end), y1: TOP, y2: bottom, stroke: "var(--bad)", "stroke-width": 1.4, "stroke-dasharray": "4 3" }));
    const step = Math.max(4, 4 * Math.ceil((high - low) / 24));
    for (let e = Math.ceil(low / step) * step; e < high - 1; e += step)
      parts.push(label(x(e), bottom + 14, power(e), { "text-anchor": "middle" }));
    parts.push(draw("line", { x1: LEFT, x2: W - 2, y1: bottom, y2: bottom, class: "axis" }));
    return box("powers of two of both sides, and what fp16 holds", bottom + 18, parts);
  }

  function bar(mark, x, y) {
    if (!Number.isFinite(mark.high)) return [];
    const end = x(mark.high), start = Number.isFinite(mark.low) ? x(mark.low) : end;
    return [draw("rect", { x: start, y: y - 3, width: Math.max(2, end - start), height: 6, fill: mark.paint }),
      draw("circle", { cx: end, cy: y, r: 4, fill: mark.paint }), label(4, y + 4, mark.words, { class: "ink" })];
  }

  const exponent = (v) => (v > 0 && v < Infinity ? Math.log2(v) : NaN);

  /** Return the marks of layers without a picture: from the RMS to the largest magnitude. */
  function marks(m, value) {
    return [["A", "a", "var(--a)"], ["B", "b", "var(--b)"]].map(([words, side, paint]) => {
      const far = Math.max(...[m[side + "_min"], m[side + "_max"]].map((v) => Math.abs(value(v ?? 0))));
      return { words, paint, low: exponent(value(m["rms_" + side] ?? 0)), high: exponent(far) };
    });
  }

  /** Return the share of elements from an exponent on, or below it. */
  const beyond = (magnitudes, side, from, size) =>
    sum(magnitudes[side].slice(Math.max(0, from - magnitudes.low))) / size;
  const below = (magnitudes, side, from, size) =>
    sum(magnitudes[side].slice(0, Math.max(0, from - magnitudes.low))) / size;

  function shares(picture) {
    const { reach_a: a, reach_b: b, magnitudes: m, histogram: h } = picture;
    if (!a || !b) return [];
    const whole = !ENDS.has(a.dtype), size = h ? h.counted : 1, rows = [["share of elements", "A", "B"]];
    const add = (words, key) => rows.push([words, percent(a[key]), percent(b[key])]);
    add(whole ? "at an end of the dtype" : "near overflow", "near_overflow");
    if (whole) return rows;
    add("near underflow", "near_underflow");
    add("subnormal", "subnormal");
    if (m && h && ![a.dtype, b.dtype].includes("float16"))
      rows.push(["too large for fp16", percent(beyond(m, "a", 16, size)), percent(beyond(m, "b", 16, size))],
        ["below fp16's normal range", percent(below(m, "a", -14, size)), percent(below(m, "b", -14, size))]);
    return rows;
  }

  function rangeCard(card, caption, list, kind, row, value) {
    const picture = row.picture || {}, first = kind.split("/")[0];
    if (!ENDS.has(first) && !(picture.reach_a)) return null;
    const found = marks(row.metrics || {}, value), drawn = picture.magnitudes || found.some((mark) => Number.isFinite(mark.high));
    if (!drawn) return null;
    const rows = shares(picture), ends = ENDS.get(first);
    const words = ends ? `${first} holds ${power(ends[0])} to ${power(ends[1] + 1)} at full precision. ` : "";
    const kindOf = picture.magnitudes ? "Elements per power of two, log scale; grey A, line B." : "From the RMS to the largest magnitude.";
    return card("Value range against the dtype's limits", "", ENDS.has(first) ? reach(first, picture.magnitudes, found) : null,
      rows.length ? list("two", rows) : null, caption(words, ENDS.has(first) ? kindOf : ""));
  }

  // Where it differs

  const strength = (letter, map) => map.largest * 10 ** ((LETTERS.indexOf(letter) - 25) / PER_DECADE);
  const opacity = (letter) => Math.max(0.1, 1 - (25 - LETTERS.indexOf(letter)) / 16);

  function cellWords(map, row, column) {
    const letter = map.cells[row][column], rows = map.cells.length, columns = map.cells[0].length;
    const span = (k, cells, size) => [Math.floor((k * size) / cells), Math.floor(((k + 1) * size) / cells) - 1];
    const place = (name, [from, to]) => `${name} at ${from === to ? from : `${from}–${to}`}`;
    const where = [rows > 1 || map.axes[0] !== null ? place(axis(map.axes[0]), span(row, rows, map.shape[0])) : "",
      place(axis(map.axes[1]), span(column, columns, map.shape[1]))].filter(Boolean).join(", ");
    const what = letter === "." ? "equal" : letter === "!" ? "NaN or Inf on one side alone"
      : letter === "a" ? `below ${number(strength("b", map))}` : `about ${number(strength(letter, map))}`;
    return `${where}: ${what}`;
  }

  const axis = (a) => (a === null ? "element" : a < 0 ? "occurrence" : `axis ${a}`);

  function heat(map, readout) {
    const rows = map.cells.length, columns = map.cells[0].length;
    const high = Math.round(Math.max(18, Math.min(260, (W * map.shape[0]) / map.shape[1]))), w = W / columns, h = high / rows;
    const paths = new Map();
    map.cells.forEach((line, y) => {
      for (let x = 0; x < columns; ) {
        let end = x + 1;
        while (end < columns && line[end] === line[x]) end += 1;
        if (line[x] !== ".") paths.set(line[x], (paths.get(line[x]) || "") + `M${(x * w).toFixed(1)} ${(y * h).toFixed(1)}h${((end - x) * w).toFixed(1)}v${h.toFixed(2)}h${((x - end) * w).toFixed(1)}Z`);
        x = end;
      }
    });
    const parts = [draw("rect", { x: 0, y: 0, width: W, height: high, fill: "var(--faint)" })];
    for (const [letter, d] of paths)
      parts.push(draw("path", { d, fill: letter === "!" ? "var(--bad)" : "var(--own)", "fill-opacity": letter === "!" ? 1 : opacity(letter) }));
    const svg = canvas(W, high, heatWords(map), parts);
    svg.addEventListener("pointermove", (event) => {
      const place = svg.getBoundingClientRect();
      const row = Math.floor(((event.clientY - place.top) / place.height) * rows), column = Math.floor(((event.clientX - place.left) / place.width) * columns);
      if (map.cells[row] && map.cells[row][column]) readout.textContent = cellWords(map, row, column);
    });
    return make("div", { class: "figure" }, svg);
  }

  function heatWords(map) {
    const all = map.cells.join(""), equal = [...all].filter((c) => c === ".").length;
    return `heat map of |B − A|, largest ${number(map.largest)}, ${percent(equal / all.length)} of the cells are equal`;
  }

  function strongest(map) {
    for (const letter of ["!", "z"])
      for (const [row, line] of map.cells.entries()) if (line.includes(letter)) return cellWords(map, row, line.indexOf(letter));
    return "no difference";
  }

  function heatCard(card, caption, picture) {
    const map = picture.heat;
    if (!map) return null;
    const readout = make("p", { class: "caption" }, "Strongest at " + strongest(map) + ".");
    if (!map.cells.join("").replaceAll(".", "")) return card("Where it differs", "", make("p", { class: "input" }, "Nowhere: both sides are equal."));
    const shades = [["z", "largest"], ["v", "÷ 10"], ["r", "÷ 100"], ["n", "÷ 1 000"]].map(([letter, words]) =>
      make("span", { class: "key" }, make("i", { class: "swatch", style: { background: "var(--own)", opacity: opacity(letter) } }), words));
    const odd = map.cells.some((line) => line.includes("!")) ? [key("var(--bad)", "NaN or Inf on one side")] : [];
    const run = map.axes[0] === null ? `${axis(map.axes[1])} across` : `${axis(map.axes[0])} down (${group(map.shape[0])}), ${axis(map.axes[1])} across (${group(map.shape[1])})`;
    return card("Where it differs", "", heat(map, readout), make("p", { class: "caption" }, shades, key("var(--faint)", "equal"), odd), readout,
      caption(`Largest |B − A| per cell, over all other axes; ${run}.`));
  }

  return { histogramCard, rangeCard, heatCard };
})();
