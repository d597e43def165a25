/** The one place where the page's state lives; whoever draws subscribes, and is called once a frame at most. */

/**
 * @typedef {import("./run.js").Run} Run
 * @typedef {{
 *   setup: object, config: object, run: Run, entries: import("./run.js").Entry[],
 *   wire: string, wireWords: string, view: null | {rows: number, run: Run}, isPlaying: boolean,
 *   isOpened: boolean, follows: boolean, compared: null | object,
 * }} State `view` is set while an earlier moment is shown; `isOpened` when the run is from a file
 */

export class Store {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    /** @type {((state: State) => void)[]} */
    this.listeners = [];
    this.frame = 0;
  }

  /** @param {(state: State) => void} listener */
  subscribe(listener) {
    this.listeners.push(listener);
  }

  /** Change some fields. @param {Partial<State>} patch */
  update(patch) {
    Object.assign(this.state, patch);
    this.touch();
  }

  /** Something inside has changed: draw soon. */
  touch() {
    if (this.frame) return;
    // A hidden page gets no frames; a timer keeps its text right for whoever comes back, or listens.
    const later = document.hidden ? (call) => setTimeout(call, 200) : requestAnimationFrame;
    this.frame = 1;
    later(() => {
      this.frame = 0;
      for (const listener of this.listeners) listener(this.state);
    });
  }

  /** What is shown: an earlier moment, or the run itself. @returns {Run} */
  get shown() {
    return this.state.view?.run ?? this.state.run;
  }
}
