// The explorer of attention: kinds, layers and heads to choose, threads between two
// columns of tokens with a colour for each head, and the matrix of weights.
"use strict";

const LONGEST = 18;  // characters of a label of the matrix
const FAINTEST = 0.03;  // thinner threads are not drawn
const MOVES = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
  Home: [0, -Infinity], End: [0, Infinity]};
let redraw = () => {};
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());

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

function headColour(head, heads) {
  return `oklch(var(--thread) ${Math.round(35 + 360 * head / heads)})`;
}

function mean(maps) {
  return maps[0].map((row, i) =>
    row.map((_, j) => maps.reduce((sum, map) => sum + map[i][j], 0) / maps.length));
}

// Fill `root` with the explorer. A kind is {title, rows, columns, rowTitle, columnTitle,
// weights: [layer][head][row][column]}. `state` keeps what is chosen for the next call.
function showAttention(root, kinds, state) {
  Object.assign(state, {kind: kinds.length - 1, layer: Infinity, view: "threads",
    heads: null, mean: false, ...state});
  root.replaceChildren();
  const choices = add(root, "div", undefined,
    {id: "kinds", class: "choices", role: "group", "aria-label": "Kind of attention"});
  const maps = add(root, "div", undefined, {class: "maps"});
  const left = add(maps, "section", undefined, {"aria-label": "Layers and heads"});
  const table = add(left, "table", undefined, {id: "heads"});
  add(left, "p", "Choose a head, or a layer; the arrow keys move.", {class: "quiet"});
  const scale = add(left, "div", undefined, {id: "scale", class: "quiet"});
  add(scale, "span", "0");
  const ramp = add(scale, "canvas");
  add(scale, "span", "1");
  add(scale, "span", "weight, square-root scale");
  const right = add(maps, "section", undefined, {"aria-label": "Attention map"});
  const chosen = add(right, "p", undefined, {id: "chosen"});
  const views = add(right, "div", undefined,
    {class: "choices", role: "group", "aria-label": "View"});
  const chips = add(right, "div", undefined,
    {id: "chips", role: "group", "aria-label": "Heads to show"});
  const reading = add(right, "p", undefined,
    {id: "reading", class: "quiet", "aria-live": "polite"});
  const map = add(right, "div", undefined, {id: "map"});

  const kind = () => kinds[state.kind];
  const layer = () => kind().weights[state.layer];
  const shown = () => state.heads ?? layer().map((_, head) => head);

  // Keep what is chosen within the kind that is shown.
  function clamp() {
    state.kind = Math.min(kinds.length - 1, state.kind);
    state.layer = Math.max(0, Math.min(kind().weights.length - 1, state.layer));
    const heads = layer().length;
    state.heads = state.heads?.filter(head => head < heads) ?? null;
    if (state.heads && [0, heads].includes(state.heads.length)) state.heads = null;
  }

  function describe() {
    const names = shown().map(head => head + 1);
    const many = layer().length > 1 && names.length > 1;
    const heads = !many ? `head ${names[0]}`
      : state.heads ? `heads ${names.join(", ")}` : "all heads";
    const averaged = many && (state.mean || state.view === "matrix");
    return `${kind().title}, layer ${state.layer + 1}, ${averaged ? "mean of " : ""}${heads}`;
  }

  function drawHeads(colours) {
    table.replaceChildren();
    const weights = kind().weights, count = weights[0].length;
    const thumb = Math.max(20, Math.min(46, Math.floor(288 / (count + 1))));
    table.style.setProperty("--thumb", thumb + "px");
    table.style.setProperty("--columns", count + 1);
    const top = add(table, "tr");
    add(top, "th", "head");
    weights[0].forEach((_, head) =>
      add(top, "th", head + 1, {scope: "col", "aria-label": `head ${head + 1}`}));
    if (count > 1) add(top, "th", "mean", {scope: "col"});
    weights.forEach((heads, number) => {
      const row = add(table, "tr"), name = `layer ${number + 1}`;
      const all = add(add(row, "th", undefined, {scope: "row"}), "button", name,
        {type: "button", title: `${name}, all heads`});
      all.dataset.place = `${number},-1`;
      all.onclick = () => choose(number, -1);
      const columns = count > 1 ? [...heads, mean(heads)] : heads;
      columns.forEach((map, head) => {
        const title = head < count ? `${name}, head ${head + 1}` : `${name}, mean of heads`;
        const button = add(add(row, "td"), "button", undefined,
          {type: "button", title, "aria-label": title});
        button.dataset.place = `${number},${head}`;
        paint(add(button, "canvas"), map, colours);
        button.onclick = () => choose(number, head);
      });
    });
  }

  // Mark the chosen head in the table; it is where the Tab key enters.
  function markHead() {
    const count = layer().length;
    const head = state.mean ? count : state.heads?.length === 1 ? state.heads[0]
      : count === 1 ? 0 : -1;
    for (const button of table.querySelectorAll("button")) {
      const here = button.dataset.place === `${state.layer},${head}`;
      button.setAttribute("aria-pressed", String(here));
      button.tabIndex = here ? 0 : -1;
    }
  }

  function choose(layerNumber, head) {
    const weights = kind().weights, count = weights[0].length;
    state.layer = Math.max(0, Math.min(weights.length - 1, layerNumber));
    const column = Math.max(-1, Math.min(count > 1 ? count : 0, head));
    state.mean = count > 1 && column === count;
    state.heads = column < 0 || column === count ? null : [column];
    drawMap();
    table.querySelector("[aria-pressed=true]").focus();
  }

  function drawChips() {
    chips.replaceChildren();
    const count = layer().length;
    if (count < 2) return;
    layer().forEach((_, head) => {
      const on = !state.mean && shown().includes(head);
      const chip = add(chips, "button", head + 1,
        {type: "button", "aria-pressed": String(on), "aria-label": `head ${head + 1}`});
      chip.style.setProperty("--head", headColour(head, count));
      chip.onclick = () => {
        const old = state.mean ? [] : shown();
        const next = old.includes(head) ? old.filter(other => other !== head)
          : [...old, head].sort((a, b) => a - b);
        state.mean = false;
        state.heads = next.length ? next : null;
        drawMap();
        chips.children[head].focus();
      };
    });
  }

  function drawMap() {
    clamp();
    markHead();
    drawChips();
    chosen.textContent = describe();
    map.replaceChildren();
    const all = shown(), count = layer().length;
    if (state.view === "matrix") {
      drawMatrix(map, reading, kind(), mean(all.map(head => layer()[head])), describe());
      return;
    }
    const lines = state.mean ? [{weights: mean(layer()), colour: "var(--text)"}]
      : all.map(head => ({weights: layer()[head], colour: headColour(head, count)}));
    drawThreads(map, reading, kind(), lines);
  }

  function draw() {
    clamp();
    const colours = palette();
    drawHeads(colours);
    paint(ramp, [Array.from({length: 180}, (_, i) => (i / 179) ** 2)], colours);
    drawMap();
  }

  table.onkeydown = event => {
    const move = MOVES[plainKey(event)];
    if (!move) return;
    event.preventDefault();
    const [row, column] = document.activeElement.dataset.place.split(",").map(Number);
    choose(row + move[0], column + move[1]);
  };
  clamp();
  addChoices(choices, kinds.map(each => each.title), state.kind, number => {
    state.kind = number;
    draw();
  });
  addChoices(views, ["Threads", "Matrix"], Number(state.view === "matrix"), number => {
    state.view = number ? "matrix" : "threads";
    drawMap();
  });
  redraw = draw;
  draw();
}

