// What the decodings were asked and how they were set, with what differs between them marked.

import { el } from "./dom.js";

const HEADER = /<\|(?:start_header_id|im_start)\|>(\w+)(?:<\|end_header_id\|>|\n)\s*/;

/** The prompt as a person wrote it: no special tokens, and the roles only where there are several turns. */
export function plainly(prompt) {
  const [before, ...rest] = prompt.split(HEADER); // text, role, text, role, text, ...
  const turns = [["", before]];
  for (let i = 0; i < rest.length; i += 2) turns.push([rest[i], rest[i + 1]]);
  const bare = turns.map(([role, text]) => [role, text.replace(/<\|[^|<>]*\|>/g, "").trim()]);
  const said = bare.filter(([, text]) => text);
  return said.map(([role, text]) => (said.length > 1 && role ? `${role}: ${text}` : text)).join("\n\n");
}

export function promptBox(lanes) {
  const known = lanes.filter((lane) => lane.prompt);
  const groups = new Map();
  for (const lane of known) groups.set(lane.prompt, [...(groups.get(lane.prompt) ?? []), lane.decoding.label]);
  return [...groups].map(([prompt, labels]) => {
    const name = groups.size > 1 ? `Prompt of ${labels.join(", ")}` : "Prompt";
    const text = plainly(prompt);
    const start = el("span", { class: "start" }, text.slice(0, 300).replace(/\s+/g, " "));
    return el("details", { class: "prompt" }, el("summary", {}, name, start), el("pre", {}, text));
  });
}

function flat(value, out = new Map()) {
  if (typeof value !== "object") return out.set("name", String(value));
  for (const [key, part] of Object.entries(value ?? {})) {
    if (part !== null && typeof part === "object" && !Array.isArray(part)) flat(part, out);
    else out.set(key, part === null ? "none" : String(part));
  }
  return out;
}

export function settingsBox(lanes) {
  const columns = lanes.map(({ decoding: { about } }) => {
    const { prompt: _, strategy: __, options: ___, ...others } = about;
    const rows = flat(others);
    for (const [key, value] of flat(about.strategy)) rows.set(key === "name" ? "strategy" : key, value);
    for (const [key, value] of flat(about.options)) rows.set(key, value);
    return rows;
  });
  const names = [...new Set(columns.flatMap((column) => [...column.keys()]))];
  const head = el("tr", {}, el("td"), ...lanes.map(({ decoding }) => el("th", { scope: "col" }, decoding.label)));
  const body = names.map((name) => {
    const cells = columns.map((column) => column.get(name) ?? "–");
    const differs = new Set(cells).size > 1;
    const title = el("th", { scope: "row" }, name);
    return el("tr", { class: differs && "differs" }, title, ...cells.map((cell) => el("td", {}, cell)));
  });
  const table = el("table", {}, el("thead", {}, head), el("tbody", {}, ...body));
  return el("details", {}, el("summary", {}, "Settings"), el("div", { class: "scroll", tabindex: "0" }, table));
}
