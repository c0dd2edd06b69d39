// Requests to the server. Addresses are relative: the page works under any path.

// A refusal. The server's message, which is part of a line elsewhere, becomes a sentence.
class Failure extends Error {
  constructor(status, {code, message}, retryAfter) {
    super(message.replace(/^./u, first => first.toUpperCase()).replace(/\w$/, "$&."));
    Object.assign(this, {status, code, retryAfter});
  }
}

export const OFFLINE = {code: "offline", message: "The server cannot be reached."};
const BROKEN = {code: "offline", message: "The answer broke off before its end."};
const box = byId("problem");
let key = "", retry, tries = 0;

export function setKey(text) { key = text; }

// Throw what an error of the network means; one that was asked for stays itself.
function lose(error, facts) {
  throw error.name === "AbortError" ? error : new Failure(0, facts);
}

async function send(path, body, signal) {
  const headers = key ? {Authorization: `Bearer ${key}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {method: body ? "POST" : "GET", headers, signal,
    body: body && JSON.stringify(body), cache: "no-store"}).catch(error => lose(error, OFFLINE));
  if (response.ok) return response;
  const {error = {message: `The server answers ${response.status}.`}} =
    await response.json().catch(() => ({}));
  throw new Failure(response.status, error, Number(response.headers.get("Retry-After")));
}

export async function ask(path, body, signal) {
  const response = await send(path, body, signal);
  return response.json().catch(error => lose(error, BROKEN));
}

// Yield {event, data} of Server-Sent Events, up to and including `done`.
export async function* stream(path, body, signal) {
  const response = await send(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  while (true) {
    const {done, value} = await reader.read().catch(error => lose(error, BROKEN));
    if (done) throw new Failure(0, BROKEN);
    const blocks = (waiting + value).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const [, event, json] = /^event: (.*)\ndata: (.*)$/m.exec(block) ?? [];
      if (!event) continue;  // a comment, which keeps the connection open
      const data = JSON.parse(json);
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

// Forget that the server could not be reached.
export function succeed() { tries = 0; }

const pressButton = () => box.querySelector("button")?.click();

// Count down, then try again; the seconds are no news for a screen reader.
function countDown(message, seconds, action) {
  const line = notify(message, "Try now", action);
  const left = add(line, "span", undefined, {"aria-hidden": "true"});
  const tell = () => {
    if (seconds <= 0) pressButton();
    left.textContent = `Next try in ${seconds--} s.`;
  };
  tell();
  retry = setInterval(tell, 1000);
}

// Show a refusal with its cure.
export function fail(error, again) {
  if (error.name === "AbortError") return;
  if (!(error instanceof Failure)) throw error;
  const {status, code, message, retryAfter} = error;
  if (code === "warming") warm(again);
  else if (status === 0) {
    tries += 1;
    countDown(message, Math.min(30, 2 ** tries), again);
    addEventListener("online", pressButton, {once: true});
  } else if (status === 429 || status === 503) countDown(message, retryAfter || 5, again);
  else {
    if (status === 403) {
      byId("key-field").hidden = false;
      byId("key").focus();
    }
    notify(status === 403 && !key ? "Write your key above." : message,
      status >= 500 && "Try again", again);
  }
}

// Follow a server that still compiles until it is ready.
function warm(again) {
  const line = notify(
    "The server is warming up. Your text is translated as soon as it is ready.");
  const meter = add(line, "progress", undefined, {"aria-label": "Programs compiled"});
  box.className = "calm";
  const poll = async () => {
    const {status, done, of} = await fetch("ready", {cache: "no-store"})
      .then(response => response.json()).catch(error => lose(error, OFFLINE));
    if (status === "ready") {
      settle();
      again();
    } else if (of) Object.assign(meter, {max: of, value: done});
  };
  const follow = () => poll().catch(error => fail(error, again));
  retry = setInterval(follow, 1000);
  follow();
}

// The same request as code: curl, Python without packages, JavaScript.
export function examples(url, body, needsKey) {
  const json = JSON.stringify(body, null, 2), quoted = json.replaceAll("'", "'\\''");
  const auth = needsKey ? "Bearer YOUR_KEY" : "";
  const python = Object.entries(body).map(([name, value]) =>
    `    "${name}": ${value === true ? "True" : JSON.stringify(value)},`).join("\n");
  const indented = json.replaceAll("\n", "\n  ");
  return {
    curl: `curl ${url} \\\n  -H 'Content-Type: application/json' \\\n`
      + (auth && `  -H 'Authorization: ${auth}' \\\n`) + `  -d '${quoted}'`,
    Python: "import json\nimport urllib.request\n\nbody = {\n" + python + "\n}\n"
      + 'headers = {"Content-Type": "application/json"'
      + (auth && `, "Authorization": "${auth}"`) + "}\n"
      + `request = urllib.request.Request("${url}", json.dumps(body).encode(), headers)\n`
      + "with urllib.request.urlopen(request) as response:\n    answer = json.load(response)\n"
      + 'print(answer["translations"][0]["text"])',
    JavaScript: `const response = await fetch("${url}", {\n  method: "POST",\n`
      + `  headers: {"Content-Type": "application/json"${auth && `, Authorization: "${auth}"`}},\n`
      + `  body: JSON.stringify(${indented}),\n});\nconst answer = await response.json();\n`
      + "console.log(answer.translations[0].text);",
  };
}
