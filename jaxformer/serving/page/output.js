// The translation, word by word: probabilities, links to the source, other words.
import {ask, tellDelay} from "./api.js";
import {choose, languages, setCurrent, state} from "./serve.js";

const UNSPACED = /^(zh|ja|th|lo|km|my|yue|bo|dz)\b/i;  // of no spaces between words
const MOST_OTHERS = 8, PAUSE = 700;
const output = byId("output"), mirror = byId("mirror"), text = byId("text");
const others = byId("others"), note = byId("others-note"), list = byId("options");
// The open list: {element, sentence, span, word, controller, active, words}.
let open = null;
let typed = "", pause;  // letters in quick succession, and what ends them
let left;  // the caret from which one came to the word that Tab enters

export const best = sentence => sentence.hypotheses?.[sentence.chosen];
const sourceWords = sentence =>
  wordsOf(sentence.source, best(sentence)?.source_tokens ?? [], text.lang);
const targetWords = ({text: translation, tokens = []}) =>
  wordsOf(translation, tokens, output.lang);

// The number of the last sentence that begins before the caret.
export const sentenceAtCaret = () =>
  Math.max(0, state.sentences.findLastIndex(each => each.start <= text.selectionStart));

// The span of each token in the text; null where it has none, as the end of sentence.
function tokenSpans(text, tokens) {
  let place = 0;
  return tokens.map(token => {
    const surface = token.replace(/^##|@@$|<\/w>$/g, "").replace(/[\u2581\u0120]/g, " ").trim();
    const start = place + /^\s*/.exec(text.slice(place))[0].length;
    if (!surface || !text.startsWith(surface, start)) return null;
    place = start + surface.length;
    return [start, place];
  });
}

// The words of a text as [start, stop]: between white space, or the tokens of a language
// that has none.
function wordsOf(text, tokens, language) {
  const spans = UNSPACED.test(language) ? tokenSpans(text, tokens).filter(Boolean) : [];
  return spans.length ? spans
    : Array.from(text.matchAll(/\S+/g), found => [found.index, found.index + found[0].length]);
}

// For each token the number of its word, or -1.
const wordNumbers = (text, tokens, words) => tokenSpans(text, tokens).map(span =>
  span ? words.findIndex(([, stop]) => span[0] < stop) : -1);

// Pairs [source word, target word] that attention links: by the server's count of words,
// or by tokens where words are tokens.
function linksOf(sentence, hypothesis) {
  const parse = links => (links ?? "").split(" ").filter(Boolean)
    .map(link => link.split("-").map(Number));
  if (!UNSPACED.test(text.lang) && !UNSPACED.test(output.lang)) {
    return parse(hypothesis.word_alignment);
  }
  const {source_tokens: read = [], tokens = [], alignment} = hypothesis;
  const left = wordNumbers(sentence.source, read, sourceWords(sentence));
  const right = wordNumbers(hypothesis.text, tokens, targetWords(hypothesis));
  return parse(alignment).map(([i, j]) => [left[i], right[j]])
    .filter(([i, j]) => i >= 0 && j >= 0);
}

export function percent(probability) {
  const value = 100 * probability;
  return value >= 10 ? `${Math.round(value)} %`
    : value >= .1 ? `${value.toFixed(1)} %` : "< 0.1 %";
}

// A probability as a number, and a bar whose whole length is `most`.
export function addBar(parent, probability, most = 1) {
  const bar = add(parent, "span", "", {class: "bar"});
  add(bar, "span", percent(probability));
  add(bar, "i").style.width = `${Math.max(2, 100 * probability / most)}%`;
}

export function composed() {
  const {sentences, gaps} = state;
  return sentences.map((each, i) => gaps[i] + (best(each)?.text ?? "")).join("")
    + gaps[sentences.length];
}

// Write a text of a sentence with its words as elements, and return these.
function addWords(parent, of, words, sentence, attributes) {
  let end = 0;
  const elements = words.map(([start, stop], word) => {
    parent.append(of.slice(end, start));
    end = stop;
    return add(parent, "span", of.slice(start, stop),
      {"data-sentence": sentence, "data-word": word, ...attributes});
  });
  parent.append(of.slice(end));
  return elements;
}

// Draw the layer of marks under the text field: its words while the result is theirs.
export function markSource() {
  const given = text.value;
  mirror.replaceChildren();
  let end = 0;
  if (given === state.text) {
    state.sentences.forEach((sentence, index) => {
      mirror.append(given.slice(end, sentence.start));
      addWords(mirror, sentence.source, sourceWords(sentence), index);
      end = sentence.stop;
    });
  }
  // The last line break needs a sign after it to take up a line.
  mirror.append(given.slice(end) + "\u200b");
}

function addTranslation(parent, sentence, index) {
  const hypothesis = best(sentence), words = targetWords(hypothesis);
  const {tokens = [], token_log_probabilities: logarithms = []} = hypothesis;
  // The probability of each word, where known: that of its least probable token.
  const probabilities = [];
  wordNumbers(hypothesis.text, tokens, words).forEach((word, token) => {
    probabilities[word] = Math.min(probabilities[word] ?? 1, Math.exp(logarithms[token] ?? 0));
  });
  const links = linksOf(sentence, hypothesis), read = sourceWords(sentence);
  const attributes = {role: "button", tabindex: -1, "aria-haspopup": "listbox",
    "aria-expanded": false};
  addWords(parent, hypothesis.text, words, index, attributes).forEach((word, number) => {
    const probability = probabilities[number];
    if (probability < .8) {
      word.classList.add(probability < .2 ? "sure0" : probability < .5 ? "sure1" : "sure2");
      word.title = `probability ${percent(probability)}`;
    }
    const from = links.filter(link => link[1] === number)
      .map(([place]) => sentence.source.slice(...read[place]));
    const told = [from[0] && `from ${from.join(" ")}`, word.title].filter(Boolean);
    word.setAttribute("aria-description", told.join(", "));
  });
  if (hypothesis.finished) return;
  const [lost, title] = hypothesis.text || hypothesis.score !== null
    ? ["unfinished", "It reached the greatest length."]
    : ["nothing possible", "Nothing meets what was asked: undo a choice, or change the text."];
  add(parent, "span", lost, {class: "lost", title});
}

function drawSentence(element) {
  const index = Number(element.dataset.sentence), sentence = state.sentences[index];
  const shown = best(sentence);
  element.className = `sentence${index === state.current ? " current" : ""}`
    + (shown ? "" : " pending");
  element.replaceChildren();
  if (shown) addTranslation(element, sentence, index);
  else element.textContent = sentence.before?.[0]?.text ?? sentence.source;
}

// Draw the translation, or one sentence of it.
export function drawOutput(one) {
  if (open?.sentence === state.sentences[one] || one === undefined) closeOthers();
  const focused = output.contains(document.activeElement), before = wordToEnter()?.dataset;
  if (output.children[one]) drawSentence(output.children[one]);
  else {
    output.replaceChildren();
    state.sentences.forEach((_, index) => {
      output.append(state.gaps[index]);
      drawSentence(add(output, "span", "", {"data-sentence": index}));
    });
    output.append(state.gaps[state.sentences.length]);
  }
  const entry = before && (focused || left === placeOfCaret()) && find(before)
    || find({sentence: state.current, word: 0}) || output.querySelector("[role=button]");
  enterAt(entry);
  if (focused) (entry ?? text).focus();
  if (one === undefined) markSource();
}

function find({sentence, word}, parent = output) {
  return parent.querySelector(`[data-sentence="${sentence}"][data-word="${word}"]`);
}

function unlink() {
  document.querySelectorAll(".linked").forEach(each => each.classList.remove("linked"));
}

// Mark a word and those that attention links to it on the other side.
function link({sentence: index, word}, fromSource) {
  unlink();
  const sentence = state.sentences[index], hypothesis = sentence && best(sentence);
  if (!hypothesis || text.value !== state.text) return;
  const here = fromSource ? 0 : 1, there = 1 - here, sides = [mirror, output];
  const mark = (side, number) =>
    find({sentence: index, word: number}, sides[side])?.classList.add("linked");
  mark(here, word);
  for (const pair of linksOf(sentence, hypothesis)) {
    if (pair[here] === Number(word)) mark(there, pair[there]);
  }
}

// Scroll to a focused word and its source if both fit; a click would miss its word.
function reveal(word) {
  const from = mirror.querySelector(".linked"), top = each => each.getBoundingClientRect().top;
  if (from && word.matches(":focus-visible") && Math.abs(top(from) - top(word)) < innerHeight) {
    for (const each of [from, word]) each.scrollIntoView({block: "nearest"});
  }
}

const placeOfCaret = () => text.selectionStart + text.value;

const wordToEnter = () => output.querySelector("[tabindex='0']");
export const focusWord = () => wordToEnter()?.focus();

// Let the Tab key enter the translation at this word.
function enterAt(word) {
  if (!word) return;
  wordToEnter()?.setAttribute("tabindex", "-1");
  word.tabIndex = 0;
}

export function closeOthers(focus) {
  if (!open) return;
  const {element, controller} = open;
  open = null;
  controller.abort();
  element.setAttribute("aria-expanded", "false");
  focus ||= list === document.activeElement;
  others.hidden = true;
  if (focus) element.focus();
}

function place(element) {
  const box = others.parentElement.getBoundingClientRect(), word = element.getClientRects()[0];
  const width = others.offsetWidth, left = word.left - box.left - 8;
  others.style.left = `${Math.max(8, Math.min(box.width - width - 8, left))}px`;
  others.style.top = `${word.bottom - box.top + 6}px`;
}

async function openOthers(element) {
  if (open?.element === element) return closeOthers(true);
  closeOthers();
  const index = Number(element.dataset.sentence), sentence = state.sentences[index];
  if (!sentence) return;  // it is of the languages before
  const hypothesis = best(sentence);
  const span = targetWords(hypothesis)[element.dataset.word];
  const controller = new AbortController();
  const word = hypothesis.text.slice(...span);
  const mine = open = {element, sentence, span, word, controller, active: -1};
  element.setAttribute("aria-expanded", "true");
  setCurrent(index);
  const tell = how => { note.textContent = `Reading the model${how}`; };
  list.replaceChildren();
  others.hidden = false;
  tell("…");
  place(element);
  const answered = tellDelay(tell);
  try {
    const prefix = hypothesis.text.slice(0, span[0]).trimEnd();
    const body = {text: sentence.source, prefix, k: MOST_OTHERS, ...languages()};
    const {alternatives} = await ask("v1/alternatives", body, controller.signal);
    if (open !== mine) return;
    fillOthers(alternatives);
  } catch (error) {
    if (open === mine) note.textContent = error.message;
  } finally {
    answered();
  }
}

function fillOthers(alternatives) {
  const {word} = open;
  note.textContent = alternatives.length ? "" : "The model has no other word here.";
  open.words = alternatives;
  alternatives.forEach((each, number) => {
    const option = add(list, "div", "", {role: "option", id: `option-${number}`,
      lang: output.lang, "aria-selected": each.word === word});
    add(option, "b", each.word, {dir: "auto"});
    addBar(option, each.probability);
    add(option, "span", each.text.slice(prefixEnd(each)).trim(), {class: "rest"});
    option.onpointerenter = () => activate(number);
    option.onclick = () => take(number);
  });
  if (!alternatives.length) return;
  list.focus();
  activate(Math.max(0, alternatives.findIndex(each => each.word !== word)));
}

// Where the chosen word ends in its completion.
function prefixEnd({word, text: completion}) {
  const begin = completion.indexOf(word, open.span[0] - 1);
  return begin < 0 ? open.span[0] : begin + word.length;
}

function activate(number) {
  open.active = number;
  [...list.children].forEach((option, place) =>
    option.classList.toggle("active", place === number));
  list.setAttribute("aria-activedescendant", `option-${number}`);
  list.children[number].scrollIntoView({block: "nearest"});
}

// Move to the next word that begins with the letters that were typed.
function typeAhead(letter) {
  const {words, active} = open, first = active + !typed;
  clearTimeout(pause);
  pause = setTimeout(() => { typed = ""; }, PAUSE);
  typed += letter;
  const number = words.map((_, place) => (first + place) % words.length)
    .find(place => words[place].word.toLowerCase().startsWith(typed));
  if (number >= 0) activate(number);
}

function take(number) {
  const {sentence, word, words} = open, chosen = words[number];
  const prefix = chosen.text.slice(0, prefixEnd(chosen));
  closeOthers(true);
  if (chosen.word !== word) choose(sentence.source, word, chosen.word, prefix, chosen.text);
}

// Where a key moves from a place of `count`, in a circle; NaN for any other key.
export function moved(key, place, count, back = "ArrowLeft", forth = "ArrowRight") {
  const next = {[back]: place - 1, [forth]: place + 1, Home: 0, End: -1}[key];
  return (next + count) % count;
}

function moveAmong(element, key) {
  const words = [...output.querySelectorAll("[role=button]")];
  const keys = getComputedStyle(output).direction === "rtl" ? ["ArrowRight", "ArrowLeft"] : [];
  const next = words[moved(key, words.indexOf(element), words.length, ...keys)];
  next?.focus();
  return next;
}

export function initOutput() {
  const word = event => event.target.closest?.("#output [role=button]");
  output.onclick = event => { if (word(event)) openOthers(word(event)); };
  output.onpointerover = event => { if (word(event)) link(word(event).dataset); };
  output.onpointerout = unlink;
  output.addEventListener("focusin", event => {
    const element = word(event);
    if (!element) return;
    enterAt(element);
    left = placeOfCaret();
    setCurrent(Number(element.dataset.sentence));
    link(element.dataset);
    reveal(element);
  });
  output.addEventListener("focusout", unlink);
  output.onkeydown = event => {
    const element = word(event), key = plainKey(event);
    if (!element) return;
    if (/^(Enter| |ArrowDown)$/.test(key)) {
      if (!open) openOthers(element);
    } else if (open && key === "Escape") closeOthers(true);
    else if (!moveAmong(element, key)) return;
    event.preventDefault();
  };
  list.onkeydown = event => {
    const key = plainKey(event);
    const next = moved(key, open.active, list.children.length, "ArrowUp", "ArrowDown");
    if (next >= 0) activate(next);
    else if (key === "Enter" || key === " ") take(open.active);
    else if (key === "Escape" || key === "Tab") closeOthers();
    else if (/^[^?]$/u.test(key)) typeAhead(key.toLowerCase());
    else return;
    event.preventDefault();
  };
  addEventListener("focusout", ({relatedTarget: next}) => {
    if (open && next !== open.element && !others.contains(next)) closeOthers();
  });
  // The pointer is over the text field: the word is in the layer under it.
  const writing = byId("writing");
  writing.onpointerleave = unlink;
  writing.onpointermove = event => {
    const under = document.elementsFromPoint(event.clientX, event.clientY)
      .find(element => element.parentElement === mirror);
    link(under?.dataset ?? {}, true);
  };
  document.addEventListener("selectionchange", () => {
    if (document.activeElement !== text) return;
    unlink();
    if (text.value !== state.text) return;
    const index = sentenceAtCaret(), sentence = state.sentences[index];
    if (!sentence) return;
    setCurrent(index);
    const caret = text.selectionStart - sentence.start;
    const number = sourceWords(sentence).findIndex(([start, stop]) =>
      start <= caret && caret <= stop);
    if (number >= 0) link({sentence: index, word: number}, true);
    if (left === placeOfCaret()) return;
    left = placeOfCaret();
    enterAt(output.querySelector(".linked") ?? find({sentence: index, word: 0}));
  });
}
