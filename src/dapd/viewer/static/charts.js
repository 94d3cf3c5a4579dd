// Charts on the common clock: the heat map of one decoding, and curves of all of them. A click seeks.

import { stepColour } from "./colour.js";
import { el } from "./dom.js";

export const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]]; // dashes of the lines, lane by lane
const EDGE = { left: 34, right: 10, top: 8, bottom: 20 };

/** A round distance between marks so that about `most` of them fit. */
function stride(span, most) {
  const raw = Math.max(1, span / most);
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= raw);
}

/** The marks of an even axis. */
function even(top) {
  const step = stride(top, 4);
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, i) => i * step);
}

const STEEP = 8; // how many times the middle value the largest must be for a logarithmic scale

/** Whether the largest value would flatten all others on an even scale. */
function isSteep(values) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length > 1 && ordered.at(-1) > STEEP * Math.max(1, ordered[ordered.length >> 1]);
}

/** The marks of a logarithmic axis: 0, 1, 10, 100, ... and the largest value, where it is clear of the others. */
function powers(top) {
  const marks = [0];
  for (let value = 1; value <= top; value *= 10) marks.push(value);
  if (top >= 2 * marks.at(-1)) marks.push(top);
  return marks;
}

class Chart {
  steep = false;

  constructor(clock, title, hint) {
    this.clock = clock;
    this.title = title;
    this.canvas = el("canvas", { role: "img", "aria-label": title });
    this.cursor = el("div", { class: "cursor", "aria-hidden": "true" });
    this.hint = hint;
    this.small = el("small", {}, ` ${hint}`);
    const caption = el("figcaption", {}, title, this.small);
    this.element = el("figure", { class: "chart" }, caption, el("div", { class: "plot" }, this.canvas, this.cursor));
    const seek = (event) => {
      const box = this.canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - EDGE.left) / (box.width - EDGE.left - EDGE.right);
      clock.seek(share * this.span);
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      seek(event);
    });
    this.canvas.addEventListener("pointermove", (event) => event.buttons && seek(event));
  }

  get span() {
    return Math.max(1, this.clock.last);
  }

  x(pass) {
    return EDGE.left + (pass / this.span) * (this.width - EDGE.left - EDGE.right);
  }

  y(share) {
    return this.height - EDGE.bottom - share * (this.height - EDGE.top - EDGE.bottom);
  }

  /** The height of a value as a share of the axis; the logarithm is that of 1 more, so that 0 is at the bottom. */
  share(value, top) {
    return this.steep ? Math.log1p(value) / Math.log1p(top) : value / top;
  }

  move() {
    this.cursor.style.transform = `translateX(${this.x(this.clock.pass)}px)`;
  }

  /** Size the canvas, draw the axes and hand over to the chart; `top` is the largest value of the y axis. */
  begin(top, flip = false) {
    const { clientWidth, clientHeight } = this.canvas;
    if (!clientWidth) return null;
    [this.width, this.height] = [clientWidth, clientHeight];
    const ratio = devicePixelRatio || 1;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    const context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(this.element);
    context.font = `11px ${style.fontFamily}`;
    this.#axes(context, top, flip, style.getPropertyValue("--quiet"), style.getPropertyValue("--line"));
    return context;
  }

  #axes(context, top, flip, ink, line) {
    context.strokeStyle = line;
    context.fillStyle = ink;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const value of this.steep ? powers(top) : even(top)) {
      const y = Math.round(this.y(flip ? 1 - value / top : this.share(value, top))) + 0.5;
      context.fillText(String(value), EDGE.left - 6, y);
      context.beginPath();
      context.moveTo(EDGE.left, y);
      context.lineTo(this.width - EDGE.right, y);
      context.stroke();
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const every = stride(this.span, Math.max(2, this.width / 70));
    for (let pass = 0; pass <= this.span; pass += every) {
      context.fillText(String(pass), this.x(pass), this.height - EDGE.bottom + 6);
    }
  }
}

/** Position against pass: a token's row is filled from the pass that decided it. */
export class HeatMap extends Chart {
  constructor(clock, decoding) {
    super(clock, "When each position was decided", "position down, forward pass across");
    this.decoding = decoding;
  }

  draw() {
    const { slots, born, passes } = this.decoding;
    const context = this.begin(slots.length, true);
    if (!context) return;
    const tall = (this.height - EDGE.top - EDGE.bottom) / Math.max(1, slots.length);
    const end = this.x(passes);
    slots.forEach((position, row) => {
      const pass = born.get(position);
      if (!pass) return;
      context.fillStyle = stepColour((pass - 1) / Math.max(1, this.span - 1));
      context.fillRect(this.x(pass - 1), EDGE.top + row * tall, end - this.x(pass - 1), Math.max(0.75, tall + 0.15));
    });
    const label = `Heat map: ${slots.length} positions over ${passes} forward passes of ${this.decoding.label}`;
    this.canvas.setAttribute("aria-label", label);
    this.move();
  }
}

/** One number per pass for every decoding, as lines or as steps. */
export class Curves extends Chart {
  constructor(clock, decodings, { title, hint, value, stepped }) {
    super(clock, title, hint);
    this.decodings = decodings;
    this.value = value;
    this.stepped = stepped;
  }

  draw() {
    const series = this.decodings.map((decoding) => decoding.records.map(this.value));
    const top = Math.max(1, ...series.map((values) => values.reduce((a, b) => Math.max(a, b), 0)));
    this.steep = Boolean(this.stepped) && isSteep(series.flat());
    this.small.textContent = ` ${this.hint}${this.steep ? ", logarithmic scale" : ""}`;
    const context = this.begin(top);
    if (!context) return;
    context.lineWidth = 2;
    context.lineJoin = "round";
    series.forEach((values, number) => {
      context.strokeStyle = context.fillStyle = this.decodings[number].ink;
      context.setLineDash(DASHES[number % DASHES.length]);
      this.#line(context, values, top);
      context.setLineDash([]);
      context.beginPath();
      context.arc(this.x(values.length), this.y(this.share(values.at(-1) ?? 0, top)), 3.5, 0, 7);
      context.fill();
    });
    const ends = this.decodings.map((d, i) => `${d.label}: largest ${Math.max(0, ...series[i])}, ${d.passes} passes`);
    this.canvas.setAttribute("aria-label", `${this.title}. ${ends.join("; ")}`);
    this.move();
  }

  #line(context, values, top) {
    context.beginPath();
    context.moveTo(this.x(0), this.y(this.stepped ? this.share(values[0] ?? 0, top) : 0));
    values.forEach((value, i) => {
      const y = this.y(this.share(value, top));
      if (this.stepped) context.lineTo(this.x(i), y);
      context.lineTo(this.x(i + 1), y);
    });
    context.stroke();
  }
}
