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
const SILENCE = 3000;
const box = byId("problem");
let retry, question, silent;  // whether the server is alive; the notice that it is not

function tellSilence() {
  if (!silent?.isConnected) silent = notify(`The server does not answer. ${WAITS}`);
}

// Ask for a sign of life, and say when none comes.
function listen() {
  if (question) return;
  const late = setTimeout(tellSilence, SILENCE);
  question = fetch("ready", {cache: "no-store"}).catch(() => {}).then(() => {
    clearTimeout(late);
    if (silent?.isConnected) settle();
    question = silent = null;
  });
}

// Wait for what the server sends, and see that it is alive. An error of the network is `lost`.
async function hear(answer, lost) {
  if (silent) tellSilence();
  const timer = setInterval(listen, SILENCE);
  try {
    return await answer;
  } catch (error) {
    throw error.name === "AbortError" ? error : new Failure(0, lost);
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
  const left = add(line, "span", undefined, {"aria-hidden": "true"});
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
  if (error.name === "AbortError") return;
  if (!(error instanceof Failure)) throw error;
  const {status, code, message, wait} = error;
  if (/offline|warming/.test(code)) return follow(code, again);
  if (wait) return countDown(message, wait, again);
  const key = byId("key");
  if (status === 403) {
    byId("key-field").hidden = false;
    key.focus();
  }
  return notify(status === 403 && !key.value ? "Write your key above." : message,
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
    const {status, done, of} = await fetch("ready", {cache: "no-store"}).then(
      response => response.json().catch(() => ({})), () => ({status: "offline"}));
    if (!line.isConnected) return;
    if (!/offline|warming/.test(status)) {
      settle();
      return again();
    }
    tell(status);
    if (of) {
      const meter = line.querySelector("progress")
        ?? add(line, "progress", undefined, {"aria-label": "Programs compiled"});
      Object.assign(meter, {max: of, value: done});
    }
    retry = setTimeout(poll, 1000);
  };
  tell(code);
  retry = setTimeout(poll, 1000);
  return line;
}

// The same request as code, in Python without packages.
export function examples(url, body, needsKey) {
  const headers = {"Content-Type": "application/json"};
  if (needsKey) headers.Authorization = "Bearer YOUR_KEY";
  const lines = Object.entries(headers).map(([name, value]) => `  -H '${name}: ${value}' \\\n`);
  const json = JSON.stringify(body, null, 2), literal = JSON.stringify(headers, null, 2);
  return {
    curl: `curl ${url} \\\n${lines.join("")}  -d '${json.replaceAll("'", "'\\''")}'`,
    Python: `import json
import urllib.request

body = ${json.replace(/(?<=^  "\w+": )[tf]/gm, sign => sign.toUpperCase())}
headers = ${literal}
request = urllib.request.Request("${url}", json.dumps(body).encode(), headers)
with urllib.request.urlopen(request) as response:
    answer = json.load(response)
print(answer["translations"][0]["text"])`,
    JavaScript: `const body = ${json};
const headers = ${literal};
const response = await fetch("${url}", {
  method: "POST", headers, body: JSON.stringify(body),
});
const answer = await response.json();
console.log(answer.translations[0].text);`,
  };
}
