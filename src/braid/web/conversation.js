/** What was said, as text that can be read and selected: turns in the middle, inner streams beside them. */

import { byId, isAtEnd, make, setText } from "./dom.js";
import { textIn } from "./run.js";

export class Conversation {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.log = byId("log");
    this.inner = byId("inner");
    this.of = null;
    store.subscribe(() => this.draw(store.shown, store.state));
  }

  /** @param {import("./run.js").Run} run @param {import("./store.js").State} state */
  draw(run, state) {
    if (this.of !== run) {
      this.of = run;
      this.log.replaceChildren();
      this.inner.replaceChildren();
    }
    const outer = run.lanes.filter((lane) => !(lane.isInner && !lane.isInput));
    const inner = run.lanes.filter((lane) => lane.isInner && !lane.isInput);
    fill(this.log, run, (turn, part) => drawTurn(turn, part, outer, run));
    fill(this.inner, run, (turn, part, number) => drawInner(turn, part, inner, number));
    byId("thoughts").querySelector("h2").textContent = inner.length
      ? "Inner streams"
      : "Inner streams: none here";
    byId("welcome").hidden = run.turns.length > 0 || state.isOpened;
    this.log.hidden = !byId("welcome").hidden;
    setText(byId("talk-state"), stateWords(run, state));
  }
}

/** Draw each turn into a part of its own, and stay at the end where the box was at the end. */
function fill(box, run, drawPart) {
  const stays = isAtEnd(box);
  run.turns.forEach((turn, number) => {
    const part = box.children[number] ?? box.appendChild(make("div", { class: "turn" }));
    drawPart(turn, part, number);
  });
  while (box.children.length > run.turns.length) box.lastChild.remove();
  if (stays) box.scrollTop = box.scrollHeight;
}

function drawTurn(turn, part, lanes, run) {
  const inputs = lanes.filter((lane) => lane.isInput);
  const outputs = lanes.filter((lane) => !lane.isInput);
  for (const lane of inputs) {
    const text = textIn(turn, lane);
    line(
      part,
      lane,
      text && inputs.length > 1 && lane.stream !== "user" ? `${lane.label}: ${text}` : text,
      "said",
    );
  }
  for (const lane of outputs) {
    if (outputs.length > 1 && textIn(turn, lane))
      line(part, { ...lane, label: `${lane.label} name` }, lane.label, "lane-label");
    const node = line(part, lane, textIn(turn, lane), "answer");
    const isSpeaking = turn === run.answering && lane.doing === "speaking" && !turn.figures;
    node?.classList.toggle("is-speaking", isSpeaking);
  }
  drawCalls(turn, part);
}

function drawInner(turn, part, lanes, number) {
  part.hidden = !lanes.some((lane) => textIn(turn, lane));
  for (const lane of lanes) {
    const text = textIn(turn, lane);
    if (!text) continue;
    line(
      part,
      { ...lane, label: `${lane.label} name` },
      number ? `${lane.label}, turn ${number + 1}` : lane.label,
      "lane-label",
    );
    line(part, lane, text, "thinking");
  }
}

function drawCalls(turn, part) {
  for (const call of turn.calls) {
    const lane = { label: `call ${call.call}`, role: "tool" };
    line(part, lane, `${call.name}(${JSON.stringify(call.arguments)})`, "call");
  }
}

/** The line of a lane in a turn; made when it first has text. */
function line(part, lane, text, kind) {
  let node = [...part.children].find((child) => child.dataset.lane === lane.label);
  if (!node && !text) return null;
  if (!node) {
    node = make("p", { class: `${kind} role-${lane.role}`, "data-lane": lane.label });
    part.append(node);
  }
  setText(node, text);
  return node;
}

function stateWords(run, state) {
  if (state.isOpened) return "from a file";
  if (state.view) return "an earlier moment";
  if (run.isClosed) return run.closedFor ? `ended: ${run.closedFor}` : "ended";
  const speaking = run.lanes
    .filter((lane) => !lane.isInput && lane.doing === "speaking")
    .map((lane) => lane.label);
  return speaking.length ? `speaking: ${speaking.join(", ")}` : "";
}
