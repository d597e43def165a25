/** A run as a file: all that both sides said, when, and the version of this form. What is damaged is told in words. */

import { fold } from "./run.js";

export const FORMAT = "braid-run";
export const VERSION = 1;
export const MAX_BYTES = 256 * 1024 * 1024;

/** What is wrong with a file, for a person. */
export class RecordingError extends Error {}

/** @param {import("./run.js").Entry[]} entries @param {string} braid version of the server @returns {string} */
export function serialise(entries, braid) {
  const head = JSON.stringify({ format: FORMAT, version: VERSION, braid, saved: new Date().toISOString() });
  const lines = entries.map(({ sent, at, message }) =>
    JSON.stringify({ sent, at: Number(at.toFixed(4)), message }),
  );
  return `${head.slice(0, -1)},"entries":[\n${lines.join(",\n")}\n]}\n`;
}

/**
 * The entries of a file.
 * @param {string} text
 * @returns {import("./run.js").Entry[]}
 * @throws {RecordingError}
 */
export function parse(text) {
  let data;
  try {
    data = JSON.parse(text);
  } catch {
    throw new RecordingError("This file is no saved run: it is not JSON, or a part of it is missing.");
  }
  if (data?.format !== FORMAT) {
    throw new RecordingError("This is JSON, but no run that a Braid playground saved.");
  }
  if (!Number.isInteger(data.version) || data.version < 1) {
    throw new RecordingError("This saved run does not say which version it has; its beginning is damaged.");
  }
  if (data.version > VERSION) {
    throw new RecordingError(
      `This run was saved in version ${data.version}; this page reads up to version ${VERSION}. Update Braid.`,
    );
  }
  if (!Array.isArray(data.entries)) throw new RecordingError("This saved run has no entries; it is damaged.");
  data.entries.forEach(check);
  if (!data.entries.some((entry) => !entry.sent && entry.message.type === "opened")) {
    throw new RecordingError("This saved run holds no session: nothing was ever opened.");
  }
  fold(data.entries);
  return data.entries;
}

const isText = (value) => typeof value === "string";
const isCount = (value) => Number.isInteger(value) && value >= 0;
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isTexts = (value) => Array.isArray(value) && value.every(isText);
const isCells = (value) =>
  isObject(value) &&
  Object.values(value).every((cell) => isObject(cell) && isText(cell.text) && isCount(cell.token));
const isStreams = (value) =>
  isObject(value) && isObject(value.streams) && Object.values(value.streams).every(isObject);

/** What the fold relies on, by kind of message. */
const TOLD = {
  opened: {
    session: isText,
    model: isText,
    topology: isStreams,
    lanes: isTexts,
    inputs: isTexts,
    outputs: isTexts,
  },
  row: { t: isCount, cells: isCells },
  delta: { t: isCount, stream: isText, text: isText },
  state: { stream: isText, state: isText },
  tool_call: { call: isText, name: isText, arguments: isObject },
  turn: { turn: isCount },
};
const SENT = {
  write: { stream: isText, text: isText },
  snapshot: { streams: (value) => isObject(value) && Object.values(value).every(isText) },
};

function check(entry, i) {
  const damaged = (what) => new RecordingError(`This saved run is damaged: entry ${i + 1} ${what}.`);
  if (!isObject(entry) || typeof entry.sent !== "boolean" || !Number.isFinite(entry.at))
    throw damaged("is none");
  if (!isObject(entry.message) || !isText(entry.message.type)) throw damaged("has no message");
  const needs = entry.sent ? SENT : TOLD;
  const { type } = entry.message;
  if (!Object.hasOwn(needs, type)) return;
  for (const [name, holds] of Object.entries(needs[type])) {
    if (!holds(entry.message[name])) throw damaged(`(${type}) has no proper “${name}”`);
  }
}
