// The page: lanes side by side on a common clock of forward passes, the controls, the curves. `new Viewer(root)` for
// live records (`lane = viewer.lane(head)`, `lane.add(record)`), `mount(root, page)` for those of a file.

import { followAddress } from "./address.js";
import { Curves, DASHES } from "./charts.js";
import { Clock } from "./clock.js";
import { DOUBTS, stepColour } from "./colour.js";
import { Controls } from "./controls.js";
import { el, plural } from "./dom.js";
import { Lane } from "./lane.js";
import { promptBox, settingsBox } from "./facts.js";
import { dress } from "./text.js";

export class Viewer {
  constructor(root, { title = "Decoding" } = {}) {
    this.clock = new Clock();
    this.lanes = [];
    this.showGraph = false;
    this.loading = false;
    this.follow = true; // live: stay at the newest pass until the reader moves
    this.scale = 1;
    this.waiting = 0; // id of the animation frame that was asked for; 0: none
    this.controls = new Controls(this);
    this.status = el("p", { class: "sr", role: "status", "aria-live": "polite" });
    this.lead = el("p", { class: "lead" });
    this.facts = el("div", { class: "facts" });
    this.row = el("div", { class: "lanes" });
    this.legend = el("p", { class: "legend" });
    const decodings = [];
    this.decodings = decodings;
    this.curves = [
      new Curves(this.clock, decodings, {
        title: "Segments", hint: "runs of decided tokens", value: (record) => record.segments,
      }),
      new Curves(this.clock, decodings, {
        title: "Positions decided in each pass", hint: "the end of the text included", stepped: true,
        value: (record) => record.positions.length,
      }),
    ];
    this.charts = el("div", { class: "curves" }, ...this.curves.map((curve) => curve.element));
    root.replaceChildren(
      el("header", {}, el("h1", {}, title), this.lead), this.controls.element,
      this.facts, this.legend, this.row, this.charts, this.status,
    );
    this.#follow(root);
  }

  /** Start over, without lanes and with the clock at its start. */
  reset() {
    this.lanes.length = this.decodings.length = 0;
    this.row.replaceChildren();
    this.follow = true;
    this.clock.reset();
    this.refresh();
  }

  /** Add a lane for a new decoding; its records are added to the lane. */
  lane(head) {
    const lane = new Lane(this, head);
    lane.decoding.twin = this.decodings.filter(({ colour }) => colour === lane.decoding.colour).length;
    this.lanes.push(lane);
    this.decodings.push(lane.decoding);
    this.row.append(lane.element);
    if (lane.isLong) this.row.before(this.charts);
    if (!this.loading) this.refresh();
    return lane;
  }

  /** Note that a lane has one more pass. Live, the picture follows; costly work waits for the next frame. */
  grew(lane, pass) {
    this.clock.extend(pass);
    if (this.loading) return;
    lane.panel.paint(this.scale, lane.decoding.changed(pass));
    if (this.follow) this.clock.seek(this.clock.last);
    lane.show(this.clock.pass);
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = 0;
      const scale = 2 ** Math.ceil(Math.log2(Math.max(16, this.clock.last)));
      if (scale !== this.scale) {
        this.scale = scale;
        this.#explain();
        this.lanes.forEach((one) => one.paint());
      }
      this.redraw();
    });
  }

  load(traces) {
    this.loading = true;
    for (const { head, records } of traces) {
      const lane = this.lane(head);
      records.forEach((record) => lane.add(record));
    }
    this.loading = false;
    this.follow = false;
    this.end();
  }

  /** Note that no further pass will come: the colours now reach from the first pass to the last. */
  end() {
    cancelAnimationFrame(this.waiting);
    this.waiting = 0;
    this.scale = Math.max(1, this.clock.last);
    this.controls.pace();
    this.refresh();
  }

  /** Draw everything again. */
  refresh() {
    const prompts = new Set(this.lanes.map((lane) => lane.prompt));
    this.facts.replaceChildren(
      ...(prompts.size > 1 ? [el("p", { class: "notice" }, "These decodings answer different prompts.")] : []),
      ...promptBox(this.lanes), settingsBox(this.lanes),
    );
    const told = ({ label, passes, written }) =>
      `${label}: ${plural(passes, "forward pass")} for ${plural(written[passes], "token")}`;
    this.lead.textContent = this.decodings.map(told).join(" · ");
    this.#explain();
    this.lanes.forEach((lane) => lane.paint());
    this.redraw();
    this.show();
  }

  redraw() {
    this.lanes.forEach((lane) => lane.redraw());
    this.curves.forEach((curve) => curve.draw());
  }

  show() {
    const { pass } = this.clock;
    this.lanes.forEach((lane) => lane.show(pass));
    this.curves.forEach((curve) => curve.move());
    if (this.clock.playing) return;
    this.say(this.lanes.map((lane) => lane.panel.element.getAttribute("aria-label")).join(". "));
  }

  graph(on) {
    this.showGraph = on;
    this.show();
  }

  /** Announce a text to screen readers, once the reader has stopped moving. */
  say(text) {
    clearTimeout(this.saying);
    this.saying = setTimeout(() => (this.status.textContent = text), 400);
  }

  /** The legend: what stands for which lane, pass and kind of token. */
  #explain() {
    const keys = this.lanes.length > 1 ? this.decodings.map((decoding, i) => this.#key(decoding, i)) : [];
    this.legend.replaceChildren(...keys, this.#scale(), ...this.#looks());
  }

  /** The legend's entry of a lane: its line in the colour and dashes of the curves. */
  #key(decoding, number) {
    const canvas = el("canvas", { class: "stroke", width: 56, height: 8, "aria-hidden": "true" });
    const context = canvas.getContext("2d");
    context.strokeStyle = decoding.ink;
    context.lineWidth = 5;
    context.setLineDash(DASHES[number % DASHES.length].map((length) => 2 * length));
    context.moveTo(0, 4);
    context.lineTo(56, 4);
    context.stroke();
    return el("span", {}, canvas, decoding.label);
  }

  #scale() {
    const ramp = el("i", { class: "ramp", "aria-hidden": "true" });
    const stops = Array.from({ length: 13 }, (_, i) => stepColour(i / 12));
    ramp.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
    return el("span", {}, "early (pass 1)", ramp, `late (pass ${this.scale})`);
  }

  /** Every other way in which a token is drawn, each as an example. */
  #looks() {
    const limits = DOUBTS.map(([, below]) => below).reverse();
    const key = (what, ...tokens) => el("span", {}, ...tokens, what);
    const token = (look, confidence) =>
      dress(el("i", { class: `t ${look}`, "aria-hidden": "true" }, "abc"), 0, confidence);
    return [
      key("masked", token("m", 1)),
      key("decided in this pass", token("new", 1)),
      key(`confidence below ${limits.join(", below ")}`, ...limits.map((below) => token("", below - 0.01))),
    ];
  }

  #follow(root) {
    this.clock.addEventListener("pass", () => this.show());
    this.clock.addEventListener("playing", () => this.show());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.refresh());
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return;
      width = entry.contentRect.width;
      this.redraw();
    }).observe(root);
  }
}

/** A page of finished traces. */
export function mount(root, { title, traces }) {
  const viewer = new Viewer(root, { title });
  viewer.load(traces);
  followAddress(viewer.clock);
  return viewer;
}
