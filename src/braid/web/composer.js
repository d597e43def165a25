/**
 * The user's lane as a text box. In a live session each word is sent as soon as it is whole; in an editable one the
 * whole text is: it is read and drafted ahead, and counts when Enter is pressed.
 *
 *     typed ──(short pause)──▶ whole words ─▶ write            Enter ─▶ the rest, end
 *                              all of it   ─▶ snapshot         Enter ─▶ snapshot, commit
 *
 * Of what is typed during an answer, an editable session hears when the answer is complete.
 */

import { byId, make, setText } from "./dom.js";
import { mend, wholeWords } from "./words.js";

/** Long enough to gather the keys of one word's end, short enough to feel immediate. */
const PAUSE_MS = 90;
const GENTLE_MS = 7000;

const HINTS = {
  live: "Words are read as you type. Enter ends your turn, Esc interrupts.",
  editable: "Read ahead; you can still change everything. Enter commits it, Esc interrupts.",
};

export class Composer {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./live.js").Live} live
   * @param {(words: string) => void} say tells a listener
   */
  constructor(store, live, say) {
    this.store = store;
    this.live = live;
    this.say = say;
    this.box = byId("words");
    this.ink = byId("ink");
    this.stream = "user";
    /** What each input's box says, and how much of it was sent. @type {Map<string, {text: string, sent: string}>} */
    this.drafts = new Map();
    this.timer = 0;
    this.gentle = 0;
    /** Whether Enter was pressed during an answer. */
    this.isDue = false;
    this.#watch();
    store.subscribe((state) => this.draw(state));
  }

  /** Forget what is in the boxes: a new session knows nothing of it. */
  reset() {
    this.#stopTimer();
    this.isDue = false;
    this.drafts.clear();
    this.box.value = "";
    this.#hint("");
    this.#drawInk();
  }

  /** Send what is left, and say that the turn is complete. */
  finish() {
    this.#stopTimer();
    this.#take();
    const drafts = [...this.drafts].filter(([, draft]) => draft.text.trim() || draft.sent);
    if (!drafts.length) return;
    if (this.isHeldBack) {
      this.isDue = true;
      this.#hint("It is sent when the answer is complete; Esc interrupts that.");
      return;
    }
    this.live.ensure();
    if (this.isEditable) {
      this.live.snapshot(Object.fromEntries(drafts.map(([stream, draft]) => [stream, draft.text])));
      this.live.commit();
    } else {
      for (const [stream, draft] of drafts) this.live.write(stream, draft.text.slice(draft.sent.length));
      this.live.end();
    }
    this.reset();
    this.store.update({ view: null, follows: true });
  }

  /** Put text behind what is in the box, as if it were typed. @param {string} text */
  type(text) {
    this.box.value += text;
    this.box.dispatchEvent(new Event("input", { bubbles: true }));
  }

  get isEditable() {
    return this.store.state.config.input === "editable";
  }

  /** Whether what is typed has to wait: a committed turn is being answered, and cannot be changed. */
  get isHeldBack() {
    const { turns } = this.store.state.run;
    return this.isEditable && this.live.isUp && turns.some((turn) => turn.ended && !turn.figures);
  }

  get draft() {
    if (!this.drafts.has(this.stream)) this.drafts.set(this.stream, { text: "", sent: "" });
    return this.drafts.get(this.stream);
  }

  draw(state) {
    const inputs = state.run.inputs.length ? state.run.inputs : ["user"];
    const known = inputs.join("\n");
    if (known !== this.known) {
      this.known = known;
      this.#offer(inputs);
    }
    setText(byId("words-label"), this.stream === "user" ? "You" : this.stream);
    const isOver = state.isOpened || state.wire === "closed" || state.wire === "lost";
    this.box.placeholder =
      isOver && state.run.rows.length
        ? "Type to begin a new session."
        : this.isEditable
          ? "Type, and change your mind."
          : "Type slowly: the model reads along.";
    if (!this.gentle) setText(byId("hint"), HINTS[state.config.input]);
    this.#catchUp();
  }

  /** Send what had to wait, once the answer is complete. */
  #catchUp() {
    if (!this.isEditable || !this.live.isUp || this.isHeldBack) return;
    if (this.isDue) this.finish();
    else if (this.draft.text !== (this.draft.shown ?? "")) this.#sendSoon();
  }

  #offer(inputs) {
    if (!inputs.includes(this.stream)) this.stream = inputs.includes("user") ? "user" : inputs[0];
    byId("pick").hidden = inputs.length < 2;
    byId("stream").replaceChildren(...inputs.map((name) => make("option", { value: name, text: name })));
    byId("stream").value = this.stream;
  }

  #take() {
    const { draft } = this;
    const value = this.box.value;
    const mended = mend(draft.sent, draft.text, value);
    if (mended !== value) {
      const place = Math.max(draft.sent.length, mended.length - (value.length - this.box.selectionEnd));
      this.box.value = mended;
      this.box.setSelectionRange(place, place);
      this.#hint(
        "The model has already read the tinted words, so they stay. Go on, or choose editable input in the setup.",
      );
    }
    draft.text = this.box.value;
    this.#drawInk();
  }

  /** Not at the end of all typing, but a moment after a key: the words of a fast typist are read one by one too. */
  #sendSoon() {
    this.timer ||= setTimeout(() => this.#send(), PAUSE_MS);
  }

  #stopTimer() {
    clearTimeout(this.timer);
    this.timer = 0;
  }

  #send() {
    this.#stopTimer();
    const { draft, stream } = this;
    if (this.isEditable) {
      if (draft.text === draft.shown || this.isHeldBack) return;
      this.live.ensure();
      draft.shown = draft.text;
      this.live.snapshot({ [stream]: draft.text });
      return;
    }
    const whole = wholeWords(draft.text);
    if (whole <= draft.sent.length || !draft.text.slice(0, whole).trim()) return;
    this.live.ensure();
    this.live.write(stream, draft.text.slice(draft.sent.length, whole));
    draft.sent = draft.text.slice(0, whole);
    this.#drawInk();
  }

  #drawInk() {
    const { draft } = this;
    this.ink.replaceChildren(make("mark", { text: draft.sent }), draft.text.slice(draft.sent.length));
    this.ink.scrollTop = this.box.scrollTop;
  }

  #hint(words) {
    clearTimeout(this.gentle);
    this.gentle = words ? setTimeout(() => this.#hint(""), GENTLE_MS) : 0;
    byId("hint").classList.toggle("is-gentle", Boolean(words));
    setText(byId("hint"), words || HINTS[this.store.state.config.input]);
    if (words) this.say(words);
  }

  #watch() {
    this.box.addEventListener("input", (event) => {
      if (event.isComposing) return; // an input method is still choosing; its end comes as another event
      this.#take();
      this.#sendSoon();
    });
    this.box.addEventListener("compositionend", () => {
      this.#take();
      this.#sendSoon();
    });
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.finish();
    });
    this.box.addEventListener(
      "scroll",
      () => {
        this.ink.scrollTop = this.box.scrollTop;
      },
      { passive: true },
    );
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.finish();
      this.box.focus();
    });
    byId("interrupt").addEventListener("click", () => this.live.interrupt());
    byId("stream").addEventListener("change", (event) => {
      this.#take();
      this.#send();
      this.stream = event.target.value;
      this.box.value = this.draft.text;
      this.#drawInk();
      this.store.touch();
    });
  }
}
