// The page's state, and what happens when: typing, requests and their refusals, languages.
import {ask, fail, notify, settle, stream, tellDelay} from "./api.js";
import {best, closeOthers, composed, drawOutput, focusWord, initOutput, markSource,
  sentenceAtCaret} from "./output.js";

const PAUSE = 250, MOST_BEST = 9;
// Kept: languages for the next visit, the text for a reload of this tab.
const LANGUAGES = ["localStorage", "jaxformer.languages"];
const TEXT = ["sessionStorage", "jaxformer.text"];
const source = byId("source"), target = byId("target"), text = byId("text");
const output = byId("output"), result = byId("result"), trail = byId("trail");
const nothing = () => ({
  text: "", sentences: [], gaps: [""], request: null, answer: null, current: 0,
  trail: [],  // choices of words and candidates: {source, from, to, after}
  undone: [],  // those that were undone, the next to redo last
});
export const state = {models: [], limits: {}, ...nothing()};
let timer, controller = new AbortController(), panels;
let failed;  // the notice of a choice that failed

const grouped = number => number.toLocaleString("en");
export const languages = () => ({source: source.value, target: target.value});
const model = (from = source.value, to = target.value) =>
  state.models.find(each => each.source === from && each.target === to);

const searchOptions = () =>
  ({...languages(), n_best: Math.min(MOST_BEST, model().beam_size), alignment: true});

function say(message) { byId("status").textContent = message; }

function count() {
  const {characters} = state.limits, used = Array.from(text.value).length;
  const over = characters > 0 && Math.max(0, used - characters);
  byId("count").textContent = !used ? ""
    : `${grouped(used)}${characters ? ` of ${grouped(characters)}` : ""} characters`;
  text.setAttribute("aria-invalid", over > 0);
  byId("clear").hidden = byId("link").hidden = !used;
  byId("hint").hidden = used > 0;
  keep(TEXT, text.value);
  return over;
}

function showDetails() {
  byId("details").hidden = byId("copy").hidden = !state.sentences.length;
  if (!state.sentences.length) return;
  panels ??= import("./panels.js");
  panels.then(({show}) => show());
}

// Draw everything, or one sentence of an answer that still comes.
function draw(one) {
  drawOutput(one);
  byId("legend").hidden = !state.sentences.some(each => each.hypotheses);
  trail.replaceChildren();
  trail.hidden = !state.trail.length;
  add(trail, "span", "Your choices", {class: "quiet"});
  state.trail.forEach(({from, to}, place) => {
    const button = add(trail, "button", "", {"aria-label": `Undo ${from} to ${to}`});
    if (state.trail[place + 1]) button.title = "Undoes the choices after it as well";
    add(button, "s", from);
    button.append(` ${to} ↶`);
    button.onclick = () => undo(place);
  });
  if (one === undefined || one === state.current) showDetails();
}

export function setCurrent(number) {
  if (number === state.current || !state.sentences[number]) return;
  output.querySelector(".current")?.classList.remove("current");
  output.children[number].classList.add("current");
  state.current = number;
  showDetails();
}

const lastChoice = source => state.trail.findLast(each => each.source === source);

// Let a sentence show what was chosen last, or else its answer.
const applyChoice = sentence => Object.assign(sentence, {chosen: 0, prefix: "",
  hypotheses: sentence.answer?.hypotheses, ...lastChoice(sentence.source)?.after});

// Show all choices, and forget what failed before.
function applyChoices() {
  if (failed?.isConnected) settle();
  state.sentences.forEach(applyChoice);
  draw();
}

function addChoice(source, from, to, after) {
  const choice = {source, from, to, after};
  state.undone = [];
  state.trail.push(choice);
  applyChoices();
  return choice;
}

export function pick(rank) {
  const {source, hypotheses = [], chosen, prefix} = state.sentences[state.current] ?? {};
  const number = rank + 1;
  if (!hypotheses[rank]) return say(`There is no candidate ${number}.`);
  if (rank !== chosen) {
    addChoice(source, `candidate ${chosen + 1}`, number, {hypotheses, chosen: rank, prefix});
  }
  say(`Candidate ${number} of ${hypotheses.length} taken.`);
}

// Take a word: show the completion that came with it, and search again from there.
export async function choose(source, from, word, prefix, completion) {
  const choice = addChoice(source, from, word, {chosen: 0, prefix,
    hypotheses: [{text: completion, score: 0, log_probability: null, finished: true}]});
  say("Searching on from there…");
  try {
    const answer = await ask("v1/translate",
      {text: source, prefix, split_sentences: false, ...searchOptions()});
    choice.after.hypotheses = answer.translations[0].sentences[0].hypotheses;
    if (lastChoice(source) !== choice) return;
    applyChoices();
    say(`“${word}” taken, the rest translated again in `
      + `${milliseconds(answer.seconds)}.`);
  } catch (error) {
    const others = each => each !== choice, newest = lastChoice(source) === choice;
    state.undone = state.undone.filter(others);
    if (!newest) return;
    state.trail = state.trail.filter(others);
    applyChoices();
    say("");
    failed = fail(error, () => choose(source, from, word, prefix, completion));
  }
}

