const baseline = data.systems[0];
const WORD = /([\p{L}\p{M}\p{N}]+)/u;

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
    const names = ["system", "score", "95 % interval", "drawn"];
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
  const svg = add(place, "svg", undefined, {viewBox: `0 0 ${width} ${height}`, width, height, role: "img",
    "aria-label": place.parentNode.querySelector("h2").textContent});
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
  addChoices(byId("choices"), views.map(view => view[0]), 0, index => drawSentences(views[index][1], views[index][2]));
  drawSentences(views[0][1], views[0][2]);
}

let shown = 0;

function drawBreakdowns() {
  byId("length-title").textContent = `${data.metrics[shown].title} by length of the ${data.config.lengths} in words`;
  byId("word-title").textContent = `F1 of words by their frequency in ${data.wordSource}`;
  drawBars(byId("lengths"), data.lengths[shown], data.metrics[shown].digits);
  drawBars(byId("words"), data.words, 1);
}

byId("settings").textContent = `${data.sentences.toLocaleString("en")} sentences, seed ${data.config.seed}: `
  + `${data.config.resamples} bootstrap resamples, ${data.config.trials} randomisation trials`
  + (data.systems.length > 1 ? `; differences, wins and p-values are against ${baseline}` : "");
drawScores();
const titles = data.metrics.map(metric => metric.title);
if (titles.length > 1) addChoices(byId("length-metrics"), titles, 0, index => { shown = index; drawBreakdowns(); });
drawBreakdowns();
drawDifferences();
window.addEventListener("resize", drawBreakdowns);
