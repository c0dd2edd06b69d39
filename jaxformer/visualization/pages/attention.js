document.title = byId("title").textContent = data.title;
const cross = data.kinds[data.kinds.length - 1];
for (const [name, tokens] of [["Source", cross.columns], ["Target", cross.rows]]) {
  const line = add(byId("sentences"), "span");
  add(line, "b", name);
  line.append(tokens.join(" "));
}
if (data.steps.length) showSteps(byId("animation"), data.steps);
showAttention(byId("attention"), data.kinds, {});

// The animation: columns of states between the tokens, and the threads of each step. A
// step is [text, states, threads, words], a state [x, y].
function showSteps(root, steps) {
  const tones = {encoder: "--c0", decoder: "--c2", cross: "--c1"};
  const controls = add(root, "div", undefined, {class: "choices"});
  const [back, play, next] = ["Back", "Play", "Next"].map(name =>
    add(controls, "button", name, {type: "button"}));
  const slider = add(controls, "input", undefined,
    {type: "range", min: 0, max: steps.length - 1, value: 0, "aria-label": "Step"});
  const text = add(root, "p", undefined, {id: "step"});
  const legend = add(root, "p", undefined, {class: "legend quiet"});
  for (const kind of data.kinds) {
    add(legend, "span", kind.title).style.setProperty("--tone", `var(${tones[kind.name]})`);
  }
  const box = add(root, "div", undefined, {class: "threads"});
  const [source, target] = [cross.columns, cross.rows].map((tokens, side) => {
    const list = add(box, "div", undefined, {class: "tokens side" + side});
    return tokens.map(token => add(list, "span", token, {title: token}));
  });
  const [last] = steps[steps.length - 1][1].at(-1);
  const rows = Math.max(source.length, target.length + .5);
  const svg = add(box, "svg", undefined, {"aria-hidden": "true", preserveAspectRatio: "none",
    viewBox: `-.5 -.5 ${last + 1} ${rows}`});
  svg.style.height = `${26 * rows}px`;
  const threads = add(svg, "g");
  const dots = steps.flatMap(([, states], number) => states.map(([x, y]) =>
    // A line without a length has the shape of its ends: a circle at every width.
    ({number, dot: add(svg, "line", undefined, {class: "state", x1: x, x2: x, y1: y, y2: y})})));

  function show(number) {
    const [words, , lines, known] = steps[number];
    slider.value = number;
    text.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    threads.replaceChildren();
    for (const [kind, [x1, y1], [x2, y2], weight] of lines) {
      const line = add(threads, "line", undefined, {x1, y1, x2, y2});
      line.style.stroke = `var(${tones[kind]})`;
      line.style.strokeOpacity = Math.sqrt(weight);
    }
    for (const each of dots) {
      each.dot.classList.toggle("known", each.number <= number);
      each.dot.classList.toggle("now", each.number === number);
    }
    target.forEach((token, i) => {
      token.classList.toggle("unknown", i >= known);
      token.classList.toggle("marked", i === known - 1);
    });
  }

  let timer;
  function stop() {
    clearInterval(timer);
    timer = undefined;
    play.textContent = "Play";
    text.setAttribute("aria-live", "polite");
  }
  function move(number) {
    stop();
    show(Math.max(0, Math.min(steps.length - 1, number)));
  }
  back.onclick = () => move(Number(slider.value) - 1);
  next.onclick = () => move(Number(slider.value) + 1);
  slider.oninput = () => move(Number(slider.value));
  play.onclick = () => {
    if (timer) return stop();
    if (Number(slider.value) === steps.length - 1) show(0);
    play.textContent = "Pause";
    text.setAttribute("aria-live", "off");  // a step a second would be too much to hear
    timer = setInterval(() => {
      show(Number(slider.value) + 1);
      if (Number(slider.value) === steps.length - 1) stop();
    }, 700);
  };
  move(0);
}