// Undo the choices from this one on.
function undo(place) {
  if (place < 0) return say("Nothing to undo.");
  const focused = trail.contains(document.activeElement);
  state.undone.push(...state.trail.splice(place).reverse());
  applyChoices();
  say("Undone.");
  if (focused) state.trail[0] ? trail.lastChild.focus() : focusWord();
}

function redo() {
  if (!state.undone[0]) return say("Nothing to redo.");
  state.trail.push(state.undone.pop());
  applyChoices();
  say("Redone.");
}

const milliseconds = seconds =>
  seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;

async function translate(alignment = true) {
  clearTimeout(timer);
  controller.abort();
  const mine = controller = new AbortController();  // of the newest: older answers are late
  const given = text.value, over = count();
  settle();
  closeOthers();
  result.classList.remove("waiting", "old");
  if (over || !given.trim()) say("");
  if (!given.trim()) {
    Object.assign(state, nothing());
    return draw();
  }
  if (!model()) return;
  result.classList.add("old");
  if (over) {
    return notify(`The text is ${grouped(over)} characters too long. `
      + `Shorten it to at most ${grouped(state.limits.characters)}.`);
  }
  const answered = tellDelay(how => {
    if (mine !== controller) return;
    result.classList.add("waiting");
    say(`Translating${how}`);
  });
  try {
    const body = {text: given, ...searchOptions(), alignment};
    for await (const {event, data} of stream("v1/translate/stream", body, mine.signal)) {
      if (mine !== controller) return;
      receive(event, data, body);
    }
  } catch (error) {
    if (mine !== controller) return;
    if (alignment && error.field === "alignment") return translate(false);
    say("");
    fail(error, translate);
  } finally {
    answered();
    if (mine === controller) result.classList.remove("waiting");
  }
}

let next = null;  // {text, sentences, gaps, request} of the answer that begins

function begin(spans, request) {
  const given = request.text;
  const places = [0];  // the server counts code points, as Python does
  for (const sign of given) places.push(places.at(-1) + sign.length);
  const sentences = spans.map((span, index) => {
    const [start, stop] = span.map(end => places[end]), of = given.slice(start, stop);
    // What is shown until the answer comes: of this sentence, or of the one it was.
    const {answer} = state.sentences.find(each => each.source === of) ?? {};
    const before = state.sentences[index]?.hypotheses;
    return applyChoice({source: of, start, stop, answer, before});
  });
  const ends = [0, ...sentences.map(each => each.stop)];
  const gaps = ends.map((end, index) => given.slice(end, sentences[index]?.start));
  next = {text: given, sentences, gaps, request, answer: null};
}

// Show the answer that begins in place of the last one.
function turnOver() {
  if (state.sentences === next.sentences) return false;
  const grows = state.sentences.length > 0;
  const stays = choice => next.sentences.some(each => each.source === choice.source);
  Object.assign(state, next,
    {trail: state.trail.filter(stays), undone: state.undone.filter(stays)});
  state.current = grows ? sentenceAtCaret() : 0;
  result.classList.remove("old");
  return true;
}

function receive(event, data, request) {
  if (event === "start") begin(data.source_spans, request);
  else if (event === "sentence") {
    const {index, ...answer} = data;
    applyChoice(Object.assign(next.sentences[index], {answer}));
    draw(turnOver() ? undefined : index);
  } else if (event === "done") finish(data);
}

function finish({text: whole, alternatives, unmet, ...facts}) {
  const begun = turnOver();
  // The white space of the whole translation, which languages may join otherwise.
  const gaps = [];
  let end = 0;
  for (const {answer} of state.sentences) {
    const translation = answer?.hypotheses[0]?.text ?? "";
    const begins = whole.indexOf(translation, end);
    if (begins < 0) break;
    gaps.push(whole.slice(end, begins));
    end = begins + translation.length;
  }
  gaps.push(whole.slice(end));
  const moved = gaps.length > state.sentences.length && String(gaps) !== String(state.gaps);
  if (moved) state.gaps = gaps;
  const sentences = state.sentences.map(each => each.answer);
  state.answer = {translations: [{text: whole, sentences, alternatives, unmet}], ...facts};
  if (begun || moved) draw();
  else {
    markSource();  // only now are all tokens known
    showDetails();
  }
  const shown = state.sentences.map(best).filter(Boolean);
  const tokens = shown.flatMap(each => each.tokens ?? []).length;
  const open = shown.filter(each => each.text && !each.finished).length;
  say(`${shown.length} sentence${shown.length === 1 ? "" : "s"}, ${tokens} tokens in `
    + `${milliseconds(facts.seconds)}, of which ${milliseconds(facts.queue_seconds)} in the queue.`
    + (open ? ` ${open} unfinished.` : "")
    + (state.request.alignment ? "" : " A sentence is too long to link its words."));
}

