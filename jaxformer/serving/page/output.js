// The translation, word by word: probabilities, links to the source, other words.
import {ask} from "./api.js";
import {choose, languages, setCurrent, state} from "./serve.js";

const UNSPACED = /^(zh|ja|th|lo|km|my|yue|bo|dz)\b/i;  // languages without spaces between words
const MOST_OTHERS = 8;
const output = byId("output"), mirror = byId("mirror"), text = byId("text");
const others = byId("others"), note = byId("others-note"), list = byId("options");
// The open list: {element, sentence, span, controller, active, whole, words}.
let open = null;

const best = sentence => sentence.hypotheses?.[sentence.chosen];
const sourceWords = sentence =>
  wordsOf(sentence.source, best(sentence)?.source_tokens ?? [], text.lang);
const targetWords = ({text: translation, tokens = []}) =>
  wordsOf(translation, tokens, output.lang);

// The number of the sentence that has the caret, or else of the last one.
export function sentenceAtCaret() {
  const {sentences} = state;
  const found = sentences.findIndex(each => text.selectionStart <= each.stop);
  return found < 0 ? sentences.length - 1 : found;
}

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

// For each token the number of its word, or null.
function wordNumbers(text, tokens, words) {
  return tokenSpans(text, tokens).map(span => {
    const number = span ? words.findIndex(([, stop]) => span[0] < stop) : -1;
    return number < 0 ? null : number;
  });
}

// The probability of each word: that of its least probable token; null where unknown.
function probabilitiesOf(hypothesis, words) {
  const found = words.map(() => null);
  wordNumbers(hypothesis.text, hypothesis.tokens ?? [], words).forEach((word, token) => {
    const logarithm = hypothesis.token_log_probabilities?.[token];
    if (word === null || logarithm === undefined || logarithm === null) return;
    found[word] = Math.min(found[word] ?? 1, Math.exp(logarithm));
  });
  return found;
}

// Pairs [source word, target word] that attention links: by the server's count of words,
// or by tokens where words are tokens.
function linksOf(sentence, hypothesis) {
  const parse = links => (links ?? "").split(" ").filter(Boolean)
    .map(link => link.split("-").map(Number));
  if (![text.lang, output.lang].some(language => UNSPACED.test(language))) {
    return parse(hypothesis.word_alignment);
  }
  const {source_tokens: read = [], tokens = [], alignment} = hypothesis;
  const left = wordNumbers(sentence.source, read, sourceWords(sentence));
  const right = wordNumbers(hypothesis.text, tokens, targetWords(hypothesis));
  return parse(alignment).map(([i, j]) => [left[i], right[j]])
    .filter(([i, j]) => i != null && j != null);
}

