// The tabs under the translation: candidates, attention, steps and the API.
import {ask, examples, Failure, OFFLINE} from "./api.js";
import {addBar, best, moved, percent} from "./output.js";
import {copy, languages, pick, state} from "./serve.js";

const TABS = ["Candidates", "Attention", "Steps", "API"];
const SHOWN_BEST = 8;  // tokens at each place of the steps
const view = {};  // what is chosen in the explorer of attention
let shown = "Candidates", asked = "", maps, controller, explorer, again;

// Load what only the attention tab needs, once.
function loadExplorer() {
  const load = (name, attributes) => new Promise((onload, onerror) =>
    Object.assign(add(document.head, name, "", attributes), {onload, onerror}));
  explorer ??= Promise.all([
    load("link", {rel: "stylesheet", href: "static/attention.css"}),
    load("script", {src: "static/threads.js"}),
  ]).catch(() => {
    explorer = undefined;
    throw new Failure(0, OFFLINE);
  });
  return explorer;
}

const quiet = (root, text, name = "p") => add(root, name, text, {class: "quiet"});

function say(root, text) {
  root.replaceChildren();
  quiet(root, text);
}

// Draw in a panel; if what had the focus goes with it, focus what is chosen there.
function redraw(root, draw, ...facts) {
  const focused = root.contains(document.activeElement);
  draw(root, ...facts);
  if (focused && !root.contains(document.activeElement)) {
    root.querySelector("[aria-pressed=true], [tabindex='0']")?.focus();
  }
}

// Split a text into [piece, differs] by the longest common subsequence with another.
function differences(text, other) {
  const pieces = text.split(/(\s+)/), words = pieces.filter((_, i) => i % 2 === 0);
  const others = other.split(/\s+/);
  // The places of the longest one of the words so far with each beginning of the other.
  let row = [...others, ""].map(() => []);
  words.forEach((word, place) => {
    const next = [[]];
    others.forEach((each, j) => next.push(word === each ? [...row[j], place]
      : next[j].length > row[j + 1].length ? next[j] : row[j + 1]));
    row = next;
  });
  const same = row.at(-1);
  return pieces.map((piece, i) => [piece, i % 2 === 0 && piece && !same.includes(i / 2)]);
}

function showCandidates(root, sentence) {
  root.replaceChildren();
  const most = Math.exp(Math.max(...sentence.hypotheses.map(each => each.log_probability)));
  const list = add(root, "ol");
  sentence.hypotheses.forEach((hypothesis, rank) => {
    const button = add(add(list, "li"), "button", "", {
      "aria-pressed": rank === sentence.chosen, "aria-keyshortcuts": `Alt+${rank + 1}`});
    add(button, "small", rank + 1);
    const text = add(button, "span", "", {lang: byId("output").lang, dir: "auto"});
    for (const [piece, differs] of differences(hypothesis.text, best(sentence).text)) {
      if (differs) add(text, "mark", piece);
      else text.append(piece);
    }
    const numbers = add(button, "small");
    if (hypothesis.log_probability !== null) {
      numbers.title = "The score ranks them; the probability is the model’s.";
      numbers.append(`score ${hypothesis.score.toFixed(3).replace("-", "\u2212")}`);
      addBar(numbers, Math.exp(hypothesis.log_probability), most);
    }
    button.onclick = () => pick(rank);
  });
}

// Draw with the maps of a sentence and the best tokens at each place of its translation,
// which are asked for once.
async function showMaps(root, draw, sentence) {
  if (!root.childElementCount) say(root, "Reading the model…");
  const body = {text: sentence.source, translation: best(sentence).text, k: SHOWN_BEST,
    ...languages()};
  const name = JSON.stringify(body);
  if (name !== asked) {
    controller?.abort();
    controller = new AbortController();
    asked = name;
    maps = ask("v1/attention", body, controller.signal);
  }
  const wanted = maps;
  try {
    const [answer] = await Promise.all([wanted, loadExplorer()]);
    if (wanted === maps) redraw(root, draw, answer, sentence);
  } catch (error) {
    if (wanted !== maps) return;
    asked = "";
    say(root, error.message);
    clearTimeout(again);
    if (error.wait) again = setTimeout(() => root.hidden || show(), 1000 * error.wait);
  }
}

