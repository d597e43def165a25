/** The figures of a turn, and beside them those of the single-stream way of answering the same question. */

import { byId, make, setText } from "./dom.js";
import { askOneStream, questionOf } from "./compare.js";
import { latency, waitedForInput } from "./run.js";

const FIGURES = [
  ["tnft", "TNFT", "rows from input to answer", (value) => `${value}`],
  ["ttft", "TTFT", "to the first token", seconds],
  ["ttfat", "TTFAT", "to the first answer token", seconds],
  ["rows", "Rows", "in this turn", (value) => `${value}`],
  ["pace", "Row", "median, typing left out", (value) => `${value.toFixed(value < 10 ? 1 : 0)} ms`],
];

export class Figures {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.cells = new Map();
    for (const [key, name, words] of FIGURES) {
      const ours = make("td", { "data-figure": key, text: "–" });
      const theirs = make("td", { "data-compared": key, text: "–" });
      const heading = make("th", { scope: "row", text: name });
      heading.append(make("small", { text: words }));
      byId("figures").append(make("tr", {}, heading, ours, theirs));
      this.cells.set(key, [ours, theirs]);
    }
    byId("compare").addEventListener("click", () => this.compare());
    store.subscribe((state) => this.draw(state));
  }

  draw(state) {
    const run = this.store.shown;
    const number = run.turns.findLastIndex((turn) => turn.figures);
    const ours = number < 0 ? {} : figuresOf(run, number);
    const isOfThisTurn =
      state.compared?.run === state.run && (state.compared.stop || state.compared.number === number);
    const compared = isOfThisTurn ? state.compared : null;
    for (const [key, , , show] of FIGURES) {
      const [mine, theirs] = this.cells.get(key);
      setText(mine, ours[key] == null ? "–" : show(ours[key]));
      setText(theirs, compared?.figures?.[key] == null ? "–" : show(compared.figures[key]));
    }
    const reuse = number < 0 ? null : run.turns[number].figures.reuse;
    setText(byId("reuse"), reuse ? reuseWords(reuse) : "");
    byId("reuse").hidden = !reuse;
    setText(byId("figures-title"), number < 0 ? "This turn" : `Turn ${number + 1}`);
    setText(byId("ours"), run.topology.name ?? "Streams");
    setText(byId("compare-words"), compared?.words ?? "");
    setText(byId("compare-answer"), (compared?.answer ?? "").trim());
    byId("compare-answer").hidden = !compared?.answer;
    byId("compare").disabled = state.isOpened || (!compared?.stop && questionOf(state.run) === null);
    setText(byId("compare"), compared?.stop ? "Stop" : "Compare");
  }

  /** Ask the last question again, of one stream; or stop asking. */
  async compare() {
    const { state } = this.store;
    if (state.compared?.stop) {
      state.compared.stop();
      return;
    }
    const question = questionOf(state.run);
    if (question === null) return;
    const number = state.run.turns.findLastIndex((turn) => turn.figures);
    const compared = {
      run: state.run,
      number,
      words: "Asking the same of one stream…",
      figures: {},
      answer: "",
      stop: null,
    };
    const show = (patch) => {
      Object.assign(compared, patch);
      if (this.store.state.compared === compared) this.store.touch();
    };
    const asked = askOneStream(question, state, (answer) => show({ answer }));
    compared.stop = asked.stop;
    this.store.update({ compared });
    try {
      const run = await asked.result;
      show({
        figures: figuresOf(run, 0),
        words: "The same question to one stream, up to the same length.",
        stop: null,
      });
    } catch (error) {
      show({ words: error.message, stop: null });
    }
  }
}

/** The figures of a turn. @param {import("./run.js").Run} run @param {number} number */
export function figuresOf(run, number) {
  const { figures, firstRow } = run.turns[number];
  const end = run.turns[number + 1]?.firstRow ?? run.rows.length;
  const waits = [];
  for (let i = Math.max(1, firstRow); i < end; i += 1)
    if (!waitedForInput(run, i)) waits.push(latency(run.rows, i));
  waits.sort((a, b) => a - b);
  return {
    tnft: figures.tnft,
    ttft: figures.ttft_s,
    ttfat: figures.ttfat_s,
    rows: figures.rows,
    pace: waits.length ? waits[Math.floor(waits.length / 2)] : null,
  };
}

/** What reading and drafting ahead of Enter has brought, and cost, in tokens. */
function reuseWords(reuse) {
  const words = [
    `Ahead of Enter: ${reuse.reused} of ${reuse.read} input tokens read`,
    `${reuse.kept} of the answer drafted`,
  ];
  if (reuse.mode !== "exact") words.push(`${reuse.repaired} repaired`, `${reuse.fallbacks} fell back`);
  if (Number.isFinite(reuse.drift)) words.push(`drift ${reuse.drift.toFixed(3)}`);
  words.push(`${reuse.accepted} guessed right`, `${reuse.wasted} of ${reuse.computed} computed in vain`);
  return `${words.join(", ")}.`;
}

function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}
