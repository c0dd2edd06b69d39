// Requests to the server. Addresses are relative: the page works under any path.

// A refusal. The server's message, which is part of a line elsewhere, becomes a sentence.
export class Failure extends Error {
  constructor(status, {code, message, field}, retryAfter) {
    super(message.replace(/^./u, first => first.toUpperCase()).replace(/\w$/, "$&."));
    const wait = /^(0|429|503)$/.test(status) && (retryAfter || 5);  // seconds to the next try
    Object.assign(this, {status, code, field, wait});
  }
}

export const OFFLINE = {code: "offline", message: "The server cannot be reached."};
const BROKEN = {message: "The answer broke off before its end."};
const WAITS = "Your text is translated as soon as it is ready.";
const SLOW = 300, SILENCE = 3000;
const box = byId("problem");
let retry, question, silent;  // whether the server is alive; the notice that it is not

function tellSilence() {
  if (!silent?.isConnected) silent = notify(`The server does not answer. ${WAITS}`);
}

// How far the server is: {status, done, of}.
const readiness = () => fetch("ready", {cache: "no-store"}).then(
  response => response.json().catch(() => ({})), () => ({status: "offline"}));

// Ask for a sign of life, and say when none comes.
function listen() {
  if (question) return;
  const late = setTimeout(tellSilence, SILENCE);
  question = readiness().then(() => {
    clearTimeout(late);
    if (silent?.isConnected) settle();
    question = silent = null;
  });
}

// Tell that an answer is slow, and what the server still compiles, until the function that
// this returns is called.
export function tellDelay(tell) {
  let waits = true;
  const timer = setTimeout(async () => {
    tell("…");
    const {done, of} = await readiness();
    if (waits && done < of) tell(`, while the server still compiles: ${done} of ${of} programs.`);
  }, SLOW);
  return () => {
    clearTimeout(timer);
    waits = false;
  };
}

// Wait for what the server sends, and see that it is alive. An error is `lost`: of the
// network, or of an answer that nobody waits for any more.
async function hear(answer, lost) {
  if (silent) tellSilence();
  const timer = setInterval(listen, SILENCE);
  try {
    return await answer;
  } catch {
    throw new Failure(0, lost);
  } finally {
    clearInterval(timer);
  }
}

async function send(path, body, signal) {
  const key = byId("key").value.trim(), headers = key ? {Authorization: `Bearer ${key}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await hear(fetch(path, {method: body ? "POST" : "GET", headers, signal,
    body: body && JSON.stringify(body), cache: "no-store"}), OFFLINE);
  if (response.ok) return response;
  const {error = {message: `The server answers ${response.status}.`}} =
    await response.json().catch(() => ({}));
  throw new Failure(response.status, error, Number(response.headers.get("Retry-After")));
}

export async function ask(path, body, signal) {
  const response = await send(path, body, signal);
  return hear(response.json(), BROKEN);
}

// Yield {event, data} of Server-Sent Events, up to and including `done`.
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  while (true) {
    const {done, value} = await hear(reader.read(), BROKEN);
    if (done) throw new Failure(0, BROKEN);
    const blocks = (waiting + value).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const found = /^event: (.*)\ndata: (.*)$/m.exec(block);
      if (!found) continue;  // a comment, which keeps the connection open
      const event = found[1], data = JSON.parse(found[2]);
      if (event === "error") throw new Failure(data.status ?? 500, data.error, data.retry_after);
      yield {event, data};
      if (event === "done") return;
    }
  }
}

// Show a notice, with an optional button, and return its paragraph.
export function notify(message, label, action) {
  settle();
  box.hidden = false;
  const line = add(box, "p", `${message} `);
  if (label) {
    add(box, "button", label).onclick = () => {
      settle();
      action();
    };
  }
  return line;
}

export function settle() {
  clearInterval(retry);
  if (box.contains(document.activeElement)) byId("text").focus();
  box.hidden = true;
  box.className = "";
  box.replaceChildren();
}

// Count down, then try again; the seconds are no news for a screen reader.
function countDown(message, seconds, action) {
  const line = notify(message, "Try now", action);
  const left = add(line, "span", "", {"aria-hidden": "true"});
  const tell = () => {
    if (seconds <= 0) box.querySelector("button").click();
    left.textContent = `Next try in ${seconds--} s.`;
  };
  tell();
  retry = setInterval(tell, 1000);
  return line;
}

// Show a refusal with its cure, and return its line.
export function fail(error, again) {
  if (!(error instanceof Failure)) throw error;
  const {status, code, message, wait} = error;
  if (/offline|warming/.test(code)) return follow(code, again);
  if (wait) return countDown(message, wait, again);
  if (status === 403) byId("key-field").hidden = false;
  return notify(status === 403 && !byId("key").value ? "Write your key above." : message,
    status >= 500 && "Try again", again);
}

// Follow a server that cannot be reached, or still compiles, until it is ready.
function follow(code, again) {
  const line = notify("");
  const tell = status => {
    if (box.className === status) return;
    box.className = status;
    line.textContent =
      `${status === "warming" ? "The server is warming up." : OFFLINE.message} ${WAITS} `;
  };
  const poll = async () => {
    const {status, done, of} = await readiness();
    if (!line.isConnected) return;
    if (!/offline|warming/.test(status)) {
      settle();
      return again();
    }
    tell(status);
    if (of) {
      const meter = line.querySelector("progress")
        ?? add(line, "progress", "", {"aria-label": "Programs compiled"});
      Object.assign(meter, {max: of, value: done});
    }
    retry = setTimeout(poll, 1000);
  };
  tell(code);
  retry = setTimeout(poll, 1000);
  return line;
}

// The same request as code, in Python without packages, that prints what is shown.
export function examples(url, body, needsKey, shown) {
  const headers = {"Content-Type": "application/json"};
  if (needsKey) headers.Authorization = "Bearer YOUR_KEY";
  const lines = Object.entries(headers).map(([name, value]) => `  -H '${name}: ${value}' \\\n`);
  const json = JSON.stringify(body, null, 2), literal = JSON.stringify(headers, null, 2);
  return {
    curl: `curl ${url} \\\n${lines.join("")}  -d '${json.replaceAll("'", "'\\''")}'`,
    Python: `import json
from urllib.request import Request, urlopen

body = ${json.replace(/(?<=^  "\w+": )[tf]/gm, sign => sign.toUpperCase())}
headers = ${literal}
with urlopen(Request("${url}", json.dumps(body).encode(), headers)) as response:
    answer = json.load(response)
print(${shown})`,
    JavaScript: `const body = ${json};
const headers = ${literal};
const response = await fetch("${url}", {
  method: "POST", headers, body: JSON.stringify(body),
});
const answer = await response.json();
console.log(${shown});`,
  };
}
