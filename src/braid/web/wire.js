/**
 * One live session over a WebSocket: it opens, numbers what it says, and comes back after the line dropped.
 *
 *     open ─▶ "opened" ──────────── told messages, ids 1, 2, 3 … ──▶ onMessage
 *                  ×  dropped      ◀── resume {after: last id}
 *                  commands that were not answered are sent again, with the same ids
 *
 * Nothing is lost: what the server told is told again from the last id, what we said is kept until it is answered.
 * Nothing is doubled: an id that was seen is skipped, and the server only answers a command that it has done.
 */

/** @typedef {"closed" | "connecting" | "open" | "reconnecting" | "lost"} WireState */

/** Waits between tries, in milliseconds; the last one repeats. */
const WAITS_MS = [200, 500, 1000, 2000, 4000];
/** A line on which nothing was heard for so long is asked whether anybody is there. */
const QUIET_MS = 15_000;
/** And given up when there is no answer within this. */
const PATIENCE_MS = 8_000;

export class Wire {
  /**
   * @param {string | URL} url
   * @param {{onMessage?: (message: object) => void, onSent?: (command: object) => void,
   *          onState?: (state: WireState, words: string) => void}} hooks
   */
  constructor(url, hooks = {}) {
    this.url = url;
    this.hooks = hooks;
    /** @type {WireState} */
    this.state = "closed";
    this.session = "";
    this.last = 0;
    this.prefix = newPrefix();
    this.count = 0;
    /** Commands by id, in the order in which they were said, until they are answered. @type {Map<string, object>} */
    this.pending = new Map();
    this.tries = 0;
    /** @type {WebSocket | null} */
    this.socket = null;
    this.timers = { retry: 0, quiet: 0, patience: 0 };
    this.wake = () => {
      if (this.state === "reconnecting") this.#connect();
    };
  }

  /** Begin a session. @param {object} fields what `open` says */
  open(fields) {
    this.opening = { type: "open", id: this.#nextId(), ...fields };
    globalThis.addEventListener?.("online", this.wake);
    this.#say("connecting", "connecting");
    this.#connect();
  }

  /**
   * Say something; it is kept until it is answered.
   * @param {{type: string}} command
   */
  send(command) {
    if (this.isOver) return;
    const numbered = { ...command, id: this.#nextId() };
    this.pending.set(numbered.id, numbered);
    this.hooks.onSent?.(numbered);
    if (this.state === "open") this.#put(numbered);
  }

  /** Whether this session will say nothing more. */
  get isOver() {
    return this.state === "closed" || this.state === "lost";
  }

  /** End the session and hang up. */
  close() {
    if (this.state === "open") this.#put({ type: "close" });
    this.#end("closed", "closed");
  }

  #nextId() {
    this.count += 1;
    return `${this.prefix}${this.count}`;
  }

  #say(state, words) {
    this.state = state;
    this.hooks.onState?.(state, words);
  }

  #put(command) {
    if (this.socket?.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(command));
  }

  #connect() {
    clearTimeout(this.timers.retry);
    this.#hangUp();
    const socket = new WebSocket(this.url);
    this.socket = socket;
    socket.onopen = () => {
      if (socket !== this.socket) return;
      this.#put(this.session ? { type: "resume", session: this.session, after: this.last } : this.opening);
      this.#listen();
    };
    socket.onmessage = (event) => {
      if (socket === this.socket) this.#hear(event.data);
    };
    socket.onclose = () => {
      if (socket === this.socket) this.#dropped();
    };
  }

  #hear(data) {
    this.#listen();
    let message;
    try {
      message = JSON.parse(data);
    } catch {
      this.#dropped();
      return;
    }
    const isTold = Number.isInteger(message.id);
    if (isTold && message.id <= this.last) return;
    if (isTold && this.session && message.id > this.last + 1) {
      this.#dropped(); // something between was lost on the way: ask for it
      return;
    }
    if (isTold) this.last = message.id;
    if (message.re) this.pending.delete(message.re);
    if (message.type === "opened") this.session = message.session;
    if (message.type === "opened" || message.type === "resumed") this.#arrive();
    if (message.type === "error" && this.state !== "open") this.#refused(message);
    if (message.type !== "pong" && message.type !== "resumed") this.hooks.onMessage?.(message);
    if (message.type === "closed") this.#end("closed", message.reason || "the session has ended");
  }

  #arrive() {
    this.tries = 0;
    this.#say("open", "connected");
    for (const command of this.pending.values()) this.#put(command);
  }

  #refused(message) {
    if (message.retry_after_s != null && this.session) {
      this.#dropped(message.retry_after_s * 1000);
      return;
    }
    this.#end(this.session ? "lost" : "closed", this.session ? "the session is gone" : "not opened");
  }

  #dropped(wait = 0) {
    this.#hangUp();
    if (this.isOver) return;
    const pause = Math.max(wait, WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)]);
    this.tries += 1;
    this.#say("reconnecting", this.tries > 2 ? "the server cannot be reached; trying again" : "reconnecting");
    clearTimeout(this.timers.retry);
    this.timers.retry = setTimeout(() => this.#connect(), pause);
  }

  /** Watch for a line that is dead without having said so. */
  #listen() {
    clearTimeout(this.timers.quiet);
    clearTimeout(this.timers.patience);
    this.timers.quiet = setTimeout(() => {
      this.#put({ type: "ping" });
      this.timers.patience = setTimeout(() => this.#dropped(), PATIENCE_MS);
    }, QUIET_MS);
  }

  #hangUp() {
    clearTimeout(this.timers.quiet);
    clearTimeout(this.timers.patience);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  #end(state, words) {
    clearTimeout(this.timers.retry);
    globalThis.removeEventListener?.("online", this.wake);
    this.pending.clear();
    this.#hangUp();
    this.#say(state, words);
  }
}

/** Ids of another page load must never look like ours: the server would take them for done. */
function newPrefix() {
  const bytes = crypto.getRandomValues(new Uint8Array(5));
  return `p${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}-`;
}

/** Where live sessions are, beside the page. @param {string} base */
export function liveUrl(base) {
  const url = new URL("v1/live", base);
  url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
  return url;
}
