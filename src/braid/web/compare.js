/** The single-stream way: the same question, whole, of a second session with the topology `plain`. */

import { apply, Run } from "./run.js";
import { liveUrl, Wire } from "./wire.js";

/** The single stream may say as much as the answer that it is compared with, but not less than this. */
const LEAST_TOKENS = 48;

/**
 * The last question that was answered, and what was said before it; null where nothing was.
 * @param {Run} run
 * @returns {{text: string, history: {role: string, content: string}[], answerTokens: number} | null}
 */
export function questionOf(run) {
  const number = run.turns.findLastIndex((turn) => turn.figures);
  if (number < 0) return null;
  const text = saidTo(run.turns[number]);
  if (!text.trim()) return null;
  const history = run.turns.slice(0, number).flatMap((turn) => [
    { role: "user", content: saidTo(turn) },
    { role: "assistant", content: saidBy(run, turn) },
  ]);
  const { tokens = {} } = run.turns[number].figures;
  const answerTokens = outer(run).reduce((sum, lane) => sum + (tokens[lane.label] ?? 0), 0);
  return { text, history: history.filter((message) => message.content.trim()), answerTokens };
}

/** What a person gave in a turn: `user` last, since it is what is asked about the rest. */
function saidTo(turn) {
  const given = Object.keys(turn.typed).length ? turn.typed : turn.heard;
  const { user = "", ...others } = given;
  return [...Object.values(others), user].filter(Boolean).join("\n\n");
}

function saidBy(run, turn) {
  return outer(run)
    .map((lane) => turn.said[lane.label] ?? "")
    .join("\n");
}

function outer(run) {
  return run.lanes.filter((lane) => !lane.isInput && !lane.isInner);
}

/** `plain`, but for a limit: without one, a small model that rambles would keep the figures waiting for minutes. */
function limited(setup, answerTokens) {
  const topology = structuredClone(setup.topologies.plain.topology);
  topology.streams.output.max_tokens = Math.max(LEAST_TOKENS, answerTokens);
  return topology;
}

/**
 * @param {{text: string, history: object[], answerTokens: number}} question
 * @param {import("./store.js").State} state
 * @param {(answer: string) => void} onAnswer is given the answer so far
 * @returns {{result: Promise<Run>, stop: () => void}} the finished run; rejected with what went wrong, in words
 */
export function askOneStream(question, state, onAnswer) {
  const run = new Run();
  const began = performance.now();
  let stop = () => {};
  const result = new Promise((resolve, reject) => {
    const hear = (message) => {
      apply(run, { sent: false, at: (performance.now() - began) / 1000, message });
      if (message.type === "delta") onAnswer(run.turns[0].said.output ?? "");
      if (message.type === "error") reject(new Error(message.message));
      else if (message.type === "turn") resolve(run);
      else if (message.type === "closed") reject(new Error("the session ended before its answer did"));
      if (["error", "turn", "closed"].includes(message.type)) wire.close();
    };
    const wire = new Wire(liveUrl(document.baseURI), {
      onMessage: hear,
      onSent: (command) =>
        apply(run, { sent: true, at: (performance.now() - began) / 1000, message: command }),
      onState: (wireState, words) => {
        if (wireState === "lost") reject(new Error(words));
      },
    });
    stop = () => {
      reject(new Error("Stopped."));
      wire.close();
    };
    const { seed, temperature } = state.config;
    const sampling = temperature === null ? {} : { output: { temperature } };
    const topology = limited(state.setup, question.answerTokens);
    wire.open({ topology, seed, sampling, history: question.history, rows: true });
    wire.send({ type: "write", stream: "user", text: question.text });
    wire.send({ type: "end" });
  });
  return { result, stop };
}
