// The dependency graph of a pass, drawn over the text: links from positions that were held back to the chosen ones.

import { prefersDark } from "./colour.js";
import { el, plural } from "./dom.js";

const MOST = 24; // links drawn at once; more of them would be a tangle

/** Links, the shortest first, because a trace does not say how strong an edge is. */
const sorted = (links) => links.sort(([a, b], [c, d]) => Math.abs(a - b) - Math.abs(c - d));

export class GraphLayer {
  constructor(decoding, panel) {
    this.decoding = decoding;
    this.panel = panel;
    this.element = el("canvas", { class: "graph", "aria-hidden": "true" });
    this.boxes = null;
    this.note = "";
  }

  /** Have the places of the tokens measured again before the next drawing. */
  moved() {
    this.boxes = null;
  }

  /** Draw the links of the position at `focus`, or else, where `on`, the nearest few of the pass. */
  draw(pass, focus, on) {
    const graph = on || focus !== null ? this.decoding.graph(pass) : null;
    this.note = "";
    const own = focus !== null && graph?.nodes.includes(focus);
    const wanted = !graph ? [] : own ? this.#linksOf(graph, focus) : on ? this.#nearest(graph) : [];
    this.links = wanted;
    if (!wanted.length && !this.drawn) return;
    const context = this.#clear();
    this.drawn = wanted.length > 0;
    if (!this.drawn) return;
    this.#measure();
    const dark = prefersDark();
    const alpha = own ? 0.85 : 0.6;
    context.lineWidth = own ? 1.6 : 1.2;
    context.strokeStyle = dark ? `rgb(255 190 120 / ${alpha})` : `rgb(176 70 10 / ${alpha})`;
    context.beginPath();
    for (const [from, to] of wanted) this.#arc(context, from, to);
    context.stroke();
  }

  /** The links from a position to the chosen ones, or, for a chosen one, to those that it keeps out. */
  #linksOf(graph, focus) {
    const isChosen = graph.chosen.includes(focus);
    const others = isChosen
      ? this.#heldBack(graph).filter((node) => graph.has(node, focus))
      : graph.chosen.filter((other) => graph.has(focus, other));
    const links = sorted(others.map((other) => [focus, other]));
    const what = isChosen ? "lead from held-back tokens to this one" : "lead from this token to chosen ones";
    return this.#few(links, `${this.#count(graph)}, of which ${links.length} ${what}`);
  }

  /** For each held-back position the link to the nearest chosen one, the shortest first. */
  #nearest(graph) {
    let count = 0;
    const links = this.#heldBack(graph).flatMap((node) => {
      const own = sorted(graph.chosen.filter((other) => graph.has(node, other)).map((other) => [node, other]));
      count += own.length;
      return own.slice(0, 1);
    });
    const told = `${this.#count(graph)}, of which ${count} lead from a held-back token to a chosen one`;
    return this.#few(sorted(links), count > links.length ? `${told}; drawn is the nearest of each token` : told);
  }

  #few(links, told) {
    this.note = links.length > MOST ? `${told}, of these the ${MOST} shortest` : told;
    return links.slice(0, MOST);
  }

  #heldBack(graph) {
    const chosen = new Set(graph.chosen);
    return graph.nodes.filter((node) => !chosen.has(node));
  }

  #count(graph) {
    return `${plural(graph.count, "edge")} in all${graph.complete ? "" : " that the page keeps"}`;
  }

  #measure() {
    if (this.boxes) return;
    const frame = this.element.getBoundingClientRect();
    this.boxes = new Map();
    for (const [position, span] of this.panel.spans) {
      const box = span.getClientRects()[0] ?? span.getBoundingClientRect();
      this.boxes.set(position, [box.left - frame.left + box.width / 2, box.top - frame.top + 3, box.height]);
    }
  }

  #arc(context, from, to) {
    const [x1, y1, height] = this.boxes.get(from);
    const [x2, y2] = this.boxes.get(to);
    const lift = y1 === y2 ? Math.min(46, 10 + Math.abs(x2 - x1) / 8) : height * 0.7;
    context.moveTo(x1, y1);
    context.quadraticCurveTo((x1 + x2) / 2, Math.min(y1, y2) - lift, x2, y2);
  }

  #clear() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const ratio = devicePixelRatio || 1;
    const context = this.element.getContext("2d");
    if (this.element.width !== Math.round(width * ratio) || this.element.height !== Math.round(height * ratio)) {
      this.element.width = Math.round(width * ratio);
      this.element.height = Math.round(height * ratio);
      this.boxes = null;
    }
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return context;
  }
}
