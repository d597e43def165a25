/** Draws lanes on a surface, the page’s canvas or a picture to be saved, so that both look the same. */

import { visibleText } from "./columns.js";
import { latency, waitedForInput } from "./run.js";

export const LATENCY_HEIGHT = 40;
export const FONT =
  '13px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';
export const SMALL = FONT.replace("13px", "11px");
const BOX = 24;

/**
 * @typedef {{fill?: string, stroke?: string, round?: number, dash?: number[]}} Look
 * @typedef {{fill: string, font: string, anchor?: "start" | "end" | "middle"}} Type
 * @typedef {{
 *   rect: (x: number, y: number, width: number, height: number, look: Look) => void,
 *   text: (x: number, y: number, words: string, type: Type) => void,
 *   line: (x1: number, y1: number, x2: number, y2: number, stroke: string) => void,
 * }} Surface
 * @typedef {{run: import("./run.js").Run, columns: import("./columns.js").Columns, from: number, to: number,
 *            shift: number, laneHeight: number, drop: number, slowest: number, width: number, cursor?: number,
 *            colours: Object<string, string>}} Scene
 *          rows `from` up to `to`, moved by `shift` pixels; `drop` is where in its lane a token stands
 */

/** @param {Surface} surface @param {Scene} scene */
export function paintLanes(surface, scene) {
  const { run, columns, colours, laneHeight } = scene;
  const places = new Map(run.lanes.map((lane, h) => [lane.label, { lane, top: h * laneHeight }]));
  run.lanes.forEach((_, h) => {
    if (h) surface.line(0, h * laneHeight + 0.5, scene.width, h * laneHeight + 0.5, colours.line);
  });
  if (scene.cursor !== undefined && scene.cursor >= scene.from && scene.cursor < scene.to) {
    const x = columns.x(scene.cursor) - scene.shift;
    const height = run.lanes.length * laneHeight + LATENCY_HEIGHT;
    surface.rect(x - 2, 0, columns.width(scene.cursor) + 4, height, {
      fill: colours.sunk,
      stroke: colours.accent,
      round: 4,
    });
  }
  for (let i = scene.from; i < scene.to; i += 1) {
    const x = columns.x(i) - scene.shift;
    for (const [label, cell] of Object.entries(run.rows[i].cells)) {
      const place = places.get(label);
      if (place) paintCell(surface, scene, cell, place.lane, x, columns.width(i), place.top);
    }
  }
  paintLatency(surface, scene, run.lanes.length * laneHeight);
}

function paintCell(surface, scene, cell, lane, x, width, top) {
  const { colours } = scene;
  const y = top + scene.drop + (scene.laneHeight - scene.drop - BOX) / 2;
  const look = { fill: colours[`${lane.role}-tint`], round: 6 };
  if (cell.forced && !lane.isInput) Object.assign(look, { stroke: colours[lane.role], dash: [3, 2] });
  surface.rect(x, y, width, BOX, look);
  surface.text(x + width / 2, y + 16.5, visibleText(cell), {
    fill: colours[lane.role],
    font: FONT,
    anchor: "middle",
  });
}

function paintLatency(surface, scene, top) {
  const { run, columns, colours } = scene;
  surface.line(0, top + 0.5, scene.width, top + 0.5, colours.line);
  const floor = top + LATENCY_HEIGHT - 4;
  for (let i = scene.from; i < scene.to; i += 1) {
    const ms = latency(run.rows, i);
    if (ms === null) continue;
    const height = Math.max(1.5, Math.min(1, ms / scene.slowest) * (LATENCY_HEIGHT - 12));
    const fill = waitedForInput(run, i) ? colours.line : ms > scene.slowest ? colours.warn : colours.bar;
    surface.rect(columns.x(i) - scene.shift, floor - height, columns.width(i), height, { fill, round: 2 });
  }
}

/**
 * What the tallest bar stands for: twice the 90th percentile of recent rows that waited for nobody, so that one pause
 * does not flatten the rest.
 * @param {import("./run.js").Run} run
 */
export function slowestOf(run) {
  const recent = [];
  for (let i = Math.max(1, run.rows.length - 400); i < run.rows.length; i += 1) {
    if (!waitedForInput(run, i)) recent.push(latency(run.rows, i));
  }
  if (!recent.length) return 100;
  recent.sort((a, b) => a - b);
  return Math.max(1, recent[Math.floor((recent.length - 1) * 0.9)] * 2);
}

/** Colours by name, as the page has them now. @returns {Object<string, string>} */
export function readColours() {
  const probe = document.createElement("i");
  document.body.append(probe);
  const names = ["page", "card", "sunk", "ink", "muted", "line", "edge", "bar", "accent", "warn"];
  for (const role of ROLES) names.push(role, `${role}-tint`);
  const found = {};
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

export const ROLES = ["input", "thought", "tool", "output", "audit"];

/** A surface over a canvas. @param {CanvasRenderingContext2D} context @returns {Surface} */
export function canvasSurface(context) {
  return {
    rect(x, y, width, height, look) {
      context.beginPath();
      context.roundRect(x, y, width, height, look.round ?? 0);
      if (look.fill) {
        context.fillStyle = look.fill;
        context.fill();
      }
      if (look.stroke) {
        context.setLineDash(look.dash ?? []);
        context.strokeStyle = look.stroke;
        context.stroke();
        context.setLineDash([]);
      }
    },
    text(x, y, words, look) {
      context.font = look.font;
      context.fillStyle = look.fill;
      context.textAlign = look.anchor === "middle" ? "center" : (look.anchor ?? "start");
      context.fillText(words, x, y);
    },
    line(x1, y1, x2, y2, stroke) {
      context.strokeStyle = stroke;
      context.beginPath();
      context.moveTo(x1, y1);
      context.lineTo(x2, y2);
      context.stroke();
    },
  };
}
