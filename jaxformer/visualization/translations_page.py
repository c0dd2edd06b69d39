"""The page that shows compared systems in a browser: one file, without a network,
for light and dark displays.
"""

from __future__ import annotations

from jaxformer.visualization.page import begin

# The script writes translations only as text, never as markup.
PAGE = (
    begin("Translations compared")
    + """\
<style>
  :root {
    color-scheme: light dark;
    --page: #ffffff; --text: #1c2430; --quiet: #5d6877; --line: #d5dbe3; --panel: #f4f6f9; --mark: #fbe3d4;
    --c0: #1f5fa8; --c1: #c2571a; --c2: #1a8a63; --c3: #a64d8c; --c4: #8a6d00; --c5: #3a9bd0; --c6: #5d6877;
  }
  @media (prefers-color-scheme: dark) {
    :root {
      --page: #12161c; --text: #e3e8ef; --quiet: #98a3b3; --line: #313a46; --panel: #1a2029; --mark: #4a2f1d;
      --c0: #6aa7f0; --c1: #f08c4b; --c2: #45c295; --c3: #d98ac2; --c4: #d8b53a; --c5: #8ed1f5; --c6: #a9b4c4;
    }
  }
  * { box-sizing: border-box; }
  body {
    margin: 0 auto; max-width: 80rem; padding: 1.25rem clamp(1rem, 4vw, 3rem) 3rem; background: var(--page);
    color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, "Noto Sans", sans-serif;
  }
  h1 { margin: 0; font-size: 1.35rem; font-weight: 650; }
  h2 { margin: 2rem 0 .3rem; font-size: 1.05rem; font-weight: 600; }
  p { margin: .25rem 0; }
  .quiet { color: var(--quiet); font-size: .87rem; overflow-wrap: anywhere; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
  th, td { padding: .28rem .9rem .28rem 0; text-align: right; white-space: nowrap;
    border-bottom: 1px solid var(--line); }
  th { color: var(--quiet); font-size: .82rem; font-weight: 500; }
  th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 8rem; max-width: 20rem;
    overflow-wrap: anywhere; }
  td.chart { padding-right: 0; }
  .dot { display: inline-block; width: .7rem; height: .7rem; border-radius: .2rem; margin-right: .5rem; }
  .choices { display: flex; flex-wrap: wrap; gap: .4rem; margin: .6rem 0; }
  button { padding: .2rem .7rem; border: 1px solid var(--line); border-radius: .45rem; background: none; color: inherit;
    font: inherit; cursor: pointer; overflow-wrap: anywhere; }
  button:hover { border-color: var(--quiet); }
  button:focus-visible { outline: 2px solid var(--c1); outline-offset: 1px; }
  button[aria-pressed="true"] { background: var(--panel); border-color: var(--quiet); font-weight: 600; }
  #breakdowns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 0 2.5rem; }
  section { min-width: 0; }
  svg { display: block; font-family: inherit; }
  svg text { fill: var(--quiet); font-size: 12px; font-variant-numeric: tabular-nums; }
  svg .grid { stroke: var(--line); stroke-width: 1; }
  article { background: var(--panel); border-radius: .6rem; padding: .7rem 1rem; margin: .7rem 0; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .3rem 0 0; }
  dt { color: var(--quiet); font-size: .87rem; max-width: 14rem; overflow-wrap: anywhere; }
  dd { margin: 0; overflow-wrap: anywhere; }
  mark { background: var(--mark); color: inherit; border-radius: .2rem; padding: 0 .1rem; }
</style>
</head>
<body>
<h1>Translations compared</h1>
<p id="settings" class="quiet"></p>
<noscript><p>This page draws with JavaScript, which is switched off here.</p></noscript>
<main>
  <div id="scores"></div>
  <div id="breakdowns">
    <section><h2 id="length-title"></h2>
      <p class="quiet">Sentences of each length together. Below the length: how many there are.</p>
      <div id="length-metrics" class="choices"></div>
      <div id="lengths"></div></section>
    <section><h2 id="word-title"></h2>
      <p class="quiet">Every occurrence of a word counts. Below the frequency: words of the references.</p>
      <div id="words"></div></section>
  </div>
  <section id="differing" hidden>
    <h2>Sentences that differ most</h2>
    <p class="quiet">By sentence chrF. Marked: words that no reference has.</p>
    <div id="choices" class="choices"></div>
    <div id="sentences"></div>
  </section>
</main>
<script id="data" type="application/json">{{data}}</script>
<script>
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const baseline = data.systems[0];
const WORD = /([\\p{L}\\p{M}\\p{N}]+)/u;

function byId(id) { return document.getElementById(id); }

function add(parent, name, text, attributes) {
  const svg = parent.namespaceURI.endsWith("svg") || name === "svg";
  const element = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  if (text !== undefined) element.textContent = text;
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  return parent.appendChild(element);
}

function colour(system) { return "var(--c" + system % 7 + ")"; }

function number(value, digits, signed) {
  return (signed && value >= 0 ? "+" : "") + value.toFixed(digits);
}

function system(cell, index) {
  const dot = add(cell, "span", undefined, {class: "dot"});
  dot.style.background = colour(index);
  cell.append(data.systems[index]);
}

function drawInterval(cell, result, low, high, index) {
  const width = 220, x = value => 6 + (width - 12) * (value - low) / (high - low || 1);
  const svg = add(cell, "svg", undefined, {width, height: 16, role: "img", "aria-label": "95 % interval"});
  const looks = {stroke: colour(index), "stroke-width": 2};
  add(svg, "line", undefined, {x1: x(result.interval.low), x2: x(result.interval.high), y1: 8, y2: 8, ...looks});
  add(svg, "circle", undefined, {cx: x(result.score.value), cy: 8, r: 4, fill: colour(index)});
}

function drawScores() {
  for (const metric of data.metrics) {
    const section = add(byId("scores"), "section");
    add(section, "h2", metric.title);
    add(section, "p", metric.results[0].score.signature, {class: "quiet"});
    const table = add(add(section, "div", undefined, {class: "scroll"}), "table");
    const head = add(table, "tr");
    const names = ["system", "score", "95 % interval", ""];
    if (metric.results.length > 1) names.push("difference", "95 % interval", "wins", "p bootstrap", "p randomisation");
    for (const name of names) add(head, "th", name);
    const low = Math.min(...metric.results.map(result => result.interval.low));
    const high = Math.max(...metric.results.map(result => result.interval.high));
    const write = (value, signed) => number(value, metric.digits, signed);
    metric.results.forEach((result, index) => {
      const row = add(table, "tr"), cell = text => add(row, "td", text);
      system(cell(), index);
      cell(write(result.score.value));
      cell(write(result.interval.low) + " to " + write(result.interval.high));
      const chart = cell();
      chart.className = "chart";
      drawInterval(chart, result, low, high, index);
      if (!result.bootstrap) { if (names.length > 4) add(row, "td", "", {colspan: 5}); return; }
      const gain = result.bootstrap.interval;
      cell(write(result.score.value - metric.results[0].score.value, true));
      cell(write(gain.low, true) + " to " + write(gain.high, true));
      cell((100 * result.bootstrap.wins).toFixed(1) + " %");
      cell(result.bootstrap.p_value.toFixed(4));
      cell(result.randomization === null ? "" : result.randomization.toFixed(4));
    });
  }
}

function drawBars(place, buckets, digits) {
  place.replaceChildren();
  const bar = 13, left = 74, right = 58, top = 4;
  const width = Math.max(260, place.clientWidth);
  const size = data.systems.length * bar, gap = 14;
  const most = Math.max(1e-9, ...buckets.flatMap(bucket => bucket.values));
  const height = top + buckets.length * (size + gap);
  const svg = add(place, "svg", undefined, {viewBox: `0 0 ${width} ${height}`, width, height, role: "img"});
  buckets.forEach((bucket, row) => {
    const y = top + row * (size + gap);
    add(svg, "text", bucket.label, {x: 0, y: y + 11});
    add(svg, "text", bucket.count.toLocaleString("en"), {x: 0, y: y + 25, opacity: 0.7});
    bucket.values.forEach((value, index) => {
      const length = (width - left - right) * Math.max(0, value) / most;
      const looks = {x: left, y: y + index * bar, width: length, height: bar - 3, rx: 2, fill: colour(index)};
      add(add(svg, "rect", undefined, looks), "title", data.systems[index]);
      add(svg, "text", number(value, digits), {x: left + length + 6, y: y + index * bar + 10});
    });
  });
}

function pressed(parent, labels, choose) {
  const buttons = labels.map((label, index) => {
    const button = add(parent, "button", label, {type: "button", "aria-pressed": String(index === 0)});
    button.addEventListener("click", () => {
      buttons.forEach(other => other.setAttribute("aria-pressed", String(other === button)));
      choose(index);
    });
    return button;
  });
}

function translation(list, name, text, references) {
  add(list, "dt", name);
  const place = add(list, "dd");
  text.split(WORD).forEach((part, index) => {
    if (references && index % 2 && !references.has(part)) add(place, "mark", part); else place.append(part);
  });
}

function drawSentences(name, differences) {
  const place = byId("sentences");
  place.replaceChildren();
  if (!differences.length) add(place, "p", "There are none.", {class: "quiet"});
  for (const difference of differences) {
    const card = add(place, "article");
    const [before, after] = difference.chrf;
    add(card, "div", `sentence ${difference.number}, ${number(after - before, 1, true)}`, {class: "quiet"});
    const list = add(card, "dl");
    if (difference.source !== null) translation(list, "source", difference.source);
    difference.references.forEach(text => translation(list, "reference", text));
    const words = new Set(difference.references.flatMap(text => text.split(WORD)));
    [baseline, name].forEach((label, index) =>
      translation(list, `${label} ${difference.chrf[index].toFixed(1)}`, difference.translations[index], words));
  }
}

function drawDifferences() {
  const views = Object.entries(data.differences).flatMap(([name, kinds]) => [
    [`${name} better than ${baseline}`, name, kinds.better], [`${baseline} better than ${name}`, name, kinds.worse]]);
  if (!views.length) return;
  byId("differing").hidden = false;
  pressed(byId("choices"), views.map(view => view[0]), index => drawSentences(views[index][1], views[index][2]));
  drawSentences(views[0][1], views[0][2]);
}

let shown = 0;

function drawBreakdowns() {
  byId("length-title").textContent = `${data.metrics[shown].title} by length of the ${data.config.lengths} in words`;
  byId("word-title").textContent = `F1 of words by their frequency in ${data.wordSource}`;
  drawBars(byId("lengths"), data.lengths[shown], data.metrics[shown].digits);
  drawBars(byId("words"), data.words, 1);
}

byId("settings").textContent = `${data.sentences.toLocaleString("en")} sentences, seed ${data.config.seed}, `
  + `${data.config.resamples} resamples of a paired bootstrap, ${data.config.trials} trials of approximate `
  + "randomisation"
  + (data.systems.length > 1 ? `; differences, wins and p-values are against ${baseline}` : "");
drawScores();
const titles = data.metrics.map(metric => metric.title);
if (titles.length > 1) pressed(byId("length-metrics"), titles, index => { shown = index; drawBreakdowns(); });
drawBreakdowns();
drawDifferences();
window.addEventListener("resize", drawBreakdowns);
</script>
</body>
</html>
"""
)
