// Requests to the server. Addresses are relative: the page works under any path.

// A refusal, with what the server says about it.
class Failure extends Error {
  constructor(status, {code, message, ...facts}, retryAfter) {
    super(message);
    Object.assign(this, {status, code, facts, retryAfter});
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

async function send(path, body, signal, allowed = []) {
  const headers = key ? {Authorization: `Bearer ${key}`} : {};
  if (body) headers["Content-Type"] = "application/json";
  const response = await fetch(path, {method: body ? "POST" : "GET", headers, signal,
    body: body && JSON.stringify(body), cache: "no-store"}).catch(error => lose(error, OFFLINE));
  if (response.ok || allowed.includes(response.status)) return response;
  const {error = {message: `The server answers ${response.status}.`}} =
    await response.json().catch(() => ({}));
  throw new Failure(response.status, error, Number(response.headers.get("Retry-After")));
}

// Return the answer's JSON, also of those of `allowed` that are no success.
export async function ask(path, body, {signal, allowed} = {}) {
  const response = await send(path, body, signal, allowed);
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

// A notice in the place for problems, with an optional button.
export function notify(message, {label, action, calm = false, detail} = {}) {
  box.replaceChildren();
  box.classList.toggle("calm", calm);
  const line = add(box, "p", message);
  if (detail) line.append(" ", detail);
  if (label) add(box, "button", label).onclick = action;
  box.hidden = false;
}

export function settle() {
  clearInterval(retry);
  box.hidden = true;
  box.replaceChildren();
}

// Forget that the server could not be reached.
export function succeed() { tries = 0; }

// Count down, then try again; the seconds are no news for a screen reader.
function countDown(message, seconds, action) {
  clearInterval(retry);
  const detail = document.createElement("span");
  detail.setAttribute("aria-hidden", "true");
  const tell = () => { detail.textContent = `Next try in ${seconds} s.`; };
  tell();
  const go = () => {
    settle();
    action();
  };
  notify(message, {detail, label: "Try now", action: go});
  retry = setInterval(() => {
    seconds -= 1;
    if (seconds <= 0) go();
    else tell();
  }, 1000);
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
    addEventListener("online", () => box.querySelector("button")?.click(), {once: true});
  } else if (status === 429 || status === 503) countDown(message, retryAfter || 5, again);
  else {
    if (status === 403) {
      byId("key-field").hidden = false;
      byId("key").focus();
    }
    notify(status === 403 && !key ? "Write your key above." : message,
      status >= 500 ? {label: "Try again", action: again} : {});
  }
}

// Follow a server that still compiles until it is ready.
async function warm(again) {
  clearInterval(retry);
  const meter = document.createElement("progress");
  meter.setAttribute("aria-label", "Programs compiled");
  notify("The server is warming up. Your text is translated as soon as it is ready.",
    {calm: true, detail: meter});
  const poll = async () => {
    const answer = await ask("ready", undefined, {allowed: [503]});
    if (answer.status === "ready") {
      settle();
      again();
    } else if (answer.of) Object.assign(meter, {max: answer.of, value: answer.done});
  };
  retry = setInterval(() => poll().catch(error => fail(error, again)), 1000);
  await poll().catch(error => fail(error, again));
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
