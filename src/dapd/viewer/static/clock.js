// The common clock: forward passes. Everything that is shown follows `pass`.

export class Clock extends EventTarget {
  constructor() {
    super();
    this.pass = 0;
    this.last = 0;
    this.rate = 10; // passes a second
    this.playing = false;
    this.due = 0;
  }

  /** Let the clock run up to pass `last`: its end is that of the slowest trace. */
  extend(last) {
    if (last <= this.last) return;
    this.last = last;
    this.#tell("extend");
  }

  /** Go back to the state before any trace. */
  reset() {
    this.pause();
    this.pass = this.last = 0;
    this.#tell("extend");
    this.#tell("pass");
  }

  seek(pass) {
    const next = Math.max(0, Math.min(this.last, Math.round(pass)));
    if (next === this.pass) return;
    this.pass = next;
    this.#tell("pass");
  }

  play() {
    if (this.playing || this.last === 0) return;
    if (this.pass >= this.last) this.seek(0);
    this.playing = true;
    this.due = performance.now() + 1000 / this.rate;
    this.#tell("playing");
    requestAnimationFrame((now) => this.#frame(now));
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.#tell("playing");
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  #frame(now) {
    if (!this.playing) return;
    const interval = 1000 / this.rate;
    if (now >= this.due) {
      // A slow frame skips passes rather than slowing the clock; a tab that was hidden does not race to catch up.
      const passes = Math.min(this.rate, 1 + Math.floor((now - this.due) / interval));
      this.due = Math.max(now, this.due + passes * interval);
      this.seek(this.pass + passes);
    }
    if (this.pass >= this.last) this.pause();
    else requestAnimationFrame((later) => this.#frame(later));
  }

  #tell(what) {
    this.dispatchEvent(new Event(what));
  }
}