// Copy, where the browser forbids it by a selection, and say so on the button.
export async function copy(what, button) {
  button.dataset.name ??= button.textContent;
  try {
    await navigator.clipboard.writeText(what);
  } catch {
    const area = add(document.body, "textarea", what);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  say("Copied.");
  setTimeout(() => { button.textContent = button.dataset.name; }, 1500);
}

function fill(select, pairs, chosen) {
  select.replaceChildren();
  for (const [value, name] of new Map(pairs)) {
    add(select, "option", name, {value}).selected = value === chosen;  // else the first is
  }
}

// Show the languages and the model.
function setLanguages(from, to) {
  fill(source, state.models.map(each => [each.source, each.source_name]), from);
  fill(target, state.models.filter(each => each.source === source.value)
    .map(each => [each.target, each.target_name]), to);
  text.lang = source.value;
  output.lang = target.value;
  byId("swap").disabled = !model(target.value, source.value);
  const {name, checkpoint, parameters, beam_size: beam} = model() ?? {};
  byId("model").textContent = name ? `${name}, checkpoint ${checkpoint}, `
    + `${(parameters / 1e6).toFixed(1)} million parameters, beam ${beam}` : "";
}

// Keep something, if given, and return what is kept.
function keep([storage, name], value) {
  try {
    if (value !== undefined) window[storage].setItem(name, value);
    return window[storage].getItem(name) ?? "";
  } catch {
    return "";  // this browser stores nothing, or has no room
  }
}

function changeLanguages(from, to) {
  setLanguages(from, to);
  keep(LANGUAGES, `${source.value}/${target.value}`);
  history.replaceState(null, "", location.href.split("#")[0]);  // it has other languages
  Object.assign(state, nothing());
  translate();
}

function swap() {
  if (byId("swap").disabled) return say("This server does not translate the other way.");
  if (state.sentences.length) text.value = composed();
  changeLanguages(target.value, source.value);
}

// Take languages and text after the #, else those kept; a text stays unless one is opened.
function readAddress(opened) {
  const [from, to, ...rest] = location.hash.slice(1).split("/");
  if (rest.length && (opened || !text.value)) {
    try {
      text.value = decodeURIComponent(rest.join("/"));
    } catch { /* No text that was written by this page. */ }
  }
  setLanguages(...(to ? [from, to] : keep(LANGUAGES).split("/")));
  if (text.value) translate();
}

async function start() {
  try {
    const {key_required: needsKey, ...facts} = await ask("v1/models");
    Object.assign(state, facts);
    byId("key-field").hidden = !needsKey;
    if (needsKey && !text.value) byId("key").focus();
    settle();
    count();
    readAddress();
  } catch (error) {
    fail(error, start);
  }
}

function listen() {
  text.oninput = () => {
    clearTimeout(timer);
    count();
    markSource();
    timer = setTimeout(translate, PAUSE);
  };
  source.onchange = target.onchange = () => changeLanguages(source.value, target.value);
  byId("swap").onclick = swap;
  byId("key").onchange = () => translate();
  byId("clear").onclick = () => {
    text.select();
    document.execCommand("delete");
    translate();
  };
  byId("copy").onclick = event => copy(composed(), event.currentTarget);
  byId("link").onclick = event => copy(location.href.split("#")[0]
    + `#${source.value}/${target.value}/${encodeURIComponent(text.value)}`, event.currentTarget);
  const help = byId("help"), showHelp = byId("open-help").onclick = () => {
    const before = document.activeElement;
    help.showModal();
    help.onclose = () => { if (!before.checkVisibility()) focusWord(); };  // drawn again
  };
  addEventListener("hashchange", readAddress);
  addEventListener("keydown", event => {
    const {key, code, ctrlKey, metaKey, altKey, shiftKey} = event, main = ctrlKey || metaKey;
    // What is written on the key, or, where that is not Latin, its place.
    const letter = /^[a-z]$/i.test(key) ? key.toUpperCase() : code.at(-1);
    const here = document.activeElement, typing = here.matches("textarea, input, select");
    let action;
    if (help.open || event.defaultPrevented) return;
    if (main && key === "Enter") action = translate;
    else if (main && shiftKey && letter === "S") action = swap;
    else if (main && !typing && (letter === "Z" || letter === "Y")) {  // else browsers do
      action = shiftKey || letter === "Y" ? redo : () => undo(state.trail.length - 1);
    } else if (altKey && !main && /^Digit[1-9]$/.test(code)) action = () => pick(code.at(-1) - 1);
    else if (key === "?" && !typing) action = showHelp;
    else if (key === "Escape" && !typing) action = () => text.focus();
    else if (key === "Escape" && here === text && !event.isComposing) {
      document.dispatchEvent(new Event("selectionchange"));  // its word may be new
      action = focusWord;
    }
    if (!action) return;
    event.preventDefault();
    action();
  });
}

initOutput();
listen();
if (performance.getEntriesByType("navigation")[0].type !== "navigate") text.value = keep(TEXT);
start();
