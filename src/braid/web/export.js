/** A run as a picture: lanes broken into lines as music is, with a title and a legend. */

import { FONT, LATENCY_HEIGHT, paintLanes, slowestOf, SMALL, canvasSurface } from "./painter.js";

const WIDTH = 1600;
const MARGIN = 28;
const NAMES = 150;
const LANE = 34;
const HEAD = 92;
const RULER = 18;
const BETWEEN = 22;
const MAX_PIXELS = 16_000;
const SVG = "http://www.w3.org/2000/svg";

/** The picture cannot be made; the message says what would work. */
export class PictureError extends Error {}

/**
 * @param {import("./run.js").Run} run
 * @param {import("./columns.js").Columns} columns
 * @param {Object<string, string>} colours
 * @returns {{width: number, height: number, paint: (surface: import("./painter.js").Surface) => void}}
 */
export function picture(run, columns, colours) {
  const room = WIDTH - 2 * MARGIN - NAMES;
  const lines = columns.lines(0, run.rows.length, room);
  const lineHeight = RULER + run.lanes.length * LANE + LATENCY_HEIGHT + BETWEEN;
  const height = HEAD + lines.length * lineHeight + MARGIN;
  const paint = (surface) => {
    surface.rect(0, 0, WIDTH, height, { fill: colours.card });
    paintHead(moved(surface, MARGIN, 0), run, colours);
    lines.forEach(([from, to], i) => {
      paintLine(moved(surface, MARGIN, HEAD + i * lineHeight), run, columns, colours, from, to, room);
    });
  };
  return { width: WIDTH, height, paint };
}

function paintHead(surface, run, colours) {
  const title = [run.model, run.topology.name].filter(Boolean).join(" / ");
  const size = `${run.rows.length} rows, ${run.tokens} tokens`;
  surface.text(0, 38, plain(title), { fill: colours.ink, font: FONT.replace("13px", "600 20px") });
  surface.text(WIDTH - 2 * MARGIN, 38, size, { fill: colours.muted, font: FONT, anchor: "end" });
  let x = 0;
  const roles = [...new Set(run.lanes.map((lane) => lane.role))];
  for (const role of roles) {
    surface.rect(x, 54, 22, 16, { fill: colours[`${role}-tint`], stroke: colours[role], round: 4 });
    surface.text(x + 30, 67, role, { fill: colours.ink, font: FONT });
    x += 58 + role.length * 7;
  }
  surface.rect(x, 54, 22, 16, { fill: colours.card, stroke: colours.ink, round: 4, dash: [3, 2] });
  surface.text(x + 30, 67, "forced", { fill: colours.ink, font: FONT });
  surface.rect(x + 100, 58, 22, 12, { fill: colours.bar, round: 2 });
  const top = `${Math.round(slowestOf(run))} ms`;
  const scale = `time since the row before, paler where it waited for input; full height is ${top} or more`;
  surface.text(x + 130, 67, scale, { fill: colours.ink, font: FONT });
}

function paintLine(surface, run, columns, colours, from, to, room) {
  const { t, at } = run.rows[from];
  surface.text(NAMES, 11, `row ${t}, ${at.toFixed(2)} s`, { fill: colours.muted, font: SMALL });
  run.lanes.forEach((lane, h) => {
    surface.text(0, RULER + h * LANE + 22, plain(lane.label), {
      fill: colours[lane.role],
      font: FONT.replace("13px", "600 13px"),
    });
  });
  surface.text(0, RULER + run.lanes.length * LANE + 24, "ms between rows", {
    fill: colours.muted,
    font: SMALL,
  });
  paintLanes(moved(surface, NAMES, RULER), {
    run,
    columns,
    colours,
    from,
    to,
    shift: columns.x(from),
    laneHeight: LANE,
    drop: 0,
    width: room,
    slowest: slowestOf(run),
  });
}

/** Names come from a topology of anybody's; a picture shows them on one line. */
function plain(text) {
  return text.replace(/\p{C}/gu, "▯");
}

/** The same surface, somewhere else. @returns {import("./painter.js").Surface} */
function moved(surface, dx, dy) {
  return {
    rect: (x, y, ...rest) => surface.rect(x + dx, y + dy, ...rest),
    text: (x, y, ...rest) => surface.text(x + dx, y + dy, ...rest),
    line: (x1, y1, x2, y2, stroke) => surface.line(x1 + dx, y1 + dy, x2 + dx, y2 + dy, stroke),
  };
}

/** A surface that becomes an SVG. Elements are made, not written, so that no text can become markup. */
function svgSurface(root) {
  const add = (tag, attributes, words) => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== undefined)
        element.setAttribute(name, typeof value === "number" ? String(Math.round(value * 100) / 100) : value);
    }
    if (words !== undefined) element.textContent = words;
    root.append(element);
  };
  return {
    rect: (x, y, width, height, look) =>
      add("rect", {
        x,
        y,
        width,
        height,
        rx: look.round,
        fill: look.fill ?? "none",
        stroke: look.stroke,
        "stroke-dasharray": look.dash?.join(" "),
      }),
    text: (x, y, words, look) => {
      const [, weight, size, family] = /^(?:(\d+) )?(\d+)px (.*)$/.exec(look.font) ?? [];
      add(
        "text",
        {
          x,
          y,
          fill: look.fill,
          "font-size": size,
          "font-weight": weight,
          "font-family": family,
          "text-anchor": look.anchor === "start" ? undefined : look.anchor,
        },
        words,
      );
    },
    line: (x1, y1, x2, y2, stroke) => add("line", { x1, y1, x2, y2, stroke }),
  };
}

/** @returns {string} */
export function toSvg(run, columns, colours) {
  const { width, height, paint } = picture(run, columns, colours);
  const root = document.createElementNS(SVG, "svg");
  const attributes = { width, height, viewBox: `0 0 ${width} ${height}`, role: "img" };
  for (const [name, value] of Object.entries(attributes)) root.setAttribute(name, String(value));
  const title = document.createElementNS(SVG, "title");
  title.textContent = plain(`Streams of ${run.model}, ${run.rows.length} rows`);
  root.append(title);
  paint(svgSurface(root));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(root)}\n`;
}

/** @returns {Promise<Blob>} @throws {PictureError} */
export async function toPng(run, columns, colours) {
  const { width, height, paint } = picture(run, columns, colours);
  const scale = [2, 1].find((each) => height * each <= MAX_PIXELS);
  if (!scale) {
    throw new PictureError(
      `${run.rows.length} rows are too many for one PNG. Export an SVG, or move the slider back and export that part.`,
    );
  }
  const canvas = document.createElement("canvas");
  canvas.width = width * scale;
  canvas.height = height * scale;
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  paint(canvasSurface(context));
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  if (!blob) throw new PictureError("The browser could not make a PNG; export an SVG instead.");
  return blob;
}

/** A name for a file of this run. @param {import("./run.js").Run} run @param {string} kind */
export function fileName(run, kind) {
  const name = (run.topology.name ?? "streams").replace(/[^\w-]+/g, "-").slice(0, 40);
  return `braid-${name}-${new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-")}.${kind}`;
}