function showExplorer(root, maps) {
  const {source_tokens: source, target_tokens: target, read_tokens: read} = maps;
  const kind = (title, rows, columns, rowTitle, columnTitle, weights) =>
    ({title, rows, columns, rowTitle, columnTitle, weights});
  const kinds = [
    kind("Encoder self-attention", source, source, "source", "attends to source", maps.encoder),
    kind("Decoder self-attention", target, read, "predicting", "attends to", maps.decoder),
    kind("Cross-attention", target, source, "predicting", "attends to source", maps.cross),
  ].filter(each => each.weights.length);
  if (kinds.length) showAttention(root, kinds, view);
  else say(root, "This model has no attention to show.");
}

function showSteps(root, maps, sentence) {
  say(root, "The most probable tokens at each place; framed: the one that was taken.");
  const list = add(root, "ol");
  const {tokens = [], token_log_probabilities: logarithms = []} = best(sentence);
  maps.target_tokens.forEach((token, place) => {
    const row = add(list, "li"), likely = [...maps.candidates[place] ?? []];
    quiet(row, place + 1, "span");
    add(row, "b", token);
    const tops = add(row, "span", "", {class: "tops"});
    if (tokens[place] === token && !likely.some(each => each.token === token)) {
      likely.push({token, probability: Math.exp(logarithms[place])});
    }
    for (const each of likely) {
      const chip = add(tops, "span", each.token + " ",
        {class: each.token === token ? "taken" : ""});
      chip.style.setProperty("--share", `${100 * each.probability}%`);
      add(chip, "small", percent(each.probability));
    }
  });
}

function addCode(root, title, text) {
  const id = add(root, "h2", title, {id: `code-${title}`}).id;
  const box = add(root, "div", "", {class: "code"});
  add(box, "pre", text, {tabindex: 0, role: "region", "aria-labelledby": id});
  const button = add(box, "button", "Copy", {"aria-describedby": id});
  button.onclick = () => copy(text, button);
}

function showApi(root, {request: {text, ...options}, answer, sentences, gaps, trail, limits}) {
  const url = new URL("v1/translate", document.baseURI).href;
  const tooMany = trail[0] && sentences[limits.texts];
  say(root, `This translation${tooMany ? ", without your choices," : ""} as a request`
    + " to the server’s own API.");
  let body = {text, ...options}, shown = 'answer["translations"][0]["text"]';
  if (trail[0] && !tooMany) {  // each sentence is a text that begins with its chosen words
    body = {texts: sentences.map(each => each.source),
      prefixes: sentences.map(each => each.prefix), split_sentences: false, ...options};
    shown = sentences.map(({chosen}, place) => JSON.stringify(gaps[place])
      + ` + answer["translations"][${place}]["sentences"][0]["hypotheses"][${chosen}]["text"]`)
      .join(" +\n  ");
    answer = null;  // it has no choices
  }
  const codes = examples(url, body, !byId("key-field").hidden, shown);
  for (const [title, text] of Object.entries(codes)) addCode(root, title, text);
  // Lists of numbers or text on a line each.
  const lines = JSON.stringify(answer, null, 2).replace(/\[[^[\]{}]*\]/g,
    list => list.replace(/\n\s*/g, " "));
  if (answer) addCode(root, "Answer", lines);
  const more = quiet(root, "All routes: ");
  add(more, "a", "openapi.json", {href: "openapi.json"});
  more.append(". Clients of LibreTranslate and DeepL work as well.");
}

// Show what the open tab says about the current sentence.
export function show() {
  const {sentences, current} = state, sentence = sentences[current], root = byId(shown);
  if (!sentence) return;
  byId("current").textContent = shown !== "API" && sentences[1] ? `Of: ${sentence.source}` : "";
  if (shown === "API") redraw(root, showApi, state);
  else if (!best(sentence)?.text) say(root, "No translation to show.");
  else if (shown === "Candidates") redraw(root, showCandidates, sentence);
  else showMaps(root, shown === "Steps" ? showSteps : showExplorer, sentence);
}

function open(name) {
  shown = name;
  for (const each of TABS) {
    const tab = byId(`tab-${each}`), here = each === name;
    tab.setAttribute("aria-selected", here);
    tab.tabIndex = here ? 0 : -1;
    byId(each).hidden = !here;
  }
  show();
}

TABS.forEach((name, place) => {
  const tab = add(document.querySelector("[role=tablist]"), "button", name,
    {role: "tab", id: `tab-${name}`, "aria-controls": name});
  add(byId("details"), "div", "",
    {role: "tabpanel", id: name, "aria-labelledby": tab.id, tabindex: name === "Steps" ? 0 : -1});
  tab.onclick = () => open(name);
  tab.onkeydown = event => {
    const other = TABS[moved(plainKey(event), place, TABS.length)];
    if (!other) return;
    event.preventDefault();
    open(other);
    byId(`tab-${other}`).focus();
  };
});
open(shown);
