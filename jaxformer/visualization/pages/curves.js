const shown = data.runs.map(() => true);
const DASHES = ["", "7 4", "2 4"];
const HEIGHT = 230, LEFT = 56, RIGHT = 12, TOP = 10, BOTTOM = 26;

function dash(run) { return DASHES[Math.floor(run / 7) % DASHES.length]; }

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
  const list = byId("runs");
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
      byId("runs").children[run].focus();
    };
  });
}

const places = data.panels.map(panel => {
  const section = add(byId("panels"), "section");
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
