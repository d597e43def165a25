/** Where rows stand along time: a column is as wide as its widest token. Widths only add up, so that 100,000 rows cost
 * nothing to draw: a binary search finds those that are visible. */

/** Text of a cell as it may be shown on one line. @param {{text: string, token: number}} cell */
export function visibleText(cell) {
  const text = cell.text.replace(/^ (?=\S)/, "");
  if (text === "") return `#${cell.token}`;
  const plain = text
    .replace(/\r?\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/ /g, text.trim() ? " " : "␣")
    .replace(/\p{C}/gu, "▯");
  const letters = Array.from(plain);
  return letters.length > 28 ? `${letters.slice(0, 27).join("")}…` : plain;
}

export const MIN_WIDTH = 22;
const PADDING = 12;
const GAP = 4;

export class Columns {
  /** @param {(text: string) => number} measure width of a text, in pixels */
  constructor(measure) {
    this.measure = measure;
    /** Left edge of every column, and the right edge of the last. */
    this.edges = [0];
  }

  /** How many columns there are. */
  get length() {
    return this.edges.length - 1;
  }

  /** Width of them all. */
  get total() {
    return this.edges[this.length];
  }

  /** Add columns for the rows that have none yet. @param {import("./run.js").Row[]} rows */
  grow(rows) {
    for (let i = this.length; i < rows.length; i += 1) {
      let width = MIN_WIDTH;
      for (const cell of Object.values(rows[i].cells)) {
        width = Math.max(width, Math.ceil(this.measure(visibleText(cell))) + PADDING);
      }
      this.edges.push(this.edges[i] + width + GAP);
    }
  }

  /** Left edge. @param {number} i */
  x(i) {
    return this.edges[i];
  }

  /** Width without the gap. @param {number} i */
  width(i) {
    return this.edges[i + 1] - this.edges[i] - GAP;
  }

  /** The column at a place; clamped. @param {number} x */
  at(x) {
    let low = 0;
    let high = this.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.edges[middle] <= x) low = middle;
      else high = middle - 1;
    }
    return Math.max(0, low);
  }

  /** Break columns into lines that are at most so wide, as music is. @returns {[number, number][]} from, to */
  lines(from, to, width) {
    /** @type {[number, number][]} */
    const found = [];
    let start = from;
    for (let i = from; i < to; i += 1) {
      if (i > start && this.edges[i + 1] - this.edges[start] > width) {
        found.push([start, i]);
        start = i;
      }
    }
    if (start < to) found.push([start, to]);
    return found;
  }
}
