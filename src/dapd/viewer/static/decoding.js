// The state of one decoding, built from a trace's head and its records, one by one: from a file or as they arrive.

import { lineColour } from "./colour.js";

const BITS = new Uint8Array(256).map((_, byte) => byte.toString(2).replaceAll("0", "").length);

function bytesOf(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

const bit = (bytes, index) => (bytes[index >> 3] >> (index & 7)) & 1;

export class Decoding {
  constructor(head) {
    this.about = head.about ?? {};
    this.label = head.label ?? this.about.strategy?.name ?? "decoder";
    this.colour = head.colour ?? "#888888";
    this.twin = 0; // number of earlier lanes with the same colour
    this.eosId = head.eos_id;
    this.eotId = head.eot_id ?? null;
    this.slots = head.slots;
    this.isOpenEnded = head.open_ended !== false; // if not, EOS is a token like any other
    this.start = !this.isOpenEnded ? 0 : Math.min(head.start ?? 0, head.slots[0] ?? 0);
    this.length = head.canvas.length;
    this.given = head.texts ?? null;
    this.records = [];
    this.born = new Map(); // position -> pass that decided it
    this.text = new Map();
    this.confidence = new Map();
    this.top = new Map(); // position -> its likeliest tokens when it was decided, [token, log-probability, text]
    this.isEnd = new Set(); // positions that hold EOS
    this.graphs = new Map(); // pass -> graph, unpacked when first asked for
    this.decided = [0]; // positions decided after each pass
    this.written = [0]; // tokens of the text after each pass: those that are decided and lie before its end
    this.region = head.start ?? 0; // where the text may end: a mask in the prompt may hold EOS too
    this.end = Infinity; // after the first end of a turn, or at the first EOS
    head.canvas.forEach((token, position) => this.#ends(token, position));
    this.hasEdges = false;
    this.hasHeld = false;
    this.edgesLeftOut = false;
  }

  /** The colour of this decoding's lines, which no other lane has with the same dashes. */
  get ink() {
    return lineColour(this.colour, this.twin);
  }

  get passes() {
    return this.records.length;
  }

  get done() {
    return this.decided[this.passes] === this.slots.length;
  }

  /** Take in one record, as the trace file has it or with packed edges. */
  add(record) {
    this.records.push(record);
    const pass = this.passes;
    record.positions.forEach((position, i) => {
      this.born.set(position, pass);
      this.text.set(position, record.texts ? record.texts[i] : `${record.tokens[i]} `);
      this.confidence.set(position, record.confidences[i]);
      if (record.top) this.top.set(position, record.top[i]);
      if (record.tokens[i] === this.eosId) this.isEnd.add(position);
      this.#ends(record.tokens[i], position);
    });
    for (const position of record.tail ?? []) {
      this.born.set(position, pass);
      this.text.set(position, "");
      this.confidence.set(position, 1);
      this.isEnd.add(position);
      this.#ends(this.eosId, position);
    }
    this.decided.push(this.decided[pass - 1] + record.positions.length + (record.tail ?? []).length);
    this.written.push(this.#written());
    this.hasEdges ||= record.edges != null;
    this.hasHeld ||= record.held != null;
    this.edgesLeftOut ||= record.edges?.chosen != null;
  }

  /** Note where the text ends, if a token at a position ends it: EOS does not count, the end of a turn does. */
  #ends(token, position) {
    if (!this.isOpenEnded || position < this.region || (token !== this.eosId && token !== this.eotId)) return;
    this.end = Math.min(this.end, position + (token === this.eosId ? 0 : 1));
  }

  /** Tokens of the text so far. */
  #written() {
    return this.slots.filter((position) => position < this.end && this.born.has(position)).length;
  }

  /** What a pass changed: its committed positions and its EOS tail. */
  changed(pass) {
    const record = this.records[pass - 1];
    return record ? record.positions.concat(record.tail ?? []) : [];
  }

  isMasked(position, pass) {
    return !(this.born.get(position) <= pass);
  }

  /** The positions that were masked before a pass, in order. */
  nodes(pass) {
    return this.slots.filter((position) => !(this.born.get(position) < pass));
  }

  /** The dependency graph that a pass decided on, or null: nodes, chosen, has(i, j): committing j keeps i out. */
  graph(pass) {
    const record = this.records[pass - 1];
    if (!record || record.edges == null) return null;
    if (!this.graphs.has(pass)) this.graphs.set(pass, this.#unpack(record, this.nodes(pass)));
    return this.graphs.get(pass);
  }

  #unpack({ edges, positions, held }, nodes) {
    const place = new Map(nodes.map((position, i) => [position, i]));
    const n = nodes.length;
    let has;
    let count = 0;
    if (Array.isArray(edges)) {
      const pairs = new Set(edges.map(([i, j]) => place.get(i) * n + place.get(j)));
      has = (i, j) => pairs.has(place.get(i) * n + place.get(j));
      count = edges.length;
    } else {
      const packed = bytesOf(edges.all ?? edges.chosen);
      const column = new Map(positions.map((position, i) => [position, i]));
      has = edges.all
        ? (i, j) => place.has(i) && place.has(j) && bit(packed, place.get(i) * n + place.get(j)) === 1
        : (i, j) => place.has(i) && column.has(j) && bit(packed, column.get(j) * n + place.get(i)) === 1;
      for (const byte of packed) count += BITS[byte];
    }
    return { nodes, chosen: positions, has, count, complete: !edges.chosen, held };
  }

  /** The confidence that a pass gave to a position it left masked; undefined where it was not recorded. */
  heldConfidence(position, pass) {
    const held = this.records[pass - 1]?.held;
    if (held == null) return undefined;
    if (Array.isArray(held)) return held.find(([where]) => where === position)?.[1];
    this.heldAt ??= new Map();
    if (!this.heldAt.has(pass)) {
      const bytes = bytesOf(held);
      const left = this.slots.filter((where) => this.isMasked(where, pass));
      this.heldAt.set(pass, new Map(left.map((where, i) => [where, bytes[i]])));
    }
    const value = this.heldAt.get(pass).get(position);
    return value === undefined || value === 255 ? undefined : value / 254;
  }

  /** The edge threshold of a pass, where the strategy has one. */
  tau(pass) {
    const { tau_min: low, tau_max: high } = this.about.strategy ?? {};
    if (!Number.isFinite(low) || !Number.isFinite(high) || pass < 1 || pass > this.passes) return null;
    return low + ((high - low) * this.decided[pass - 1]) / this.slots.length;
  }

  /** The chosen positions whose edge keeps a masked position out in a pass. */
  blockers(position, pass) {
    const graph = this.graph(pass);
    return graph ? graph.chosen.filter((other) => this.#blocks(other) && graph.has(position, other)) : [];
  }

  #blocks(position) {
    // DAPD-Direct commits certain positions without the graph: they keep no others out.
    const { shortcut, certain } = this.about.strategy ?? {};
    return shortcut !== "direct" || this.confidence.get(position) < certain;
  }

  quote(position) {
    return this.#quoted(this.isEnd.has(position), this.text.get(position) ?? "");
  }

  #quoted(isEnd, text) {
    if (isEnd) return "the end of the text";
    return `“${text.trim() || (text.includes("\n") ? "line break" : "space")}”`;
  }

  /** The likeliest tokens at a position in the pass that decided it, as [in words, probability], where recorded. */
  likeliest(position) {
    return (this.top.get(position) ?? []).map(([token, logP, text]) => [
      this.#quoted(token === this.eosId, text || `token ${token}`), Math.exp(logP),
    ]);
  }

  /** Why a position is as it is after a pass, in words. */
  why(position, pass) {
    const born = this.born.get(position);
    if (born <= pass) return this.#whyDecided(position, born);
    if (pass < 1) return ["Still masked: no forward pass yet."];
    const done = pass > this.passes;
    const reasons = [done ? "Never decided in this trace." : `Held back in pass ${pass}.`];
    const confidence = this.heldConfidence(position, pass);
    const blockers = this.blockers(position, pass);
    if (blockers.length) {
      const more = blockers.length > 1 ? ` and on ${blockers.length - 1} more` : "";
      const first = `${this.quote(blockers[0])} (position ${blockers[0] - this.start + 1})`;
      reasons.push(`It depends on ${first}${more}, chosen in this pass.`);
    }
    if (confidence !== undefined) reasons.push(`Its best guess had confidence ${confidence.toFixed(2)}.`);
    if (!blockers.length) reasons.push(...this.#whyWithoutGraph(position, pass, confidence));
    return reasons;
  }

  #whyDecided(position, born) {
    const said = [`Decided in pass ${born} with confidence ${this.confidence.get(position).toFixed(2)}.`];
    const record = this.records[born - 1];
    if ((record.tail ?? []).includes(position)) return [`Filled with the end of the text in pass ${born}.`];
    const { shortcut, certain } = this.about.strategy ?? {};
    if (shortcut === "direct" && this.confidence.get(position) >= certain) {
      said.push("Certain: taken whatever the graph says.");
    }
    return said;
  }

  #whyWithoutGraph(position, pass, confidence) {
    const { threshold } = this.about.strategy ?? {};
    const block = this.about.options?.block_length;
    const first = this.nodes(pass)[0];
    if (block && Math.floor((position - this.start) / block) > Math.floor((first - this.start) / block)) {
      return ["Its block is not active yet."];
    }
    if (threshold !== undefined && threshold !== null && confidence !== undefined && confidence < threshold) {
      return [`That is below the threshold of ${threshold}.`];
    }
    return this.hasEdges ? [] : ["This trace holds no dependency graph."];
  }
}