// Tokens on both sides, and a thread for each weight: its opacity is the weight.
function drawThreads(parent, reading, kind, lines) {
  const hint = "Point at a token, or move to it, to see only its threads.";
  reading.textContent = hint;
  const longer = Math.max(kind.rows.length, kind.columns.length);
  const box = add(parent, "div", undefined, {class: "threads"});
  const sides = [kind.rows, kind.columns].map((tokens, side) => {
    const title = side ? kind.columnTitle : kind.rowTitle;
    add(box, "span", title, {class: "quiet side" + side});
    const list = add(box, "div", undefined,
      {class: "tokens side" + side, role: "group", "aria-label": title});
    return tokens.map((token, place) =>
      add(list, "button", token, {type: "button", title: token, tabindex: place ? -1 : 0}));
  });
  const svg = add(box, "svg", undefined, {viewBox: `0 0 100 ${longer}`,
    preserveAspectRatio: "none", "aria-hidden": "true"});
  const threads = [];
  lines.forEach(({weights, colour}, number) => weights.forEach((row, i) =>
    row.forEach((weight, j) => {
      if (weight < FAINTEST) return;
      const shift = lines.length > 1 ? .3 * (number / (lines.length - 1) - .5) : 0;
      const thread = add(svg, "line", undefined,
        {x1: 0, y1: i + .5 + shift, x2: 100, y2: j + .5 + shift});
      thread.style.stroke = colour;
      thread.style.strokeOpacity = Math.min(1, weight);
      threads.push({thread, places: [i, j]});
    })));

  // Show the threads of a token, and under the tokens at their ends the heads' weights.
  function point(side, place) {
    svg.classList.toggle("pointed", place >= 0);
    for (const {thread, places} of threads) {
      thread.classList.toggle("on", places[side] === place);
    }
    sides.forEach((tokens, number) => tokens.forEach((token, other) => {
      token.classList.toggle("marked", number === side && other === place);
      const weights = place < 0 || number === side ? [] : lines.map(line =>
        side ? line.weights[other][place] : line.weights[place][other]);
      token.style.backgroundImage = weights.length
        ? `linear-gradient(90deg, ${weights.map((weight, i) => {
            const percent = Math.round(100 * Math.sqrt(Math.min(1, weight)));
            const ends = `${100 * i / weights.length}% ${100 * (i + 1) / weights.length}%`;
            return `color-mix(in oklab, ${lines[i].colour} ${percent}%, transparent) ${ends}`;
          }).join(", ")})` : "";
    }));
    reading.textContent = hint;
    if (place < 0) return;
    const found = mean(lines.map(line => line.weights)), tokens = sides[1 - side];
    const weights = tokens.map((_, other) => side ? found[other][place] : found[place][other]);
    const best = weights.map((weight, other) => [weight, other])
      .sort((a, b) => b[0] - a[0]).slice(0, 3);
    reading.replaceChildren();
    add(reading, "b", sides[side][place].textContent);
    reading.append(side ? ` (${place + 1}) is read by ` : ` (${place + 1}) attends to `);
    best.forEach(([weight, other], i) => {
      if (i) reading.append(", ");
      add(reading, "b", tokens[other].textContent);
      reading.append(` (${other + 1}) ${weight.toFixed(3)}`);
    });
  }

  sides.forEach((tokens, side) => tokens.forEach((token, place) => {
    token.onpointerenter = token.onfocus = () => point(side, place);
    token.onkeydown = event => {
      const move = {ArrowUp: -1, ArrowDown: 1, Home: -tokens.length, End: tokens.length};
      const key = plainKey(event);
      let next;
      if (key in move) {
        next = tokens[Math.max(0, Math.min(tokens.length - 1, place + move[key]))];
      } else if (key === (side ? "ArrowLeft" : "ArrowRight")) {
        const other = sides[1 - side];
        next = other[Math.min(place, other.length - 1)];
      }
      if (!next) return;
      event.preventDefault();
      for (const each of next.parentNode.children) each.tabIndex = each === next ? 0 : -1;
      next.focus();
    };
  }));
  box.onpointerleave = box.onfocusout = event => {
    if (!box.contains(event.relatedTarget)) point(0, -1);
  };
}

