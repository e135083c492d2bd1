"use strict";
// Data, words, the elements of the page, and the selected layer: what all other parts use.
// Text reaches the page through textContent and attributes alone, so no name can become markup.

document.documentElement.classList.remove("no-script");

const $ = (id) => document.getElementById(id);
const data = $("columns") ? JSON.parse($("columns").textContent) : { count: 0 };
const count = data.count;
const layers = Array.from({ length: count }, (_, i) => i);

for (const name of ["error", "limit", "own", "ownLimit", "inherited", "ofLimit", "effect", "truthA", "truthB", "timeA", "timeB"])
  if (data[name]) data[name] = data[name].map((v) => (typeof v === "string" ? Number(v) : v));

const figure = (name, i) => (data[name] ? data[name][i] : null);
const has = (name) => Boolean(data[name]);
const text = (name, i) => data[name].texts[data[name].at[i]];
const valueName = (i) => (data.value[i][0] === "=" ? data.name[i] : "") + data.value[i].slice(1);
const statusOf = (i) => data.statuses[data.status[i]];
const statusClass = (i) => statusOf(i)[2];
const agrees = (i) => statusOf(i)[3];
const differs = (i) => !agrees(i) && statusClass(i) !== "skipped";

const readers = layers.map(() => []);
layers.forEach((i) => data.inputs[i].forEach((source) => readers[source].push(i)));

// Words: the rules of reports/words.py

const UNKNOWN = "–";

function number(value, digits = 2) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Number.isNaN(value)) return "nan";
  const size = Math.abs(value);
  return (value < 0 ? "−" : "") + (Number.isFinite(size) ? finite(size, digits) : "inf");
}

function finite(size, digits) {
  if (size === 0) return "0";
  if (size >= 10 ** digits && size < 1e5) return group(Math.round(size));
  if (size < 1e-3 || size >= 1e5) return size.toExponential(digits - 1).replace("+", "");
  const shown = size.toPrecision(digits);
  return shown.includes("e") ? String(Math.round(size)) : shown;
}

const group = (whole) => String(whole).replace(/\B(?=(\d{3})+$)/g, " ");
const times = (ratio) => (ratio === null ? UNKNOWN : number(ratio) + " ×");

function seconds(value) {
  if (!value) return value === 0 ? "0 s" : UNKNOWN;
  const units = [[1, ""], [1e-3, "m"], [1e-6, "µ"], [1e-9, "n"]];
  const [scale, prefix] = units.find((unit) => Math.abs(value) >= unit[0] * 0.9995) || units[3];
  return number(value / scale, 3) + " " + prefix + "s";
}

function percent(share) {
  const shown = number(100 * share, 3);
  return (shown.includes(".") && !shown.includes("e") ? shown.replace(/\.?0+$/, "") : shown) + " %";
}

function shorten(words, longest) {
  if (words.length <= longest) return words;
  const head = Math.floor((longest - 1) / 3);
  return words.slice(0, head) + "…" + words.slice(words.length - (longest - 1 - head));
}

const title = (i) => `#${i} ${text("op", i)}`;
const statusWords = (i) => `${statusOf(i)[1]} ${statusOf(i)[0]}`;

// Elements

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "style") Object.entries(value).forEach(([name, v]) => element.style.setProperty(name, v));
    else element.setAttribute(key, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const show = (host, ...children) => { host.replaceChildren(...children.flat(Infinity).filter(Boolean)); return host; };
const nameOf = (words, longest = 160) =>
  make("bdi", { class: "name", title: words.length > longest ? words.slice(0, 1000) : null }, shorten(words, longest));
const statusMark = (i) => make("span", { class: "status " + statusClass(i) }, statusWords(i));
const label = (x, y, words, attributes) => draw("text", { x, y, ...attributes }, words);
const canvas = (width, height, description, children) =>
  draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": description }, children);

function link(i, words) {
  const follow = (event) => { event.preventDefault(); select(i, "link"); };
  return make("a", { href: "#layers", onclick: follow }, words || title(i));
}

/** Return a step of 1, 2 or 5 × 10ⁿ, not below `rough`. */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-12)));
  return power * ([1, 2, 5, 10].find((m) => m * power >= rough) || 10);
}

// The selected layer

let selected = -1;
const listeners = [];
let remembering = 0;

function select(i, from) {
  if (!(i >= 0 && i < count)) return;
  if (from === "link" && $("detail").getBoundingClientRect().top > innerHeight * 0.7)
    $("layers").scrollIntoView();
  if (i === selected) return;
  selected = i;
  listeners.forEach((listen) => listen(i, from));
  if (from === "load") return;
  clearTimeout(remembering);
  remembering = setTimeout(() => history.replaceState(null, "", "#layer=" + i), 250);
}
