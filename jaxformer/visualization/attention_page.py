"""The page that shows attention maps in a browser: one file, without a network, for
light and dark displays.
"""

from __future__ import annotations

from jaxformer.visualization.page import begin

TITLE_SLOT = "{{title}}"

# The script writes tokens only as text, never as markup. Colours grow with the square
# root of the weight, as in the figures: most weights are small, and one looks for their
# differences.
PAGE = (
    begin(TITLE_SLOT)
    + """\
<style>
  :root {
    color-scheme: light dark;
    --page: #ffffff; --text: #1c2430; --quiet: #5d6877; --line: #d5dbe3; --accent: #b4451f; --chosen: #e9eef6;
    --low: #f4f6f9; --middle: #5b8fc9; --high: #0b2a5b;
  }
  @media (prefers-color-scheme: dark) {
    :root {
      --page: #12161c; --text: #e3e8ef; --quiet: #98a3b3; --line: #313a46; --accent: #ffa25c; --chosen: #263141;
      --low: #1b212a; --middle: #2f74b5; --high: #d8f0ff;
    }
  }
  * { box-sizing: border-box; }
  body {
    margin: 0; padding: 1.5rem clamp(1rem, 4vw, 3rem) 3rem; background: var(--page); color: var(--text);
    font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, "Noto Sans", sans-serif;
  }
  h1 { margin: 0 0 .25rem; font-size: 1.35rem; font-weight: 650; }
  p { margin: .25rem 0; }
  .quiet { color: var(--quiet); font-size: .87rem; }
  #sentences span { display: inline-block; margin-right: 1.5rem; overflow-wrap: anywhere; }
  #sentences b { margin-right: .45rem; color: var(--quiet); font-weight: 500; }
  #kinds { display: flex; flex-wrap: wrap; gap: .4rem; margin: 1.1rem 0; }
  button { border: 1px solid var(--line); border-radius: .45rem; background: none; color: inherit; font: inherit;
    cursor: pointer; }
  button:hover { border-color: var(--quiet); }
  button:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
  #kinds button { padding: .3rem .85rem; }
  #kinds button[aria-pressed="true"] { background: var(--chosen); border-color: var(--quiet); font-weight: 600; }
  main { display: flex; flex-wrap: wrap; gap: 1.5rem 2.5rem; align-items: flex-start; }
  section { max-width: 100%; overflow-x: auto; padding-bottom: .5rem; }
  #heads { border-spacing: 4px; margin-left: -4px; }
  #heads th { padding: 0 .35rem; color: var(--quiet); font-size: .8rem; font-weight: 500; white-space: nowrap; }
  #heads td { padding: 0; }
  #heads button { display: block; padding: 3px; line-height: 0; }
  #heads button[aria-pressed="true"] { border-color: var(--accent); box-shadow: 0 0 0 1px var(--accent); }
  #heads canvas { width: var(--thumb); height: var(--thumb); image-rendering: pixelated; border-radius: 2px; }
  #chosen { font-weight: 600; }
  #reading { min-height: 1.6em; font-variant-numeric: tabular-nums; }
  #reading b { color: var(--accent); }
  svg { display: block; font-family: inherit; user-select: none; }
  svg text { fill: var(--text); font-size: 13px; white-space: pre; }
  svg text.faint { fill: var(--quiet); font-size: 12px; }
  svg text.marked { fill: var(--accent); font-weight: 650; }
  #frame { fill: none; stroke: var(--accent); stroke-width: 2; pointer-events: none; }
  #scale { display: flex; align-items: center; gap: .5rem; margin-top: .75rem; }
  #scale canvas { width: 180px; height: 10px; border-radius: 5px; }
</style>
</head>
<body>
<h1>{{title}}</h1>
<div id="sentences"></div>
<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>
<div id="kinds" role="group" aria-label="Kind of attention"></div>
<main>
  <section aria-label="Layers and heads">
    <table id="heads"></table>
    <p class="quiet">Choose a head; the arrow keys move on.</p>
    <div id="scale" class="quiet"><span>0</span><canvas width="180" height="1"></canvas><span>1</span>
      <span>weight, by its square root</span></div>
  </section>
  <section aria-label="Attention map">
    <p id="chosen"></p>
    <p id="reading" class="quiet"></p>
    <div id="map"></div>
  </section>
</main>
<script id="data" type="application/json">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const state = {kind: data.kinds.length - 1, layer: 0, head: 0};
const LONGEST = 18;
const HINT = "Point at a cell to read its weight.";

function byId(id) { return document.getElementById(id); }

function add(parent, name, text, attributes) {
  const svg = parent.namespaceURI.endsWith("svg") || name === "svg";
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return parent.appendChild(element);
}

function shorten(token) {
  const letters = Array.from(token);
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "\\u2026" : token;
}

function palette() {
  const style = getComputedStyle(document.documentElement);
  const stops = ["--low", "--middle", "--high"].map(name => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map(start => parseInt(hex.slice(start, start + 2), 16));
  });
  return weight => {
    const place = 2 * Math.sqrt(Math.min(1, Math.max(0, weight)));
    const lower = Math.min(1, Math.floor(place));
    return stops[lower].map((value, i) => Math.round(value + (place - lower) * (stops[lower + 1][i] - value)));
  };
}

function paint(canvas, rows, colour) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((weight, i) => image.data.set([...colour(weight), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

function drawKinds() {
  byId("kinds").replaceChildren();
  data.kinds.forEach((kind, i) => {
    const button = add(byId("kinds"), "button", kind.title, {type: "button", "aria-pressed": String(i === state.kind)});
    button.onclick = () => { state.kind = i; draw(); };
  });
}

function drawHeads(colour) {
  const kind = data.kinds[state.kind];
  state.layer = Math.min(state.layer, kind.weights.length - 1);
  state.head = Math.min(state.head, kind.weights[0].length - 1);
  const table = byId("heads");
  table.replaceChildren();
  table.style.setProperty("--thumb", Math.max(24, Math.min(46, Math.floor(288 / kind.weights[0].length))) + "px");
  const top = add(table, "tr");
  add(top, "th", "head");
  kind.weights[0].forEach((_, head) =>
    add(top, "th", String(head + 1), {scope: "col", "aria-label": "head " + (head + 1)}));
  kind.weights.forEach((heads, layer) => {
    const row = add(table, "tr");
    add(row, "th", "layer " + (layer + 1), {scope: "row"});
    heads.forEach((weights, head) => {
      const chosen = layer === state.layer && head === state.head;
      const name = "layer " + (layer + 1) + ", head " + (head + 1);
      const button = add(add(row, "td"), "button", undefined,
        {type: "button", title: name, "aria-label": name, "aria-pressed": String(chosen)});
      button.dataset.place = layer + "," + head;
      paint(add(button, "canvas"), weights, colour);
      button.onclick = () => choose(layer, head);
    });
  });
}

function choose(layer, head) {
  const kind = data.kinds[state.kind];
  state.layer = Math.min(kind.weights.length - 1, Math.max(0, layer));
  state.head = Math.min(kind.weights[0].length - 1, Math.max(0, head));
  for (const button of byId("heads").querySelectorAll("button")) {
    const chosen = button.dataset.place === state.layer + "," + state.head;
    button.setAttribute("aria-pressed", String(chosen));
    if (chosen) button.focus();
  }
  drawMap(palette());
}

function drawMap(colour) {
  const kind = data.kinds[state.kind];
  const weights = kind.weights[state.layer][state.head];
  const size = Math.max(16, Math.min(34, Math.floor(620 / Math.max(kind.rows.length, kind.columns.length))));
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "600 13px " + getComputedStyle(document.body).fontFamily;
  const width = tokens => Math.ceil(Math.max(...tokens.map(token => ruler.measureText(shorten(token)).width)));
  const left = width(kind.rows) + 36, top = width(kind.columns) + 34;
  const right = left + size * kind.columns.length, bottom = top + size * kind.rows.length;

  byId("chosen").textContent = kind.title + ", layer " + (state.layer + 1) + ", head " + (state.head + 1);
  byId("reading").textContent = HINT;
  byId("map").replaceChildren();
  const svg = add(byId("map"), "svg", undefined,
    {width: right + 12, height: bottom + 12, role: "img", "aria-label": byId("chosen").textContent});
  add(svg, "text", kind.columnTitle, {x: left, y: 14, class: "faint"});
  add(svg, "text", kind.rowTitle, {x: 0, y: 0, class: "faint", "text-anchor": "end",
    transform: "translate(14 " + top + ") rotate(-90)"});
  const columns = kind.columns.map((token, i) => add(svg, "text", shorten(token),
    {transform: "translate(" + (left + size * (i + .5) + 4) + " " + (top - 6) + ") rotate(-90)"}));
  const rows = kind.rows.map((token, i) => add(svg, "text", shorten(token),
    {x: left - 7, y: top + size * (i + .5) + 4, "text-anchor": "end"}));
  const cells = add(svg, "g");
  weights.forEach((row, i) => row.forEach((weight, j) => {
    const cell = add(cells, "rect", undefined, {x: left + size * j, y: top + size * i,
      width: size - 1, height: size - 1, rx: 2, fill: "rgb(" + colour(weight).join(" ") + ")"});
    cell.dataset.row = i;
    cell.dataset.column = j;
  }));
  const frame = add(svg, "rect", undefined,
    {id: "frame", width: size + 1, height: size + 1, rx: 3, visibility: "hidden"});

  function mark(i, j) {
    rows.forEach((label, k) => label.classList.toggle("marked", k === i));
    columns.forEach((label, k) => label.classList.toggle("marked", k === j));
    frame.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    frame.setAttribute("x", left + size * j - 1);
    frame.setAttribute("y", top + size * i - 1);
  }
  cells.addEventListener("pointerover", event => {
    const i = Number(event.target.dataset.row), j = Number(event.target.dataset.column);
    if (Number.isNaN(i) || Number.isNaN(j)) return;
    mark(i, j);
    const reading = byId("reading");
    reading.replaceChildren();
    add(reading, "b", kind.rows[i]);
    reading.append(" (" + (i + 1) + ") attends to ");
    add(reading, "b", kind.columns[j]);
    reading.append(" (" + (j + 1) + ") with weight ");
    add(reading, "b", weights[i][j].toFixed(4));
  });
  svg.addEventListener("pointerleave", () => { mark(-1, -1); byId("reading").textContent = HINT; });
}

function draw() {
  const colour = palette();
  drawKinds();
  drawHeads(colour);
  drawMap(colour);
  paint(byId("scale").querySelector("canvas"), [Array.from({length: 180}, (_, i) => (i / 179) ** 2)], colour);
}

const cross = data.kinds[data.kinds.length - 1];
for (const [name, tokens] of [["Source", cross.columns], ["Target", cross.rows]]) {
  const line = add(byId("sentences"), "span");
  add(line, "b", name);
  line.append(tokens.join(" "));
}
document.addEventListener("keydown", event => {
  const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
  if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
  if (!byId("heads").contains(document.activeElement)) return;
  event.preventDefault();
  choose(state.layer + move[0], state.head + move[1]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
</script>
</body>
</html>
"""
)
