// One decoding on the page: its name and counts, its text with the graph over it, its heat map and its settings.

import { HeatMap } from "./charts.js";
import { Decoding } from "./decoding.js";
import { el, plural } from "./dom.js";
import { GraphLayer } from "./graph.js";
import { TextPanel } from "./text.js";

const LONG = 400; // tokens

const percent = (share) => (share < 0.001 ? "below 0.1%" : `${(100 * share).toFixed(1)}%`);

/** The likeliest tokens in the pass that decided a position, where the trace holds them. */
function runnersUp(decoding, position, masked) {
  const said = decoding.likeliest(position).map(([words, share]) => `${words} ${percent(share)}`);
  const pass = decoding.born.get(position);
  const where = masked ? `Pass ${pass} decides it; likeliest there` : `Likeliest in pass ${pass}`;
  return said.length ? [el("p", {}, `${where}: ${said.join(", ")}.`)] : [];
}

export class Lane {
  constructor(viewer, head) {
    this.viewer = viewer;
    this.decoding = new Decoding(head);
    this.panel = new TextPanel(this.decoding);
    this.graph = new GraphLayer(this.decoding, this.panel);
    this.heat = new HeatMap(viewer.clock, this.decoding);
    this.inspected = null;
    this.tip = el("div", { class: "tip", hidden: true });
    this.counts = el("p", { class: "counts" });
    this.bar = el("span", { class: "bar", "aria-hidden": "true" }, el("i"));
    this.badge = el("b", { class: "badge", hidden: true });
    this.note = el("p", { class: "note", hidden: true });
    this.swatch = el("i", { class: "swatch", "aria-hidden": "true" });
    const title = el("h2", {}, this.swatch, this.decoding.label, this.badge);
    this.words = el("div", { class: "words" }, this.panel.element, this.graph.element, this.tip);
    this.element = el(
      "section", { class: "lane", "aria-label": this.decoding.label },
      title, this.counts, this.bar, this.words, this.note, this.heat.element,
    );
    this.element.classList.toggle("long", this.isLong);
    this.#listen();
  }

  /** Whether the charts would be out of sight below the text. */
  get isLong() {
    return this.decoding.slots.length > LONG;
  }

  /** Take in the next record, live or from a file. */
  add(record) {
    this.decoding.add(record);
    const pass = this.decoding.passes;
    this.panel.foretell(this.decoding.changed(pass));
    this.viewer.grew(this, pass);
  }

  get prompt() {
    return this.decoding.about.prompt ?? null;
  }

  /** Colour everything again, because the scale or the theme changed. */
  paint() {
    this.panel.paint(this.viewer.scale);
    this.swatch.style.background = this.bar.firstChild.style.background = this.decoding.ink;
    this.redraw();
  }

  redraw() {
    this.heat.draw();
    this.graph.moved();
    this.#links();
  }

  show(pass) {
    const { decoding } = this;
    this.panel.show(pass);
    const at = Math.min(pass, decoding.passes);
    const decided = decoding.decided[at];
    const total = decoding.slots.length;
    const tokens = decoding.written[at];
    const rate = at ? (tokens / at).toFixed(1) : "0";
    const tau = this.viewer.showGraph ? decoding.tau(pass) : null;
    this.counts.textContent =
      `pass ${at} of ${decoding.passes} · ${total - decided} of ${total} masked · ` +
      `${plural(tokens, "token")}, ${rate} a pass` +
      (tau === null ? "" : ` · edges above τ ${tau.toFixed(3)}`);
    this.bar.firstChild.style.transform = `scaleX(${total ? decided / total : 1})`;
    const finished = decoding.done && at === decoding.passes && at > 0;
    this.element.classList.toggle("done", finished);
    this.badge.hidden = !finished;
    this.badge.textContent = finished ? `done in ${plural(decoding.passes, "pass")}` : "";
    const told = `the text after pass ${at} of ${decoding.passes}, ${decided} of ${total} positions decided`;
    this.panel.element.setAttribute("aria-label", `${decoding.label}: ${told}`);
    this.heat.move();
    this.#links();
    this.#explain();
  }

  /** Look at the next or the previous position. */
  step(by) {
    const { slots } = this.decoding;
    const at = this.inspected === null ? (by > 0 ? -1 : 0) : slots.indexOf(this.inspected);
    this.inspect(slots[(at + by + slots.length) % slots.length]);
  }

  inspect(position) {
    if (this.inspected !== null) this.panel.spans.get(this.inspected).classList.remove("seen");
    this.inspected = position;
    if (position !== null) this.panel.spans.get(position).classList.add("seen");
    this.#links();
    this.#explain();
  }

  #listen() {
    const text = this.panel.element;
    const where = (event) => {
      const at = event.target.closest?.("[data-p]")?.dataset.p;
      return at === undefined ? null : Number(at);
    };
    text.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.inspect(where(event)));
    text.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.inspect(null));
    text.addEventListener("click", (event) => this.inspect(where(event)));
    text.addEventListener("blur", () => this.inspect(null));
    text.addEventListener("keydown", (event) => {
      const by = { ".": 1, ",": -1 }[event.key];
      if (by) this.step(by);
      else if (event.key === "Escape") this.inspect(null);
      else return;
      event.preventDefault();
    });
  }

  #links() {
    const { pass } = this.viewer.clock;
    this.graph.draw(pass, this.inspected, this.viewer.showGraph);
    const drawn = this.viewer.showGraph && this.decoding.hasEdges && pass > 0 && pass <= this.decoding.passes;
    this.words.classList.toggle("linked", drawn);
    let note = this.graph.note;
    if (this.viewer.showGraph && !this.decoding.hasEdges) {
      note = "The edges of this decoding were not recorded: generate with --edges, and with a decoder that has a graph";
    } else if (this.viewer.showGraph && this.decoding.edgesLeftOut && note) {
      note += "; the others were left out to keep the page small";
    }
    if (note && this.decoding.hasEdges && this.inspected === null) note += ". Point at a token to see its own";
    this.note.hidden = !this.viewer.showGraph;
    this.note.textContent = note ? `${note}.` : " ";
  }

  #explain() {
    const position = this.inspected;
    this.tip.hidden = position === null;
    if (position === null) return;
    const { decoding } = this;
    const { pass } = this.viewer.clock;
    const masked = decoding.isMasked(position, pass);
    const name = masked ? "Masked" : decoding.quote(position);
    const lines = decoding.why(position, pass).map((line) => el("p", {}, line));
    const title = el("strong", {}, `${name} · position ${position - decoding.start + 1}`);
    this.tip.replaceChildren(title, ...lines, ...runnersUp(decoding, position, masked));
    this.viewer.say(this.tip.textContent);
    const frame = this.words.getBoundingClientRect();
    const box = this.panel.spans.get(position).getBoundingClientRect();
    const left = Math.max(0, Math.min(box.left - frame.left, frame.width - this.tip.offsetWidth));
    const below = box.bottom - frame.top + 8;
    this.tip.style.transform = `translate(${Math.round(left)}px, ${Math.round(below)}px)`;
  }
}
