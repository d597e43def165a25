/** The live session of the page: it speaks through a wire, and writes all that both sides say into the store. */

import { apply, Run } from "./run.js";
import { liveUrl, Wire } from "./wire.js";

export class Live {
  /**
   * @param {import("./store.js").Store} store
   * @param {(problem: {code: string, message: string}, isRefused: boolean) => void} onProblem
   */
  constructor(store, onProblem) {
    this.store = store;
    this.onProblem = onProblem;
    /** @type {Wire | null} */
    this.wire = null;
    this.began = 0;
  }

  /** Whether somebody would hear what is written. */
  get isUp() {
    return this.wire !== null && !this.wire.isOver && !this.store.state.isOpened;
  }

  /** Begin a session as the setup says, and let go of the one before. */
  begin() {
    const { config } = this.store.state;
    this.leave();
    this.began = performance.now();
    this.store.update({
      run: new Run(),
      entries: [],
      view: null,
      isPlaying: false,
      isOpened: false,
      follows: true,
      compared: null,
    });
    const wire = new Wire(liveUrl(document.baseURI), {
      onMessage: (message) => this.wire === wire && this.#hear(message),
      onSent: (command) => this.wire === wire && this.#take(true, command),
      onState: (state, words) => this.wire === wire && this.#show(state, words),
    });
    this.wire = wire;
    const fields = openFields(config, this.store.state.setup);
    this.#take(true, { type: "open", ...fields });
    wire.open(fields);
  }

  /** Close the session, if there is one; what it said stays on the page. */
  leave() {
    const wire = this.wire;
    this.wire = null;
    wire?.close();
    this.store.update({ wire: "closed", wireWords: "not connected" });
  }

  /** Begin a session unless there is one. */
  ensure() {
    if (!this.isUp) this.begin();
  }

  write(stream, text) {
    if (text) this.wire?.send({ type: "write", stream, text });
  }

  end() {
    this.wire?.send({ type: "end" });
  }

  snapshot(streams) {
    this.wire?.send({ type: "snapshot", streams, mode: this.store.state.config.mode });
  }

  commit() {
    this.wire?.send({ type: "commit" });
  }

  interrupt() {
    if (this.isUp) this.wire?.send({ type: "interrupt" });
  }

  #hear(message) {
    const isRefused = !this.store.state.run.session;
    this.#take(false, message);
    if (message.type === "error") this.onProblem(message, isRefused);
  }

  #take(sent, message) {
    const { entries, run } = this.store.state;
    const entry = { sent, at: (performance.now() - this.began) / 1000, message };
    entries.push(entry);
    apply(run, entry);
    this.store.touch();
  }

  #show(wire, wireWords) {
    this.store.update({ wire, wireWords });
  }
}

/** What `open` says for a setup. */
export function openFields(config, setup) {
  const { topology, outputs } = resolve(config, setup);
  const sampling = {};
  if (config.temperature !== null) {
    for (const stream of outputs) sampling[stream] = { temperature: config.temperature };
  }
  return {
    topology,
    sampling,
    seed: config.seed,
    input: config.input,
    rows: true,
    show: setup.sees_internal ? "all" : "external",
  };
}

/** The topology of a setup: its name where nothing was changed, else all of it. */
export function resolve(config, setup) {
  const base = config.own ?? setup.topologies[config.name].topology;
  const outputs = Object.keys(base.streams).filter((name) => base.streams[name].direction === "output");
  if (config.own) return { topology: config.own, outputs };
  const changed = outputs.filter((name) => config.changes[name]);
  if (!changed.length) return { topology: config.name, outputs };
  const topology = structuredClone(base);
  for (const name of changed) Object.assign(topology.streams[name], config.changes[name]);
  return { topology, outputs };
}
