// The conversation and the instruments beside it. Whatever a model says becomes text nodes, never markup.

import { Numbers } from "./numbers.js";
import { Refusal, chat, cyclesAfter, readiness, serverInfo } from "./server.js";
import { Strip } from "./strip.js";

const LOOK_MS = 1000, LOOK_OFTEN_MS = 200; // between two looks at the server, idle and at work

const at = (id) => document.getElementById(id);
const strip = new Strip(at("strip"), at("legend").tBodies[0], at("strip-scale"));
const messages = []; // of the conversation, without the system prompt
let running = null; // what stops the answer that is being streamed
let info = null; // what the server said of itself
let ready = false; // whether it answers

// ------------------------------------------------------------------ the server

async function look() {
  try {
    const told = await readiness();
    if (told.status !== "ready") info = null;
    else if (info === null) await meet();
    showState(told);
    if (info !== null && !document.hidden) strip.add(await cyclesAfter(strip.last));
  } catch (error) {
    info = null;
    showState({ status: error instanceof Refusal ? error.message : "no server" });
  }
  setTimeout(look, running ? LOOK_OFTEN_MS : LOOK_MS);
}

async function meet() {
  info = await serverInfo();
  strip.clear(); // another server counts its own cycles
  const { steps, draft } = info.speculation;
  const words = steps ? `draft ${draft}, ${steps} steps` : "no draft";
  at("model").textContent = `${info.models[0]} \u00b7 ${words} \u00b7 ${info.device}, ${info.dtype}`;
  at("steps").length = 2;
  at("steps").options[0].text = steps ? `server's (${steps})` : "off";
  at("steps").options[1].hidden = !steps;
  for (let each = 1; each <= steps; each++) at("steps").add(new Option(each, each));
}

function showState({ status, stage, loaded_bytes: bytes, reason }) {
  const size = bytes ? `${(bytes / 1e9).toFixed(2)} GB` : "";
  at("state").textContent = [status, reason ?? stage, size].filter(Boolean).join(": ");
  at("state").className = status === "ready" ? "good" : "";
  ready = status === "ready";
  showButtons();
}

// ------------------------------------------------------------------ an answer

async function send() {
  const question = { role: "user", content: at("prompt").value };
  at("prompt").value = "";
  addTurn("user").append(question.content);
  const answer = addTurn("assistant"), numbers = new Numbers(performance.now());
  running = new AbortController();
  showButtons();
  let said = "", ending = "stopped";
  try {
    for await (const chunk of chat(requestFor(question), running.signal)) {
      const choice = chunk.choices[0];
      said += choice.delta.content ?? "";
      ending = choice.finish_reason ?? ending;
      if (choice.speculation) take(choice.speculation, answer, numbers);
    }
  } catch (error) {
    if (error.name !== "AbortError") ending = error instanceof Refusal ? error.message : "the server is gone";
  }
  running = null;
  if (numbers.tokens) messages.push(question, { role: "assistant", content: said });
  showButtons();
  finish(answer, numbers, ending);
  await serverInfo().then((found) => (info = found), () => {});
  showNumbers(numbers);
}

function requestFor(question) {
  const system = at("system").value.trim(), steps = at("steps").value;
  return {
    messages: [...(system ? [{ role: "system", content: system }] : []), ...messages, question],
    stream: true,
    max_tokens: at("max-tokens").valueAsNumber,
    temperature: at("temperature").valueAsNumber,
    speculation: { parts: true, ...(steps === "" ? {} : { steps: Number(steps) }) },
  };
}

function take(speculation, answer, numbers) {
  numbers.see(speculation, performance.now());
  const atEnd = at("turns").scrollHeight - at("turns").scrollTop - at("turns").clientHeight < 40;
  for (const { text, drafted } of speculation.parts) {
    const part = document.createElement(drafted ? "mark" : "span");
    part.textContent = text;
    answer.append(part);
  }
  if (atEnd) at("turns").scrollTop = at("turns").scrollHeight;
  showNumbers(numbers);
}

function finish(answer, numbers, ending) {
  const note = document.createElement("footer");
  const length = numbers.acceptLength === null ? "" : `accept length ${numbers.acceptLength.toFixed(2)}`;
  const rate = numbers.tokensPerSecond === null ? "" : `${numbers.tokensPerSecond.toFixed(1)} tok/s`;
  const count = numbers.tokens ? `${numbers.tokens} tokens` : "";
  note.textContent = [count, length, rate, ending].filter(Boolean).join(" \u00b7 ");
  answer.parentNode.append(note);
  at("turns").scrollTop = at("turns").scrollHeight;
}

function showNumbers(numbers) {
  const full = at("steps").value === "" || Number(at("steps").value) === info?.speculation.steps;
  const ratio = full ? info?.cost.cycle_ratio?.["1"] : undefined; // R of the server's own cycle
  const length = numbers.acceptLength;
  show("accept-length", length?.toFixed(2));
  show("tokens-per-second", numbers.tokensPerSecond?.toFixed(1));
  show("break-even", ratio?.toFixed(2));
  show("speed-up", ratio && length ? `${(length / ratio).toFixed(2)}\u00d7` : undefined);
  show("tokens", numbers.tokens ? `${numbers.tokens}, ${numbers.drafted}` : undefined);
  show("num-cycles", numbers.cycles || undefined);
  show("first-token", numbers.firstTokenMs === null ? undefined : `${numbers.firstTokenMs.toFixed(0)} ms`);
}

function show(id, value) {
  at(id).textContent = value ?? "-";
}

// ------------------------------------------------------------------ the form

function addTurn(role) {
  at("welcome").hidden = true;
  const turn = document.createElement("article"), text = document.createElement("p");
  turn.className = role;
  turn.append(text);
  at("turns").append(turn);
  at("turns").scrollTop = at("turns").scrollHeight;
  return text;
}

function showButtons() {
  at("stop").hidden = running === null;
  at("send").hidden = at("clear").disabled = running !== null;
  at("send").disabled = !ready || running !== null;
}

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running === null) send();
});

at("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!at("send").disabled) at("ask").requestSubmit();
});

at("stop").addEventListener("click", () => running?.abort());

at("clear").addEventListener("click", () => {
  messages.length = 0;
  for (const turn of at("turns").querySelectorAll("article")) turn.remove();
  at("welcome").hidden = false;
  at("prompt").focus();
});

look();
