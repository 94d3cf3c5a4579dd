// The dependency graph of a pass, drawn over the text: links from what was held back to what was chosen.

import { prefersDark } from "./colour.js";
import { el } from "./dom.js";

const MOST = 800; // links drawn at once; more of them would be a grey sheet

export class GraphLayer {
  constructor(decoding, panel) {
    this.decoding = decoding;
    this.panel = panel;
    this.element = el("canvas", { class: "graph", "aria-hidden": "true" });
    this.boxes = null;
    this.note = "";
  }

  /** The places of the tokens are measured again before the next drawing. */
  moved() {
    this.boxes = null;
  }

  /** Draw the graph of a pass; with a focus, the links of that position alone. Without `on`, only the focus counts. */
  draw(pass, focus, on) {
    const graph = on || focus !== null ? this.decoding.graph(pass) : null;
    this.note = "";
    const wanted = graph ? this.#links(graph, focus) : [];
    if (!wanted.length && !this.drawn) return;
    const context = this.#clear();
    this.drawn = wanted.length > 0;
    if (!this.drawn) return;
    this.#measure();
    const dark = prefersDark();
    const alpha = focus !== null ? 0.85 : Math.max(0.08, Math.min(0.6, 40 / wanted.length));
    context.lineWidth = focus !== null ? 1.6 : 1;
    context.strokeStyle = dark ? `rgb(255 190 120 / ${alpha})` : `rgb(176 70 10 / ${alpha})`;
    context.beginPath();
    for (const [from, to] of wanted) this.#arc(context, from, to);
    context.stroke();
  }

  #links(graph, focus) {
    const chosen = new Set(graph.chosen);
    if (focus !== null) {
      if (!graph.nodes.includes(focus)) return [];
      const others = chosen.has(focus) ? graph.nodes.filter((node) => !chosen.has(node)) : graph.chosen;
      return others
        .filter((other) => (chosen.has(focus) ? graph.has(other, focus) : graph.has(focus, other)))
        .map((other) => [focus, other]);
    }
    const links = [];
    for (const node of graph.nodes) {
      if (chosen.has(node)) continue;
      for (const other of graph.chosen) if (graph.has(node, other)) links.push([node, other]);
    }
    const every = Math.ceil(links.length / MOST);
    const shown = links.filter((_, i) => i % every === 0);
    const all = `${graph.count} edges${graph.complete ? "" : " kept in the page"}`;
    this.note = `${links.length} of the ${all} lead to a chosen token`;
    if (every > 1) this.note += `; ${shown.length} of them are drawn`;
    return shown;
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
