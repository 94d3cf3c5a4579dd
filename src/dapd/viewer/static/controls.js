// Play, the slider, the speed, the graph switch, and the keys.

import { el, plural, saveAs } from "./dom.js";
import { picture } from "./picture.js";

const RATES = [1, 2, 4, 8, 16, 32, 64];
const SECONDS = 10; // what a whole decoding takes at the speed that is chosen first

export class Controls {
  constructor(viewer) {
    this.viewer = viewer;
    const { clock } = viewer;
    this.play = el("button", { type: "button", class: "play", "aria-keyshortcuts": "Space" });
    this.slider = el("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Forward pass" });
    this.count = el("output", { "aria-hidden": "true" });
    const options = RATES.map((rate) => el("option", { value: rate }, plural(rate, "pass") + "/s"));
    this.speed = el("select", { "aria-label": "Speed" }, ...options);
    this.graph = el("input", { type: "checkbox", "aria-keyshortcuts": "g" });
    const label = el("label", {}, this.graph, el("span", { class: "more" }, "dependency"), "graph");
    const shot = { type: "button", class: "shot", "aria-label": "Save the text as a picture" };
    this.shot = el("button", shot, "picture");
    const keys = el("p", { class: "keys" }, "space play · ← → step · home end · g graph · , . look at a token");
    this.element = el(
      "nav", { class: "controls", "aria-label": "Playback" },
      this.play, this.slider, this.count, this.speed, label, this.shot, keys,
    );
    this.play.addEventListener("click", () => clock.toggle());
    this.slider.addEventListener("input", () => this.#take(Number(this.slider.value)));
    this.speed.addEventListener("change", () => (clock.rate = Number(this.speed.value)));
    this.graph.addEventListener("change", () => viewer.graph(this.graph.checked));
    this.shot.addEventListener("click", () => {
      if (viewer.lanes.length) saveAs(`pass-${clock.pass}.svg`, "image/svg+xml", picture(viewer));
    });
    for (const what of ["pass", "playing", "extend"]) clock.addEventListener(what, () => this.update());
    document.addEventListener("keydown", (event) => this.#key(event));
    this.update();
  }

  /** A speed at which the whole takes about ten seconds. */
  pace() {
    const wanted = this.viewer.clock.last / SECONDS;
    const rate = RATES.find((one) => one >= wanted) ?? RATES.at(-1);
    this.viewer.clock.rate = rate;
    this.speed.value = String(rate);
  }

  update() {
    const { clock } = this.viewer;
    this.slider.max = String(clock.last);
    this.slider.value = String(clock.pass);
    this.slider.style.setProperty("--share", `${clock.last ? (100 * clock.pass) / clock.last : 0}%`);
    this.slider.setAttribute("aria-valuetext", `pass ${clock.pass} of ${clock.last}`);
    this.count.textContent = `${clock.pass} / ${clock.last}`;
    this.play.textContent = clock.playing ? "❚❚" : "▶";
    this.play.setAttribute("aria-label", clock.playing ? "Pause" : "Play");
  }

  #take(pass) {
    this.viewer.follow = false;
    this.viewer.clock.pause();
    this.viewer.clock.seek(pass);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches?.("textarea, input:not([type=range], [type=checkbox])")) return; // the user is writing
    const { clock } = this.viewer;
    const name = event.target.tagName;
    const act = {
      " ": () => clock.toggle(),
      ArrowRight: () => this.#take(clock.pass + 1),
      ArrowLeft: () => this.#take(clock.pass - 1),
      Home: () => this.#take(0),
      End: () => this.#take(clock.last),
      g: () => this.graph.click(),
    }[event.key];
    // The select and the parts that fold keep their own keys; the slider and the rest of the page share them.
    const own = event.key === " " ? name === "BUTTON" || event.target === this.graph : false;
    if (!act || own || name === "SELECT" || name === "SUMMARY") return;
    event.preventDefault();
    act();
  }
}