// Split a text into [piece, differs] by the longest common subsequence with another.
export function differences(text, other) {
  const pieces = text.split(/(\s+)/), words = pieces.filter((_, i) => i % 2 === 0);
  const others = other.split(/\s+/);
  const lengths = Array.from([...words, ""], () => new Array(others.length + 1).fill(0));
  for (let i = words.length - 1; i >= 0; i--) {
    for (let j = others.length - 1; j >= 0; j--) {
      lengths[i][j] = words[i] === others[j] ? lengths[i + 1][j + 1] + 1
        : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const same = new Set();
  for (let i = 0, j = 0; i < words.length && j < others.length;) {
    if (words[i] === others[j]) { same.add(i); i++; j++; }
    else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  return pieces.map((piece, i) => [piece, i % 2 === 0 && piece !== "" && !same.has(i / 2)]);
}

export function percent(probability) {
  const value = 100 * probability;
  return value >= 99.95 ? "100 %" : value >= 10 ? `${Math.round(value)} %`
    : value >= .1 ? `${value.toFixed(1)} %` : "< 0.1 %";
}

// A probability as a number, and a bar whose whole length is `most`.
export function addBar(parent, probability, most = 1) {
  const bar = add(parent, "span", undefined, {class: "bar"});
  add(bar, "span", percent(probability));
  add(bar, "i").style.width = `${Math.max(2, 100 * probability / most)}%`;
}

// The whole translation as it is shown.
export function composed() {
  const {sentences, gaps} = state;
  return sentences.map((each, i) => gaps[i] + (best(each)?.text ?? "")).join("")
    + gaps[sentences.length];
}

// Write text with its words as elements, made by `make(word number)`.
function addWords(parent, of, words, make) {
  let end = 0;
  words.forEach(([start, stop], number) => {
    parent.append(of.slice(end, start));
    make(number).textContent = of.slice(start, stop);
    end = stop;
  });
  parent.append(of.slice(end));
}

// Draw the layer of marks under the text field: its words while the result is theirs.
export function markSource() {
  const given = text.value;
  mirror.replaceChildren();
  let end = 0;
  if (given === state.text) {
    state.sentences.forEach((sentence, index) => {
      mirror.append(given.slice(end, sentence.start));
      addWords(mirror, sentence.source, sourceWords(sentence), number => {
        const word = add(mirror, "span");
        Object.assign(word.dataset, {sentence: index, word: number});
        return word;
      });
      end = sentence.stop;
    });
  }
  // The last line break needs a sign after it to take up a line.
  mirror.append(given.slice(end) + "\u200b");
}

function addTranslation(parent, sentence, index) {
  const hypothesis = best(sentence), words = targetWords(hypothesis);
  const probabilities = probabilitiesOf(hypothesis, words);
  addWords(parent, hypothesis.text, words, number => {
    const probability = probabilities[number];
    const word = add(parent, "span", undefined,
      {role: "button", tabindex: -1, "aria-haspopup": "listbox", "aria-expanded": "false"});
    Object.assign(word.dataset, {sentence: index, word: number});
    if (probability !== null && probability < .8) {
      word.classList.add(probability < .2 ? "sure0" : probability < .5 ? "sure1" : "sure2");
      word.title = `probability ${percent(probability)}`;
    }
    return word;
  });
  if (!hypothesis.text && hypothesis.score === null) {
    add(parent, "span", "nothing possible", {class: "lost",
      title: "No translation meets what was asked for: undo a choice, or change the text."});
  } else if (!hypothesis.finished) {
    add(parent, "span", "unfinished", {class: "lost",
      title: "It reached the longest length allowed before its end."});
  }
}

function drawSentence(element) {
  const index = Number(element.dataset.sentence), sentence = state.sentences[index];
  const shown = best(sentence);
  element.className = "sentence";
  element.classList.toggle("current", index === state.current);
  element.classList.toggle("pending", !shown);
  element.replaceChildren();
  if (shown) addTranslation(element, sentence, index);
  else element.textContent = sentence.before?.[0]?.text ?? sentence.source;
}

// Draw the translation, or of an answer that still comes one sentence.
export function drawOutput(one) {
  if (open?.sentence === state.sentences[one] || one === undefined) closeOthers();
  const focused = output.contains(document.activeElement) && document.activeElement.dataset;
  if (output.children[one]) drawSentence(output.children[one]);
  else {
    output.replaceChildren();
    state.sentences.forEach((_, index) => {
      const element = document.createElement("span");
      element.dataset.sentence = index;
      output.append(state.gaps[index], element);
      drawSentence(element);
    });
    output.append(state.gaps[state.sentences.length]);
  }
  const again = focused && find(focused);
  enterAt(again || find({sentence: state.current, word: 0})
    || output.querySelector("[role=button]"));
  if (again !== document.activeElement) again?.focus?.();
  if (one === undefined) markSource();
}

function find({sentence, word}, parent = output) {
  return parent.querySelector(`[data-sentence="${sentence}"][data-word="${word}"]`);
}

function unlink() {
  for (const element of document.querySelectorAll(".linked")) element.classList.remove("linked");
}

// Mark a word and those that attention links to it on the other side.
function link({sentence: index, word}, fromSource) {
  unlink();
  const sentence = state.sentences[index], hypothesis = sentence && best(sentence);
  if (!hypothesis || text.value !== state.text) return;
  const here = fromSource ? 0 : 1, there = 1 - here;
  const mark = (side, number) => find({sentence: index, word: number},
    [mirror, output][side])?.classList.add("linked");
  mark(here, word);
  for (const pair of linksOf(sentence, hypothesis)) {
    if (pair[here] === Number(word)) mark(there, pair[there]);
  }
}

// Let the Tab key enter the translation at this word.
function enterAt(word) {
  if (!word) return;
  output.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
  word.tabIndex = 0;
}

// The list of other words.
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
  if (open?.element === element) {
    closeOthers(true);
    return;
  }
  closeOthers();
  const index = Number(element.dataset.sentence), sentence = state.sentences[index];
  const hypothesis = best(sentence);
  const span = targetWords(hypothesis)[element.dataset.word];
  const controller = new AbortController();
  const mine = open = {element, sentence, span, controller, active: -1, whole: hypothesis.text};
  element.setAttribute("aria-expanded", "true");
  setCurrent(index);
  note.textContent = "Reading the model\u2026";
  list.replaceChildren();
  others.hidden = false;
  place(element);
  try {
    const prefix = hypothesis.text.slice(0, span[0]).trimEnd();
    const body = {text: sentence.source, prefix, k: MOST_OTHERS, ...languages()};
    const {alternatives} = await ask("v1/alternatives", body, controller.signal);
    if (open !== mine) return;
    fillOthers(alternatives);
  } catch (error) {
    if (open === mine && error.name !== "AbortError") note.textContent = error.message;
  }
}

function fillOthers(alternatives) {
  const {element, span, whole} = open, word = whole.slice(...span);
  note.textContent = alternatives.length ? "" : "The model has no other word here.";
  open.words = alternatives;
  alternatives.forEach((each, number) => {
    const option = add(list, "div", undefined, {role: "option", id: `option-${number}`,
      "aria-selected": String(each.word === word)});
    add(option, "b", each.word, {lang: output.lang, dir: "auto"});
    addBar(option, each.probability);
    const end = prefixEnd(each);
    add(option, "span", each.text.slice(end).trim(), {class: "rest", lang: output.lang});
    option.onpointerenter = () => activate(number);
    option.onclick = () => take(number);
  });
  place(element);
  if (!alternatives.length) return;
  others.scrollIntoView({block: "nearest"});
  list.focus({preventScroll: true});
  activate(Math.max(0, alternatives.findIndex(each => each.word !== word)));
}

// Where the chosen word ends in its completion.
function prefixEnd({word, text: completion}) {
  const begin = completion.indexOf(word, Math.max(0, open.span[0] - 1));
  return begin < 0 ? open.span[0] : begin + word.length;
}

function activate(number) {
  open.active = number;
  [...list.children].forEach((option, place) =>
    option.classList.toggle("active", place === number));
  list.setAttribute("aria-activedescendant", `option-${number}`);
}

function take(number) {
  const {sentence, span, whole, words} = open, chosen = words[number];
  const from = whole.slice(...span), prefix = chosen.text.slice(0, prefixEnd(chosen));
  closeOthers(true);
  if (chosen.word !== from) choose(sentence, from, chosen.word, prefix, chosen.text);
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
  output.onpointerover = event => { if (word(event)) link(word(event).dataset, false); };
  output.onpointerout = unlink;
  output.addEventListener("focusin", event => {
    const element = word(event);
    if (!element) return;
    enterAt(element);
    setCurrent(Number(element.dataset.sentence));
    link(element.dataset, false);
  });
  output.addEventListener("focusout", unlink);
  output.onkeydown = event => {
    const element = word(event), {key} = event;
    if (!element || event.altKey || event.ctrlKey || event.metaKey) return;
    if (/^(Enter| |ArrowDown)$/.test(key)) {
      if (!open) openOthers(element);
    } else if (open && key === "Escape") closeOthers(true);
    else if (!moveAmong(element, key)) return;
    event.preventDefault();
  };
  list.onkeydown = event => {
    const {key} = event;
    const next = moved(key, open.active, list.children.length, "ArrowUp", "ArrowDown");
    if (next >= 0) activate(next);
    else if (key === "Enter" || key === " ") take(open.active);
    else if (key === "Escape" || key === "Tab") closeOthers();
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
    if (under) link(under.dataset, true);
    else unlink();
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
    enterAt(output.querySelector(".linked") ?? find({sentence: index, word: 0}));
  });
}
