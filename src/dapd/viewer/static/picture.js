// The text of every lane as it stands, as an SVG picture with everything where the page drew it.

import { DOUBTS, stepColour } from "./colour.js";

const GAP = 16;
const STOPS = 24; // of the colour scale under the text

function shape(name, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** The boxes of the lines of an element's text. */
function lineBoxes(element) {
  const range = document.createRange();
  range.selectNodeContents(element);
  return [...range.getClientRects()];
}

/** The boxes of an element with the text in each: it may reach over several lines. */
function pieces(element, boxes = [...element.getClientRects()]) {
  const node = element.firstChild;
  if (!node || boxes.length < 2) return boxes.map((box) => [box, element.textContent]);
  const texts = boxes.map(() => "");
  const range = document.createRange();
  for (let i = 0; i < node.length; i++) {
    range.setStart(node, i);
    range.setEnd(node, i + 1);
    const { top, height } = range.getBoundingClientRect();
    const line = boxes.findIndex((box) => box.top <= top + height / 2 && top + height / 2 <= box.bottom);
    texts[Math.max(0, line)] += node.data[i];
  }
  return boxes.map((box, i) => [box, texts[i]]);
}

/** Text in a box, from its left and in the middle of its height. */
function words(box, text, style, at, more = {}) {
  return shape("text", {
    x: at.x(box.left + parseFloat(style.paddingLeft)), y: at.y(box.top + box.height / 2), fill: style.color,
    "xml:space": "preserve", "dominant-baseline": "central", "font-size": style.fontSize, ...more,
  }, text);
}

/** The attributes that make a token as wide as its box, whatever fonts the picture is viewed with. */
function stretched(box, text, style) {
  const width = box.width - 2 * parseFloat(style.paddingLeft);
  return width > 0 && text.trim() ? { textLength: width.toFixed(1), lengthAdjust: "spacingAndGlyphs" } : {};
}

/** The underline of a token that the model was not sure of: dots, or waves where it was in doubt. */
function underline(box, style, at) {
  const [x, y, width] = [at.x(box.left), at.y(box.bottom) - 4, Math.floor(box.width / 4) * 4];
  const isWavy = style.textDecorationStyle === "wavy";
  const d = isWavy ? `M${x} ${y}${"q1 -2 2 0t2 0".repeat(width / 4)}` : `M${x} ${y}h${width}`;
  return shape("path", { d, fill: "none", stroke: style.color, "stroke-dasharray": isWavy ? "none" : "2 2" });
}

function token(span, at, ink) {
  const style = getComputedStyle(span);
  const isMasked = span.classList.contains("m");
  const mark = span.classList.contains("nl") ? "↵" : "";
  return pieces(span).flatMap(([box, text]) => [
    shape("rect", {
      x: at.x(box.left), y: at.y(box.top), width: box.width, height: box.height, rx: 4, fill: style.backgroundColor,
      ...(span.classList.contains("new") ? { stroke: ink, "stroke-width": 2 } : {}),
    }),
    ...(isMasked ? [] : [words(box, text + mark, style, at, stretched(box, text + mark, style))]),
    ...(!isMasked && style.textDecorationLine === "underline" ? [underline(box, style, at)] : []),
  ]);
}

function drawLane(lane, at, ink) {
  const title = lane.element.querySelector("h2");
  const { left, top, height } = title.getBoundingClientRect();
  const place = { x: at.x(left), y: at.y(top + height / 2), fill: lane.decoding.ink };
  return [
    shape("text", { ...place, "font-weight": 600, "dominant-baseline": "central" }, lane.decoding.label),
    ...[lane.counts, ...lane.panel.element.querySelectorAll(".given")].flatMap((element) =>
      pieces(element, lineBoxes(element)).map(([box, text]) => words(box, text, getComputedStyle(element), at))),
    ...[...lane.panel.spans.values()].flatMap((span) => token(span, at, ink)),
  ];
}

/** Draw the legend of the colours and underlines. */
function drawScale(last, left, top, ink) {
  const label = (x, text, y = top + 10) => shape("text", { x, y, fill: ink, "font-size": 12 }, text);
  const [[, waves], [, dots]] = DOUBTS;
  const doubts = label(left, `dots: confidence below ${dots}, waves: below ${waves}`, top + 28);
  const ramp = Array.from({ length: STOPS }, (_, i) =>
    shape("rect", { x: left + 45 + 4 * i, y: top, width: 4.5, height: 12, fill: stepColour(i / (STOPS - 1)) }));
  return [label(left, "pass 1"), ...ramp, label(left + 51 + 4 * STOPS, `pass ${last}`), doubts];
}

/** The lanes of a viewer as SVG text. Lanes that stand side by side do so in the picture; charts are left out. */
export function picture({ lanes, row, scale }) {
  const style = getComputedStyle(lanes[0].element);
  const frame = row.getBoundingClientRect();
  const shapes = [];
  let bottom = 0;
  const tops = new Map(); // top of a row of lanes on the page -> in the picture
  for (const lane of lanes) {
    const { top } = lane.element.getBoundingClientRect();
    if (!tops.has(top)) tops.set(top, bottom);
    const start = tops.get(top);
    const text = lane.words.getBoundingClientRect();
    const head = lane.bar.getBoundingClientRect().bottom; // a chart may stand between the counts and a long text
    const gap = Math.max(0, text.top - head - GAP);
    const at = {
      x: (x) => x - frame.left,
      y: (y) => y - top + start - (y >= text.top ? gap : 0),
    };
    shapes.push(...drawLane(lane, at, style.color));
    bottom = Math.max(bottom, at.y(text.bottom) + GAP);
  }
  const height = Math.ceil(bottom + 30 + GAP);
  const root = shape("svg", {
    width: Math.ceil(frame.width), height, viewBox: `0 0 ${Math.ceil(frame.width)} ${height}`,
    "font-family": style.fontFamily, "font-size": style.fontSize,
  });
  const ground = shape("rect", { width: "100%", height: "100%", fill: style.backgroundColor });
  root.append(ground, ...shapes, ...drawScale(scale, GAP, bottom, style.color));
  return new XMLSerializer().serializeToString(root);
}
