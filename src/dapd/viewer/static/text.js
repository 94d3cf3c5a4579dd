// The text of one decoding after a pass: decided tokens in colour, masks as quiet boxes. A box already holds its token,
// unseen and unread, so that lines stay where they are and a pass costs no layout.

import { doubt, prefersDark, tokenColours } from "./colour.js";
import { el, visible } from "./dom.js";

/** A token's text as it is shown, and the line breaks at its end. */
function split(text) {
  const [breaks] = text.match(/\n*$/);
  const rest = text.slice(0, text.length - breaks.length);
  return [rest === "" && breaks ? "" : visible(rest), breaks];
}

/** Give a token its look: colour by the share of the passes before it, an underline where the model was not sure. */
export function dress(span, share, confidence, dark = prefersDark()) {
  const colours = tokenColours(share, dark);
  span.style.setProperty("--back", colours.back);
  span.style.setProperty("--front", colours.front);
  const look = doubt(confidence);
  if (look) span.classList.add(look);
  return span;
}

const UNBROKEN = 20; // characters; only a longer token may be broken into lines
const GLUED = /^[\p{L}\p{N}\p{P}\p{M}]/u; // the beginning of a token that continues the word before it
const UNSPACED = /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;

export class TextPanel {
  constructor(decoding) {
    this.decoding = decoding;
    this.spans = new Map();
    this.shown = 0;
    this.fresh = [];
    this.element = el("div", { class: "text", tabindex: "0", role: "group" });
    const slots = new Set(decoding.slots);
    for (let position = decoding.start; position < decoding.length; position++) {
      const isSlot = slots.has(position);
      const look = isSlot ? { class: "t m", "data-p": position, "aria-hidden": "true" } : { class: "given" };
      const span = el("span", look);
      if (isSlot) {
        this.spans.set(position, span);
        // A line may end before a token. If it could only end after the token's space, a sliver would be left there.
        this.element.append(el("wbr"));
      } else span.textContent = decoding.given?.[position] ?? "▪";
      this.element.append(span);
    }
  }

  /** Put into the masks the tokens that they will hold. */
  foretell(positions) {
    for (const position of positions) {
      const span = this.spans.get(position);
      if (this.decoding.isEnd.has(position)) {
        span.classList.add("eos");
        span.textContent = "·";
      } else {
        const [text, breaks] = split(this.decoding.text.get(position));
        span.textContent = text;
        span.classList.toggle("long", text.length > UNBROKEN);
        if (GLUED.test(text) && !UNSPACED.test(text)) span.previousElementSibling.remove();
        if (breaks) {
          span.classList.add("nl");
          span.after(breaks); // outside of the box, which would otherwise reach into the next line
        }
      }
    }
  }

  /** Colour the tokens on a scale of `scale` passes. */
  paint(scale, positions = this.decoding.born.keys()) {
    const dark = prefersDark();
    for (const position of positions) {
      const share = (this.decoding.born.get(position) - 1) / Math.max(1, scale - 1);
      dress(this.spans.get(position), share, this.decoding.confidence.get(position), dark);
    }
  }

  /** Show the text after a pass; only what changed since the last one is touched. */
  show(pass) {
    const to = Math.min(pass, this.decoding.passes);
    for (; this.shown < to; this.shown++) this.#mask(this.shown + 1, false);
    for (; this.shown > to; this.shown--) this.#mask(this.shown, true);
    this.fresh.forEach((span) => span.classList.remove("new"));
    this.fresh = pass <= this.decoding.passes ? this.decoding.changed(pass).map((at) => this.spans.get(at)) : [];
    this.fresh.forEach((span) => span.classList.add("new"));
  }

  #mask(pass, on) {
    for (const position of this.decoding.changed(pass)) {
      const span = this.spans.get(position);
      span.classList.toggle("m", on);
      if (on) span.setAttribute("aria-hidden", "true");
      else span.removeAttribute("aria-hidden");
    }
  }
}
