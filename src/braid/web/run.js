/**
 * What a session has come to: a fold over all that was said by both sides, so that a live session, a saved one and
 * one that is being replayed are shown by the same code.
 *
 *     entry {sent, at, message} ─▶ apply(run, entry) ─▶ lanes, rows, turns
 */

/**
 * @typedef {{token: number, text: string, forced?: boolean}} Cell
 * @typedef {{t: number, at: number, cells: Object<string, Cell>}} Row `at` in seconds
 * @typedef {"input" | "thought" | "tool" | "output" | "audit"} Role
 * @typedef {{label: string, stream: string, role: Role, isInput: boolean, isInner: boolean, doing: string,
 *            reason: string}} Lane
 * @typedef {{typed: Object<string, string>, heard: Object<string, string>, said: Object<string, string>,
 *            calls: object[], ended: boolean, figures: object | null, firstRow: number}} Turn
 *          `typed` is what this page sent, `heard` what the model has read, `said` what it answered; by stream
 * @typedef {{sent: boolean, at: number, message: object}} Entry
 */

export class Run {
  constructor() {
    this.session = "";
    this.model = "";
    this.topology = {};
    /** @type {Lane[]} */
    this.lanes = [];
    /** @type {Row[]} */
    this.rows = [];
    this.tokens = 0;
    /** @type {Turn[]} */
    this.turns = [];
    /** @type {object[]} */
    this.notices = [];
    this.isClosed = false;
    this.closedFor = "";
  }

  /** The lane of a label. @param {string} label */
  lane(label) {
    return this.lanes.find((lane) => lane.label === label);
  }

  /** Names of the input streams. */
  get inputs() {
    return this.lanes.filter((lane) => lane.isInput).map((lane) => lane.stream);
  }

  /** The turn that outputs speak in: the first that has no figures yet. */
  get answering() {
    return this.turns.find((turn) => turn.figures === null) ?? this.turns.at(-1);
  }
}

/** Take in one entry. @param {Run} run @param {Entry} entry */
export function apply(run, entry) {
  const takes = entry.sent ? SENT : TOLD; // what neither knows comes from a newer server, and is left alone
  if (Object.hasOwn(takes, entry.message.type)) takes[entry.message.type](run, entry.message, entry);
}

/** The run that entries make. @param {Entry[]} entries */
export function fold(entries) {
  const run = new Run();
  for (const entry of entries) apply(run, entry);
  return run;
}

const SENT = {
  write(run, { stream, text }) {
    const turn = writing(run);
    turn.typed[stream] = (turn.typed[stream] ?? "") + text;
  },
  snapshot(run, { streams }) {
    Object.assign(writing(run).typed, streams);
  },
  end(run) {
    writing(run).ended = true;
  },
  commit(run) {
    writing(run).ended = true;
  },
};

const TOLD = {
  opened(run, message) {
    run.session = message.session;
    run.model = message.model;
    run.topology = message.topology;
    run.lanes = message.lanes.map((label) => laneOf(label, message));
  },

  row(run, message, entry) {
    const at = message.at || entry.at;
    run.rows.push({ t: message.t, at, cells: message.cells });
    for (const [label, cell] of Object.entries(message.cells)) {
      run.tokens += 1;
      const lane = run.lane(label);
      if (lane?.isInput) {
        const turn = run.answering ?? addTurn(run);
        turn.heard[label] = (turn.heard[label] ?? "") + cell.text;
      }
    }
  },

  delta(run, { stream, text }) {
    const turn = run.answering ?? addTurn(run);
    turn.said[stream] = (turn.said[stream] ?? "") + text;
  },

  state(run, { stream, state, reason }) {
    const lane = run.lane(stream);
    if (!lane) return;
    lane.doing = DOING[state] ?? state;
    if (lane.isInput && state === "active") lane.doing = "reading";
    // Until something else is said, what it waits for is known from its topology.
    if (reason || state !== "created") lane.reason = reason ?? "";
  },

  tool_call(run, message) {
    (run.answering ?? addTurn(run)).calls.push(message);
  },

  turn(run, message) {
    const turn = run.turns.find((each) => each.figures === null) ?? addTurn(run);
    turn.figures = message;
    turn.ended = true;
  },

  notice(run, message) {
    run.notices.push(message);
  },

  closed(run, { reason }) {
    run.isClosed = true;
    run.closedFor = reason ?? "";
    for (const lane of run.lanes) Object.assign(lane, { doing: "closed", reason: "" });
  },
};

const DOING = { created: "waiting", active: "speaking", asleep: "asleep", closed: "closed" };

function addTurn(run) {
  const turn = {
    typed: {},
    heard: {},
    said: {},
    calls: [],
    ended: false,
    figures: null,
    firstRow: run.rows.length,
  };
  run.turns.push(turn);
  return turn;
}

/** The turn that a person is writing. */
function writing(run) {
  const last = run.turns.at(-1);
  return last && !last.ended ? last : addTurn(run);
}

function laneOf(label, opened) {
  const stream = label.split("#")[0];
  const spec = opened.topology.streams?.[stream] ?? {};
  const isInput = spec.direction ? spec.direction === "input" : opened.inputs.includes(label);
  return {
    label,
    stream,
    role: roleOf(stream, isInput, spec.visibility === "internal"),
    isInput,
    isInner: spec.visibility === "internal",
    doing: "waiting",
    reason: isInput ? "" : waitOf(spec.wait_k),
  };
}

/** What a stream is to a person, by its name first. @returns {Role} */
export function roleOf(stream, isInput, isInner) {
  if (/tool|call|exec|feedback/.test(stream)) return "tool";
  if (isInput) return "input";
  if (/audit|guard|check|critic|judge/.test(stream)) return "audit";
  return isInner || /thought|think|note|plan/.test(stream) ? "thought" : "output";
}

function waitOf(wait) {
  if (wait === "end") return "for the end of input";
  if (Number.isInteger(wait)) return `for ${wait} input token${wait === 1 ? "" : "s"}`;
  return wait == null ? "" : "until it knows enough";
}

/** Text of a lane in a turn: what was typed here, else what the model has read or said. */
export function textIn(turn, lane) {
  const text = lane.isInput ? (turn.typed[lane.stream] ?? turn.heard[lane.label]) : turn.said[lane.label];
  return (text ?? "").trimStart(); // the space before a first word belongs to its token, not to the text
}

/** Whether a row is there because somebody wrote: the time before it was theirs, and no row was slow. */
export function waitedForInput(run, i) {
  return Object.keys(run.rows[i].cells).some((label) => run.lane(label)?.isInput);
}

/** Milliseconds between a row and the one before; null for the first. @param {Row[]} rows @param {number} i */
export function latency(rows, i) {
  if (i < 1 || i >= rows.length) return null;
  return Math.max(0, (rows[i].at - rows[i - 1].at) * 1000);
}
