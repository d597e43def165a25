/** Goes through a run again: a slider over its rows, and play at the speed at which it happened. */

import { byId, setText } from "./dom.js";
import { apply, Run } from "./run.js";

/** A pause of minutes between two turns is not worth watching. */
const LONGEST_PAUSE_S = 3;

export class Player {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.slider = byId("scrub");
    this.frame = 0;
    this.slider.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.slider.value));
    });
    byId("play").addEventListener("click", () => this.toggle());
    store.subscribe((state) => this.draw(state));
  }

  draw(state) {
    const count = state.run.rows.length;
    const shown = state.view?.rows ?? count;
    this.slider.max = String(count);
    this.slider.value = String(shown);
    this.slider.disabled = count === 0;
    byId("play").disabled = count === 0;
    const isLive = !state.view && !state.isOpened && !state.run.isClosed;
    const at = state.run.rows[shown - 1]?.at;
    const words = at === undefined ? "" : `row ${shown}, ${at.toFixed(1)} s`;
    setText(byId("scrub-words"), isLive ? "live" : words || "start");
    this.slider.setAttribute(
      "aria-valuetext",
      isLive ? `live, row ${count}` : words || "before the first row",
    );
    byId("play").setAttribute("aria-label", state.isPlaying ? "Pause" : "Play");
    setText(byId("play-sign"), state.isPlaying ? "❚❚" : "▶");
  }

  /** Show the run as it was after so many rows. @param {number} count */
  show(count) {
    const { state } = this.store;
    if (count >= state.run.rows.length) {
      this.store.update({ view: null, follows: true });
      return;
    }
    const isAhead = state.view && state.view.of === state.run && state.view.rows <= count;
    const view = isAhead ? state.view : { of: state.run, rows: 0, next: 0, run: new Run() };
    advance(view, state.entries, count);
    this.store.update({ view, follows: true });
  }

  toggle() {
    if (this.store.state.isPlaying) this.pause();
    else this.play();
  }

  pause() {
    cancelAnimationFrame(this.frame);
    this.store.update({ isPlaying: false });
  }

  play() {
    const { state } = this.store;
    const { rows } = state.run;
    if (!rows.length) return;
    if (!state.view) this.show(0);
    this.store.update({ isPlaying: true });
    let before = performance.now();
    let waited = 0;
    const step = (now) => {
      if (!this.store.state.isPlaying || state.run.rows !== rows) return;
      waited += (now - before) / 1000;
      before = now;
      let count = this.store.state.view?.rows ?? rows.length;
      for (
        let due = pauseBefore(rows, count);
        count < rows.length && waited >= due;
        due = pauseBefore(rows, count)
      ) {
        waited -= due;
        count += 1;
      }
      if (count !== this.store.state.view?.rows) this.show(count);
      if (count >= rows.length) this.pause();
      else this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }
}

/** Seconds between a row and the one before, as they are replayed. */
function pauseBefore(rows, i) {
  return i < 1 || i >= rows.length ? 0 : Math.min(LONGEST_PAUSE_S, Math.max(0, rows[i].at - rows[i - 1].at));
}

/** Take in all entries before row number `count`. */
export function advance(view, entries, count) {
  while (view.next < entries.length) {
    const entry = entries[view.next];
    if (!entry.sent && entry.message.type === "row" && view.run.rows.length >= count) break;
    apply(view.run, entry);
    view.next += 1;
  }
  view.rows = view.run.rows.length;
}
