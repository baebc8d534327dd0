// What the page asks its server for. The browser adds the key itself, if it was asked for one when the page was opened.

// Tells the server that it is this page that asks: no other site's page can send this header.
const HEADERS = { "x-slipstream-page": "1" };

export class Refusal extends Error {}

// An address beside the page's own, without the user and password that may have been typed into it.
function address(path) {
  return new URL(path, location.origin + location.pathname);
}

async function ask(path, options = {}) {
  const response = await fetch(address(path), { ...options, headers: { ...HEADERS, ...options.headers } });
  if (response.ok) return response;
  const said = await response.json().catch(() => null);
  throw new Refusal(said?.error?.message ?? `the server said ${response.status}`);
}

export async function serverInfo() {
  return (await ask("server_info")).json();
}

export async function cyclesAfter(cycle) {
  return (await (await ask(`cycles?after=${cycle}`)).json()).cycles;
}

// The state of the server, which it tells with any status.
export async function readiness() {
  return (await fetch(address("ready"))).json();
}

// Stream an answer: each chunk as it comes. Throws a Refusal for an error, also in the middle.
export async function* chat(body, signal) {
  const headers = { "content-type": "application/json" };
  const response = await ask("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  for await (const event of events(response.body)) {
    if (event === "[DONE]") return;
    const chunk = JSON.parse(event);
    if (chunk.error) throw new Refusal(chunk.error.message);
    yield chunk;
  }
  throw new Refusal("the stream broke off");
}

// The payloads of server-sent events, whatever pieces the bytes come in.
async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) yield part.replace(/^data: /, "");
  }
}
