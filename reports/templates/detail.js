// The detail of the selected layer. Its figures are parsed when it is opened, not before.

const detail = (() => {
  if (!count) return {};
  const host = $("detail");
  const lines = new Map($("details").textContent.split("\n").filter(Boolean).map((line) => [parseInt(line.slice(5), 10), line]));
  const METRICS = [
    ["max |A − B|", (m) => number(m.max_abs, 3)],
    ["mean |A − B|", (m) => number(m.mean_abs, 3)],
    ["RMS of A − B", (m) => number(m.rms, 3)],
    ["max relative, per element", (m) => number(m.max_rel, 3)],
    ["cosine", (m) => ("cosine" in m ? String(m.cosine) : UNKNOWN)],
    ["signal to noise", (m) => ("snr_db" in m ? number(value(m.snr_db), 3) + " dB" : UNKNOWN)],
    ["largest distance, ULP", (m) => ("ulp" in m ? ulp(value(m.ulp)) : UNKNOWN)],
    ["outside the limit", (m) => `${percent(m.outside)} of ${group(m.size)}`],
  ];
  const SIDES = [
    ["min", "a_min", "b_min"], ["max", "a_max", "b_max"], ["RMS", "rms_a", "rms_b"],
    ["NaN", "nan_a", "nan_b"], ["Inf", "inf_a", "inf_b"], ["zeros", "zero_a", "zero_b"],
  ];

  const value = (v) => (typeof v === "string" ? Number(v) : v);
  const ulp = (v) => (Number.isInteger(v) && v < 1e15 ? group(v) : number(v, 3));
  const numeral = (v) => (Number.isInteger(v) ? group(v).replace("-", "−") : number(v, 7));
  const element = (v) => (v && typeof v === "object" ? v.text : typeof v === "number" ? numeral(v) : v ?? UNKNOWN);
  const card = (words, kind, ...children) => make("div", { class: "panel " + kind }, make("h3", null, words), children);
  const caption = (...words) => make("p", { class: "caption" }, words);
  const list = (kind, rows) => make("div", { class: "list " + kind }, rows.map((row) =>
    row.map((cell, k) => make("span", { class: k ? "num" : null }, cell))));

  // In words

  /** Return the layers with an own error among what feeds layer i, the nearest to the inputs last. */
  function origin(i) {
    const seen = new Set([i]), stack = [i];
    let found = null;
    while (stack.length && seen.size < 20000) {
      const j = stack.pop();
      if (j !== i && ["own", "nan"].includes(statusClass(j)) && (found === null || j < found)) found = j;
      for (const source of data.inputs[j]) if (!seen.has(source) && differs(source)) { seen.add(source); stack.push(source); }
    }
    return found;
  }

  const within = (i) => `own error ${number(figure("own", i))} of ${number(figure("ownLimit", i))}`;

  const REASONS = {
    own: (i) => [figure("own", i) === null
      ? `This layer differs: error ${number(figure("error", i))}, limit ${number(figure("limit", i))}.`
      : `This layer is wrong by itself: fed with A's inputs it still differs by ${number(figure("own", i))}, ${times(figure("ofLimit", i))} its limit of ${number(figure("ownLimit", i))}.`],
    inherited(i) {
      const from = origin(i), known = figure("own", i) !== null && figure("ownLimit", i) !== null;
      return [known ? `Nothing is wrong here: ${within(i)}. ` : "", `The difference of ${number(figure("error", i))} `,
        from === null ? "comes with its inputs." : "comes from ", from === null ? "" : link(from), from === null ? "" : "."];
    },
    nan(i) {
      const from = origin(i);
      return from === null ? ["NaN or Inf appears here on one side alone."] : ["NaN or Inf comes from ", link(from), "."];
    },
    remark: (i) => [`Counts as equal, with a remark: error ${number(figure("error", i))}, limit ${number(figure("limit", i))}.`],
    skipped: () => ["This layer was not compared."],
    ok: (i) => [`Agrees: error ${number(figure("error", i))} of ${number(figure("limit", i))}`, figure("own", i) === null ? "." : `; ${within(i)}.`],
  };

  // Cards

  /** Return bars on a common log scale; rows are [words, value, limit, colour]. */
  function bars(rows, description) {
    const shown = rows.filter((row) => row[1] !== null), points = shown.flatMap((row) => [row[1], row[2]]).filter((v) => v > 0 && v < Infinity);
    if (!shown.length) return null;
    const top = Math.ceil(Math.log10(Math.max(...points, 1e-9)) + 0.01), low = Math.min(Math.floor(Math.log10(Math.min(...points, 1))), top - 4);
    const bottom = Math.max(low, top - 12), W = 300, LEFT = 62, right = W - 52, height = 24 * shown.length;
    const x = (v) => LEFT + Math.max(0, Math.min(1, (Math.log10(Math.max(v, 1e-300)) - bottom) / (top - bottom))) * (right - LEFT);
    const parts = [];
    for (let power = bottom; power <= top; power += Math.max(1, Math.round((top - bottom) / 4)))
      parts.push(draw("line", { x1: x(10 ** power), x2: x(10 ** power), y1: 4, y2: height + 4, class: "line" }),
        label(x(10 ** power), height + 18, power ? "1e" + power : "1", { "text-anchor": "middle" }));
    shown.forEach(([words, v, limit, paint], k) => {
      const y = 6 + 24 * k;
      parts.push(label(0, y + 13, words, { class: "ink" }), label(W, y + 13, number(v), { class: "ink", "text-anchor": "end" }));
      if (v > 0) parts.push(draw("rect", { x: LEFT, y: y + 3, width: Math.max(1, x(v) - LEFT), height: 12, fill: paint }));
      if (limit !== null) parts.push(draw("path", { d: `M${x(limit)} ${y - 1}v20`, stroke: "var(--panel)", "stroke-width": 4 }),
        draw("path", { d: `M${x(limit)} ${y - 1}v20`, stroke: "var(--ink)", "stroke-width": 1.6 }));
    });
    return make("div", { class: "figure" }, canvas(W, height + 22, description, parts));
  }

  function errorCard(i) {
    const rows = [
      ["own", figure("own", i), figure("ownLimit", i), "var(--own)"],
      ["inherited", figure("inherited", i), null, "var(--inherited)"],
      ["total", figure("error", i), figure("limit", i), "var(--ink)"],
    ];
    const picture = bars(rows, rows.map((row) => `${row[0]} error ${number(row[1])}`).join(", "));
    if (!picture) return null;
    const fed = Math.max(0, ...data.inputs[i].map((j) => figure("error", j) || 0)), out = figure("error", i);
    const change = fed > 0 && out !== null ? `Error ${out > fed * 1.05 ? "grows" : out < fed * 0.95 ? "shrinks" : "passes through"} here: ${number(fed)} in, ${number(out)} out.` : "";
    const words = has("own") ? "The upright stroke is the limit. Own: this layer in B on A's inputs. Inherited: how far B's own inputs move it from there. " : "The upright stroke is the limit. Own and inherited error were not measured. ";
    return card(has("own") ? "Own against inherited" : "Error", "", picture, caption(words, change));
  }

  function truthCard(i) {
    const a = figure("truthA", i), b = figure("truthB", i);
    if (a === null && b === null) return null;
    const picture = bars([["A", a, null, "var(--a)"], ["B", b, null, "var(--b)"]], `distance to float64: A ${number(a)}, B ${number(b)}`);
    return card("Who is closer to float64", "", picture, caption(closer(a, b)));
  }

  function closer(a, b) {
    if (a === null || b === null) return "Only one side was measured.";
    if (a === b) return "Both are equally close.";
    const side = a < b ? "A" : "B", near = Math.min(a, b), far = Math.max(a, b);
    if (near === 0) return `${side} is exact.`;
    return far / near < 3 ? "Neither is clearly closer (factor below 3)." : `${side} is closer, by a factor of ${number(far / near)}.`;
  }

  function metricCards(row) {
    const m = row.metrics;
    if (!m) return [];
    const same = SIDES.filter(([, a, b]) => a in m || b in m);
    const worst = m.worst ? [["largest difference at", `[${m.worst.join(", ")}]`], ["A there", element(m.a_worst)], ["B there", element(m.b_worst)]] : [];
    const steps = row.step ? [["step of its codes", number(row.step, 3)], ["own error, in steps", number(row.steps ?? null, 2)]] : [];
    const lone = m.nonfinite_differ ? [["NaN or Inf on one side alone", group(m.nonfinite_differ)]] : [];
    const shown = (v, key) => (/nan|inf|zero/.test(key) ? group(v) : number(v === undefined ? null : value(v), 4));
    return [
      card("Metrics", "", list("", [...METRICS.map(([words, get]) => [words, get(m)]), ...steps, ...lone, ...worst])),
      same.length ? card("Values of both sides", "", list("two", [["", "A", "B"], ...same.map(([words, a, b]) => [words, shown(m[a], a), shown(m[b], b)])])) : null,
    ];
  }

  function limitCard(i, row) {
    const rows = [["Own limit", figure("ownLimit", i), row.ownLimit], ["Limit", figure("limit", i), row.limit]];
    const known = rows.filter((one) => one[1] !== null);
    if (!known.length) return null;
    return card("Limits and their reasons", "", known.map(([words, v, why]) =>
      make("p", { class: "input" }, `${words} ${number(v)}`, why ? ": " + why : "")));
  }

  function layerCard(i, row) {
    const rows = [
      ["value", nameOf(row.value || valueName(i), 400)],
      ["node", nameOf(row.node || data.name[i], 400)],
      ["type", text("dtype", i) ? `${text("dtype", i)} ${text("shape", i)}` : text("shape", i)],
      ["domain", row.domain], ["subgraph", text("scope", i)],
      ["computed", data.occurrences[i] ? group(data.occurrences[i]) + " times" : ""],
      ["graph output", data.outputs.includes(i) ? "yes" : ""],
      ["time", has("timeA") || has("timeB") ? `A ${seconds(figure("timeA", i))}, B ${seconds(figure("timeB", i))}` : ""],
    ];
    return card("Layer", "", make("table", { class: "pairs" }, make("tbody", null, rows.filter((one) => one[1]).map(([words, v]) =>
      make("tr", null, make("th", { scope: "row" }, words), make("td", null, v))))));
  }

  function graphCard(i) {
    const names = (all) => (all.length ? all.slice(0, 30).flatMap((j, k) => [k ? ", " : "", link(j)]) : ["–"]);
    const more = (all) => (all.length > 30 ? ` and ${group(all.length - 30)} more` : "");
    if (!data.inputs[i].length && !readers[i].length) return null;
    return card("Graph around it", "", graph.around(i, host.clientWidth),
      caption("Each box shows the total error. Reads ", names(data.inputs[i]), more(data.inputs[i]), "; read by ", names(readers[i]), more(readers[i]), "."));
  }

  function header(i) {
    const move = (step, words, name) => make("button", { type: "button", "aria-label": name, disabled: i + step < 0 || i + step >= count ? "" : null,
      onclick: () => select(i + step, name) }, words);
    return make("div", { class: "detail-head" }, make("span", { class: "title" }, title(i) + " ", nameOf(data.name[i])), statusMark(i),
      make("span", { class: "moves" }, move(-1, "‹ previous", "previous layer"), move(1, "next ›", "next layer")));
  }

  function open(i) {
    const line = lines.get(i), row = line ? JSON.parse(line) : {};
    const picture = row.picture || {}, size = row.metrics ? row.metrics.size : 0;
    const histogram = pictures.histogramCard(card, caption, picture, size), heat = pictures.heatCard(card, caption, picture);
    const range = pictures.rangeCard(card, caption, list, text("dtype", i), row, value);
    const missing = line ? null : card("Metrics", "", make("p", { class: "input" }, "Left out here to keep the page small: it holds the metrics of the layers that matter most. The JSON has them for all."));
    show(host, header(i), make("p", { class: "reason" }, REASONS[statusClass(i)](i), row.note ? " " + row.note : ""),
      make("div", { class: "cards" }, stack(errorCard(i), truthCard(i), limitCard(i, row), histogram, range), stack(metricCards(row), missing, heat)),
      stack(graphCard(i), layerCard(i, row)));
  }

  /** Return cards one above the other, or nothing. */
  function stack(...cards) {
    const shown = cards.flat().filter(Boolean);
    return shown.length ? make("div", { class: "stack" }, shown) : null;
  }

  listeners.push((i, from) => {
    const inside = host.contains(document.activeElement);
    open(i);
    if (inside) host.focus({ preventScroll: true }); // what had the focus was drawn anew
    if (from === "graph") host.querySelector(".node.here")?.focus({ preventScroll: true });
    [...host.querySelectorAll(".moves button")].find((button) => button.getAttribute("aria-label") === from)?.focus({ preventScroll: true });
  });
  return { open };
})();
