const LONGEST = 18;  // characters of a label
const HINT = "Point at a cell to read its weight.";
const state = {kind: data.kinds.length - 1, layer: 0, head: 0};

function shorten(token) {
  const letters = Array.from(token);
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "\u2026" : token;
}

// Colours follow the square root of the weight, as in the figures: most are small.
function palette() {
  const style = getComputedStyle(document.documentElement);
  const stops = ["--low", "--middle", "--high"].map(name => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map(start => parseInt(hex.slice(start, start + 2), 16));
  });
  return weight => {
    const place = 2 * Math.sqrt(Math.min(1, Math.max(0, weight)));
    const lower = Math.min(1, Math.floor(place));
    return stops[lower].map((value, i) =>
      Math.round(value + (place - lower) * (stops[lower + 1][i] - value)));
  };
}

function paint(canvas, rows, colours) {
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  rows.flat().forEach((weight, i) => image.data.set([...colours(weight), 255], 4 * i));
  context.putImageData(image, 0, 0);
}

function clampState() {
  const weights = data.kinds[state.kind].weights;
  state.layer = Math.min(weights.length - 1, Math.max(0, state.layer));
  state.head = Math.min(weights[0].length - 1, Math.max(0, state.head));
}

function drawHeads(colours) {
  const kind = data.kinds[state.kind];
  clampState();
  const table = byId("heads");
  table.replaceChildren();
  const thumb = Math.max(24, Math.min(46, Math.floor(288 / kind.weights[0].length)));
  table.style.setProperty("--thumb", thumb + "px");
  const top = add(table, "tr");
  add(top, "th", "head");
  kind.weights[0].forEach((_, head) =>
    add(top, "th", head + 1, {scope: "col", "aria-label": `head ${head + 1}`}));
  kind.weights.forEach((heads, layer) => {
    const row = add(table, "tr");
    add(row, "th", `layer ${layer + 1}`, {scope: "row"});
    heads.forEach((weights, head) => {
      const name = `layer ${layer + 1}, head ${head + 1}`;
      const pressed = String(layer === state.layer && head === state.head);
      const button = add(add(row, "td"), "button", undefined,
        {type: "button", title: name, "aria-label": name, "aria-pressed": pressed});
      button.dataset.place = `${layer},${head}`;
      paint(add(button, "canvas"), weights, colours);
      button.onclick = () => choose(layer, head);
    });
  });
}

function choose(layer, head) {
  Object.assign(state, {layer, head});
  clampState();
  for (const button of byId("heads").querySelectorAll("button")) {
    const chosen = button.dataset.place === `${state.layer},${state.head}`;
    button.setAttribute("aria-pressed", String(chosen));
    if (chosen) button.focus();
  }
  drawMap(palette());
}

function drawMap(colours) {
  const kind = data.kinds[state.kind];
  const weights = kind.weights[state.layer][state.head];
  const longer = Math.max(kind.rows.length, kind.columns.length);
  const size = Math.max(16, Math.min(34, Math.floor(620 / longer)));
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "600 13px " + getComputedStyle(document.body).fontFamily;
  const width = tokens =>
    Math.ceil(Math.max(...tokens.map(token => ruler.measureText(shorten(token)).width)));
  const left = width(kind.rows) + 36, top = width(kind.columns) + 34;
  const right = left + size * kind.columns.length, bottom = top + size * kind.rows.length;

  byId("chosen").textContent = `${kind.title}, layer ${state.layer + 1}, head ${state.head + 1}`;
  byId("reading").textContent = HINT;
  byId("map").replaceChildren();
  const svg = add(byId("map"), "svg", undefined, {width: right + 12, height: bottom + 12,
    role: "img", "aria-label": byId("chosen").textContent});
  add(svg, "text", kind.columnTitle, {x: left, y: 14, class: "faint"});
  add(svg, "text", kind.rowTitle, {x: 0, y: 0, class: "faint", "text-anchor": "end",
    transform: `translate(14 ${top}) rotate(-90)`});
  const columns = kind.columns.map((token, i) => add(svg, "text", shorten(token),
    {transform: `translate(${left + size * (i + .5) + 4} ${top - 6}) rotate(-90)`}));
  const rows = kind.rows.map((token, i) => add(svg, "text", shorten(token),
    {x: left - 7, y: top + size * (i + .5) + 4, "text-anchor": "end"}));
  const cells = add(svg, "g");
  weights.forEach((row, i) => row.forEach((weight, j) => {
    const cell = add(cells, "rect", undefined, {x: left + size * j, y: top + size * i,
      width: size - 1, height: size - 1, rx: 2, fill: `rgb(${colours(weight).join(" ")})`});
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
    reading.append(` (${i + 1}) attends to `);
    add(reading, "b", kind.columns[j]);
    reading.append(` (${j + 1}) with weight `);
    add(reading, "b", weights[i][j].toFixed(4));
  });
  svg.addEventListener("pointerleave", () => {
    mark(-1, -1);
    byId("reading").textContent = HINT;
  });
}

function draw() {
  const colours = palette();
  drawHeads(colours);
  drawMap(colours);
  const ramp = Array.from({length: 180}, (_, i) => (i / 179) ** 2);
  paint(byId("scale").querySelector("canvas"), [ramp], colours);
}

document.title = byId("title").textContent = data.title;
const cross = data.kinds[data.kinds.length - 1];
for (const [name, tokens] of [["Source", cross.columns], ["Target", cross.rows]]) {
  const line = add(byId("sentences"), "span");
  add(line, "b", name);
  line.append(tokens.join(" "));
}
addChoices(byId("kinds"), data.kinds.map(kind => kind.title), state.kind, kind => {
  state.kind = kind;
  draw();
});
document.addEventListener("keydown", event => {
  const moves = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  const move = moves[event.key];
  if (!move || event.altKey || event.ctrlKey || event.metaKey) return;
  if (!byId("heads").contains(document.activeElement)) return;
  event.preventDefault();
  choose(state.layer + move[0], state.head + move[1]);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
