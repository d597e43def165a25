/** Reads answers to whoever listens, a sentence at a time: tokens alone would stutter. */

import { byId, make } from "./dom.js";
import { wholeSentences } from "./words.js";

/** How many sentences are kept for somebody who reads back. */
const KEPT = 20;

export class Announcer {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.box = byId("heard");
    this.of = null;
    store.subscribe((state) => this.listen(state));
  }

  /** @param {string} words */
  say(words) {
    if (!words) return;
    this.box.append(make("span", { text: `${words} ` }));
    while (this.box.children.length > KEPT) this.box.firstChild.remove();
  }

  listen(state) {
    if (state.isOpened) return;
    if (this.of !== state.run) {
      this.of = state.run;
      /** How far each answer was read out. @type {WeakMap<object, Object<string, number>>} */
      this.read = new WeakMap();
    }
    for (const turn of state.run.turns.slice(-2)) this.#readOut(state.run, turn);
  }

  #readOut(run, turn) {
    const places = this.read.get(turn) ?? {};
    this.read.set(turn, places);
    for (const lane of run.lanes) {
      if (lane.isInput || lane.isInner) continue;
      const text = turn.said[lane.label] ?? "";
      const from = places[lane.label] ?? 0;
      const { sentences, to } = turn.figures
        ? { sentences: text.slice(from).trim(), to: text.length }
        : wholeSentences(text, from);
      places[lane.label] = to;
      this.say(sentences);
    }
  }
}
