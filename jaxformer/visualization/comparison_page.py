"""The page that shows curves of runs in a browser: one file, without a network, for
light and dark displays.
"""

from __future__ import annotations

from jaxformer.visualization.page import begin

# The script writes names only as text, never as markup.
PAGE = (
    begin("Curves")
    + """\
<style>
  :root {
    color-scheme: light dark;
    --page: #ffffff; --text: #1c2430; --quiet: #5d6877; --line: #d5dbe3;
    --c0: #1f5fa8; --c1: #c2571a; --c2: #1a8a63; --c3: #a64d8c; --c4: #8a6d00; --c5: #3a9bd0; --c6: #5d6877;
  }
  @media (prefers-color-scheme: dark) {
    :root {
      --page: #12161c; --text: #e3e8ef; --quiet: #98a3b3; --line: #313a46;
      --c0: #6aa7f0; --c1: #f08c4b; --c2: #45c295; --c3: #d98ac2; --c4: #d8b53a; --c5: #8ed1f5; --c6: #a9b4c4;
    }
  }
  * { box-sizing: border-box; }
  body {
    margin: 0; padding: 1.25rem clamp(1rem, 4vw, 3rem) 3rem; background: var(--page); color: var(--text);
    font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, "Noto Sans", sans-serif;
  }
  h1 { margin: 0; font-size: 1.35rem; font-weight: 650; }
  p { margin: .25rem 0; }
  .quiet { color: var(--quiet); font-size: .87rem; }
  h2 { margin: 0; font-size: 1rem; font-weight: 600; }
  #runs { display: flex; flex-wrap: wrap; gap: .4rem; padding: .7rem 0; position: sticky; top: 0; z-index: 1;
    background: var(--page); }
  button { display: flex; align-items: center; gap: .45rem; padding: .2rem .7rem; border: 1px solid var(--line);
    border-radius: .45rem; background: none; color: inherit; font: inherit; cursor: pointer; overflow-wrap: anywhere;
    text-align: left; }
  button:hover { border-color: var(--quiet); }
  button:focus-visible { outline: 2px solid var(--c1); outline-offset: 1px; }
  button[aria-pressed="false"] { opacity: .45; text-decoration: line-through; }
  button svg { width: 26px; height: 8px; flex: none; }
  main { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: 1.6rem 2rem;
    margin-top: .5rem; }
  section { min-width: 0; }
  .chart { touch-action: pan-y; }
  .chart svg { display: block; width: 100%; font-family: inherit; }
  svg text { fill: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }
  svg .grid { stroke: var(--line); stroke-width: 1; }
  svg .curve { fill: none; stroke-width: 1.8; stroke-linejoin: round; }
  svg .cursor { stroke: var(--quiet); stroke-width: 1; stroke-dasharray: 3 3; }
  .reading { min-height: 1.5em; color: var(--quiet); font-size: .87rem; font-variant-numeric: tabular-nums; }
  .reading span { display: inline-block; margin-right: 1rem; }
</style>
</head>
<body>
<h1>Curves</h1>
<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>
<p class="quiet">Point at a chart to read its values. Points of long curves are the means of their neighbours.</p>
<div id="runs" role="group" aria-label="Runs to show"></div>
<main id="panels"></main>
<script id="data" type="application/json">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const shown = data.runs.map(() => true);
const COLOURS = 7, DASHES = ["", "7 4", "2 4"];
const HEIGHT = 230, LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 26;

function add(parent, name, text, attributes) {
  const svg = parent.namespaceURI.endsWith("svg") || name === "svg";
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return parent.appendChild(element);
}

function colour(run) { return "var(--c" + run % COLOURS + ")"; }

function dash(run) { return DASHES[Math.floor(run / COLOURS) % DASHES.length]; }

function write(value) {
  const size = Math.abs(value);
  if (size >= 1e3 && size < 1e9) return Math.round(value).toLocaleString("en");
  if (value === 0 || (size >= 1e-3 && size < 1e3)) return String(Number(value.toPrecision(4)));
  return value.toExponential(2);
}

function ticks(low, high, most) {
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high * (1 + 1e-9); i++)
    found.push(Number((i * step).toPrecision(12)));
  return found;
}

function nearest(line, step) {
  let low = 0, high = line.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (line[middle][0] < step) low = middle; else high = middle;
  }
  return step - line[low][0] < line[high][0] - step ? line[low] : line[high];
}

function drawPanel(panel, chart, reading) {
  chart.replaceChildren();
  const width = Math.max(260, chart.clientWidth);
  const last = data.last;
  const x = step => LEFT + (width - LEFT - RIGHT) * step / last;
  const y = value => HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - panel.low) / (panel.high - panel.low);
  const svg = add(chart, "svg", undefined, {viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": panel.title});
  const clip = "clip" + data.panels.indexOf(panel);
  add(add(svg, "clipPath", undefined, {id: clip}), "rect", undefined,
    {x: LEFT - 4, y: TOP - 4, width: width - LEFT - RIGHT + 8, height: HEIGHT - TOP - BOTTOM + 8});
  for (const value of ticks(panel.low, panel.high, 5)) {
    add(svg, "line", undefined, {class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value)});
    add(svg, "text", write(value), {x: LEFT - 8, y: y(value) + 4, "text-anchor": "end"});
  }
  for (const step of ticks(0, last, Math.max(2, Math.floor(width / 110))).filter(Number.isInteger)) {
    const anchor = x(step) > width - 40 ? "end" : "middle";
    const at = anchor === "end" ? width - RIGHT : x(step);
    add(svg, "text", write(step), {x: at, y: HEIGHT - 8, "text-anchor": anchor});
  }
  panel.lines.forEach((line, run) => {
    if (!shown[run] || !line.length) return;
    const style = "stroke: " + colour(run), area = `url(#${clip})`;
    add(svg, "polyline", undefined, {class: "curve", style, "stroke-dasharray": dash(run), "clip-path": area,
      points: line.map(([step, value]) => x(step).toFixed(1) + "," + y(value).toFixed(1)).join(" ")});
    if (line.length > 40) return;
    for (const [step, value] of line) {
      const place = {cx: x(step), cy: y(value), r: 2.4};
      add(svg, "circle", undefined, {...place, style: "fill: " + colour(run), "clip-path": area});
    }
  });
  chart.onpointermove = event => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * width / box.width;
    showValues(panel, svg, reading, Math.min(last, Math.max(0, (at - LEFT) / (width - LEFT - RIGHT) * last)), x, y);
  };
  chart.onpointerleave = () => {
    svg.querySelectorAll(".mark").forEach(mark => mark.remove());
    showLast(panel, reading);
  };
  showLast(panel, reading);
}

function showValues(panel, svg, reading, step, x, y) {
  svg.querySelectorAll(".mark").forEach(mark => mark.remove());
  const found = panel.lines.map((line, run) => shown[run] && line.length ? nearest(line, step) : null);
  const steps = found.filter(point => point).map(point => point[0]);
  if (!steps.length) return;
  const at = steps.reduce((best, other) => Math.abs(other - step) < Math.abs(best - step) ? other : best);
  const cursor = {class: "cursor mark", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM};
  add(svg, "line", undefined, cursor);
  reading.replaceChildren();
  add(reading, "span", "step " + write(at));
  found.forEach((point, run) => {
    if (!point) return;
    // A run that ended before, or that was measured elsewhere, says where its value is from.
    const [from, value] = point;
    add(reading, "span", write(value) + (from === at ? "" : " at " + write(from)), {style: "color: " + colour(run)});
    if (value < panel.low || value > panel.high) return;
    add(svg, "circle", undefined, {class: "mark", cx: x(from), cy: y(value), r: 4, style: "fill: " + colour(run)});
  });
}

function showLast(panel, reading) {
  reading.replaceChildren();
  add(reading, "span", "last");
  panel.lines.forEach((line, run) => {
    if (shown[run] && line.length)
      add(reading, "span", write(line[line.length - 1][1]), {style: "color: " + colour(run)});
  });
}

function drawRuns() {
  const list = document.getElementById("runs");
  list.replaceChildren();
  data.runs.forEach((name, run) => {
    const button = add(list, "button", undefined, {type: "button", "aria-pressed": String(shown[run])});
    const sample = add(button, "svg", undefined, {viewBox: "0 0 26 8", "aria-hidden": "true"});
    add(sample, "line", undefined, {x1: 0, x2: 26, y1: 4, y2: 4, "stroke-width": 3, "stroke-dasharray": dash(run),
      style: "stroke: " + colour(run)});
    add(button, "span", name);
    button.onclick = () => {
      shown[run] = !shown[run];
      draw();
      document.getElementById("runs").children[run].focus();
    };
  });
}

const places = data.panels.map(panel => {
  const section = add(document.getElementById("panels"), "section");
  add(section, "h2", panel.title);
  const chart = add(section, "div", undefined, {class: "chart"});
  return {chart, reading: add(section, "div", undefined, {class: "reading"})};
});

function draw() {
  drawRuns();
  data.panels.forEach((panel, i) => drawPanel(panel, places[i].chart, places[i].reading));
}

draw();
addEventListener("resize", draw);
</script>
</body>
</html>
"""
)