function shorten(token) {
  const letters = Array.from(token);
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "\u2026" : token;
}

function drawMatrix(parent, reading, kind, weights, name) {
  const hint = "Point at a cell, or move with the arrow keys, to read its weight.";
  const colours = palette();
  const longer = Math.max(kind.rows.length, kind.columns.length);
  const size = Math.max(16, Math.min(34, Math.floor(620 / longer)));
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = "600 13px " + getComputedStyle(document.body).fontFamily;
  const width = tokens =>
    Math.ceil(Math.max(...tokens.map(token => ruler.measureText(shorten(token)).width)));
  const left = width(kind.rows) + 36, top = width(kind.columns) + 34;
  const right = left + size * kind.columns.length + 12;
  const bottom = top + size * kind.rows.length + 12;
  reading.textContent = hint;
  const svg = add(parent, "svg", undefined, {width: right, viewBox: `0 0 ${right} ${bottom}`,
    role: "img", "aria-label": name, tabindex: 0});
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
  let place = [-1, -1];

  function mark(i, j) {
    place = [i, j];
    rows.forEach((label, k) => label.classList.toggle("marked", k === i));
    columns.forEach((label, k) => label.classList.toggle("marked", k === j));
    frame.setAttribute("visibility", i < 0 ? "hidden" : "visible");
    frame.setAttribute("x", left + size * j - 1);
    frame.setAttribute("y", top + size * i - 1);
    reading.textContent = hint;
    if (i < 0) return;
    reading.replaceChildren();
    add(reading, "b", kind.rows[i]);
    reading.append(` (${i + 1}) attends to `);
    add(reading, "b", kind.columns[j]);
    reading.append(` (${j + 1}) with weight `);
    add(reading, "b", weights[i][j].toFixed(4));
  }
  cells.onpointerover = event => {
    const {row, column} = event.target.dataset;
    if (row !== undefined) mark(Number(row), Number(column));
  };
  svg.onkeydown = event => {
    const move = MOVES[plainKey(event)];
    if (!move) return;
    event.preventDefault();
    mark(Math.max(0, Math.min(rows.length - 1, place[0] + move[0])),
      Math.max(0, Math.min(columns.length - 1, place[1] + move[1])));
  };
  svg.onpointerleave = svg.onblur = () => mark(-1, -1);
}
