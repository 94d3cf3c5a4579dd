// The live page: asks the server for one or two decodings at once and shows each pass as it comes.

import { el, saveAs } from "./dom.js";
import { Viewer } from "./viewer.js";

const form = document.querySelector("form");
const fields = form.elements;
const said = form.querySelector(".said");
const examples = form.querySelector(".examples");
const race = document.querySelector(".race");
const place = document.querySelector("#viewer");
const viewer = new Viewer(place, { title: "Live" });
let about = null;
let running = null; // what ends the decodings that are under way
let traces = [];

globalThis.dapdViewer = viewer;
place.hidden = true;

const headers = () => ({
  "Content-Type": "application/json",
  ...(fields.key.value ? { Authorization: `Bearer ${fields.key.value}` } : {}),
});

/** What is wrong, in the server's words. */
async function failure(response) {
  if (response.status === 401) fields.key.closest("label").hidden = false;
  const { error } = await response.json().catch(() => ({}));
  return new Error(error?.message ?? `the server answered ${response.status}`);
}

async function load() {
  const response = await fetch("page.json", { headers: headers() });
  if (!response.ok) throw await failure(response);
  about = await response.json();
  const named = (name) => el("option", { value: name }, name);
  fields.a.replaceChildren(...about.strategies.map(named));
  fields.b.replaceChildren(el("option", { value: "" }, "nothing"), ...about.strategies.map(named));
  fields.tokens.max = about.longest;
  document.title = document.querySelector("h1").textContent = `${about.model} · dapd, live`;
  examples.append(...Object.entries(about.examples).map(example));
  examples.hidden = !examples.children.length;
}

/** A button that writes a prompt. */
function example([name, prompt]) {
  const button = el("button", { type: "button", title: prompt }, name);
  button.addEventListener("click", () => {
    fields.prompt.value = prompt;
    fields.prompt.focus();
  });
  return button;
}

/** Path and body of the request for one strategy. */
function request(strategy) {
  const text = fields.prompt.value;
  const body = {
    model: about.model, strategy, stream: true, stream_mode: "denoise", edges: true,
    stream_options: { include_usage: true }, temperature: Number(fields.temperature.value) || 0,
  };
  if (fields.block.value) body.block_length = Number(fields.block.value);
  if (/\[MASK(\*\d+)?\]/.test(text)) return ["v1/infill", { ...body, template: text }];
  if (fields.tokens.value) body.max_tokens = Number(fields.tokens.value);
  if (about.chat) return ["v1/chat/completions", { ...body, messages: [{ role: "user", content: text }] }];
  return ["v1/completions", { ...body, prompt: text }];
}

/** The chunks of a stream, one by one. */
async function* chunks(response) {
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}

/** Passes, tokens per pass and seconds of one decoding, counting. */
class Counter {
  constructor(label) {
    this.values = ["passes", "tokens", "tokens a pass", "seconds"].map((name) => [name, el("dd", {}, "0")]);
    const pairs = this.values.map(([name, value]) => el("div", {}, el("dt", {}, name), value));
    this.element = el("section", { "aria-label": label }, el("h2", {}, label), el("dl", {}, ...pairs));
  }

  show(passes, tokens, seconds) {
    const texts = [passes, tokens, (tokens / Math.max(1, passes)).toFixed(2), seconds.toFixed(2)];
    this.values.forEach(([, value], i) => (value.textContent = texts[i]));
    this.seconds = seconds;
  }

  /** The server's own counts. */
  end({ passes, completion_tokens: tokens }) {
    this.show(passes, tokens, this.seconds ?? 0);
  }
}

async function decode(strategy, signal) {
  const [path, body] = request(strategy);
  const counter = new Counter(strategy);
  race.append(counter.element);
  const response = await fetch(path, { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (!response.ok) throw await failure(response);
  let lane = null;
  let trace = null;
  for await (const chunk of chunks(response)) {
    if (chunk.denoise_head) {
      trace = { head: chunk.denoise_head, records: [] };
      traces.push(trace);
      lane = viewer.lane(trace.head);
    }
    if (chunk.denoise) {
      trace.records.push(chunk.denoise);
      lane.add(chunk.denoise);
      counter.show(chunk.denoise.step, lane.decoding.written.at(-1), chunk.denoise.seconds);
    }
    if (chunk.usage) counter.end(chunk.usage);
  }
}

async function run() {
  running?.abort();
  const mine = (running = new AbortController());
  said.textContent = "";
  traces = [];
  race.replaceChildren();
  race.hidden = place.hidden = false;
  viewer.reset();
  fields.stop.disabled = false;
  fields.save.disabled = true;
  try {
    if (!about) await load();
    const strategies = [fields.a.value || about.strategies[0], fields.b.value].filter(Boolean);
    const ended = await Promise.allSettled(strategies.map((strategy) => decode(strategy, mine.signal)));
    const wrong = ended.find(({ reason }) => reason && reason.name !== "AbortError");
    if (wrong) throw wrong.reason;
  } catch (error) {
    said.textContent = error.message;
  }
  if (running !== mine) return;
  running = null;
  fields.stop.disabled = true;
  fields.save.disabled = !traces.some((trace) => trace.records.length);
  viewer.end();
}

/** Save what was decoded as a page that plays it, without a server. */
async function save() {
  const shell = await (await fetch("static/saved.html")).text();
  const title = traces.map((trace) => trace.head.label).join(" beside ");
  const content = JSON.stringify({ title, traces }).replaceAll("<", "\\u003c").replaceAll(">", "\\u003e");
  saveAs("decoding.html", "text/html", shell.replace("@@TRACES@@", () => content));
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
fields.stop.addEventListener("click", () => running?.abort());
fields.save.addEventListener("click", () => save().catch((error) => (said.textContent = error.message)));
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  if (event.key === "Escape") running?.abort();
});
load().catch((error) => (said.textContent = error.message));
