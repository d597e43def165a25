/**
 * The lanes along time. A canvas as wide as the window stands still inside a box that is as wide as the whole run:
 * the browser scrolls, we draw the rows that are visible. The same rows can be read as text, one after another with the
 * arrow keys, or all at once.
 */

import { byId, make, setText } from "./dom.js";
import { Columns, visibleText } from "./columns.js";
import { canvasSurface, FONT, LATENCY_HEIGHT, paintLanes, readColours, slowestOf } from "./painter.js";
import { latency, textIn } from "./run.js";

export class Lanes {
  /** @param {import("./store.js").Store} store */
  constructor(store) {
    this.store = store;
    this.scroll = byId("scroll");
    this.canvas = byId("canvas");
    this.context = this.canvas.getContext("2d");
    this.context.font = FONT;
    this.columns = this.newColumns();
    /** @type {import("./run.js").Run | null} the run that the columns belong to */
    this.of = null;
    this.cursor = -1;
    this.isText = false;
    this.names = new Map();
    this.colours = readColours();
    this.#watch();
    store.subscribe(() => this.draw());
  }

  /** Columns measured in the font of the lanes. */
  newColumns() {
    const known = new Map();
    return new Columns((text) => {
      let width = known.get(text);
      if (width === undefined) {
        this.context.font = FONT;
        width = this.context.measureText(text).width;
        if (known.size > 20_000) known.clear();
        known.set(text, width);
      }
      return width;
    });
  }

  /** The theme has changed. */
  recolour() {
    this.colours = readColours();
    this.draw();
  }

  /** Draw what is visible now. */
  draw() {
    const run = this.store.state.run; // the whole run gives the columns, so that nothing moves while it is scrubbed
    const shown = this.store.shown;
    if (run !== this.of) this.#begin(run);
    this.columns.grow(run.rows);
    this.#measure(run);
    this.#drawNames(shown);
    this.#follow(shown);
    this.#paint(shown);
    this.#describe(shown);
    byId("empty").hidden = run.rows.length > 0 || this.isText;
    setText(byId("lanes-count"), countWords(run, shown));
    if (this.isText) this.#drawText(shown);
  }

  /** Show the lanes, or the same as text. @param {boolean} isText */
  readAsText(isText) {
    this.isText = isText;
    byId("as-text").setAttribute("aria-pressed", String(isText));
    byId("frame").hidden = isText;
    byId("transcript").hidden = !isText;
    this.draw();
  }

  #begin(run) {
    this.of = run;
    this.columns = this.newColumns();
    this.cursor = -1;
    this.scroll.scrollLeft = 0;
    byId("transcript").replaceChildren();
  }

  #measure(run) {
    const isNarrow = matchMedia("(max-width: 640px)").matches;
    this.drop = isNarrow ? 18 : 0;
    this.laneHeight = isNarrow ? 48 : run.lanes.length > 4 ? 38 : 46;
    const height = Math.max(3, run.lanes.length) * this.laneHeight + LATENCY_HEIGHT;
    const width = this.scroll.clientWidth;
    const ratio = devicePixelRatio || 1;
    byId("spacer").style.width = `${Math.max(width, this.columns.total + 24)}px`;
    if (this.width === width && this.height === height && this.ratio === ratio) return;
    Object.assign(this, { width, height, ratio });
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  #drawNames(run) {
    const list = byId("names");
    if (this.named !== run.lanes.map((lane) => lane.label).join("\n")) {
      this.named = run.lanes.map((lane) => lane.label).join("\n");
      this.names = new Map(run.lanes.map((lane) => [lane.label, nameItem(lane)]));
      this.pace = make("li", { class: "latency" }, make("b", { text: "ms between rows" }), make("span"));
      list.replaceChildren(...this.names.values(), ...(run.lanes.length ? [this.pace] : []));
    }
    for (const lane of run.lanes) {
      const item = this.names.get(lane.label);
      item.style.height = `${this.laneHeight}px`;
      setText(item.lastChild, doingWords(lane));
      item.lastChild.title = item.lastChild.textContent;
    }
    if (!this.pace) return;
    this.pace.style.height = `${LATENCY_HEIGHT}px`;
    const last = latency(run.rows, run.rows.length - 1);
    setText(
      this.pace.lastChild,
      last === null ? "" : `last ${Math.round(last)} ms, scale ${Math.round(slowestOf(run))} ms`,
    );
  }

  #follow(run) {
    if (!this.store.state.follows) return;
    const end = run.rows.length ? this.columns.edges[Math.min(run.rows.length, this.columns.length)] : 0;
    const left = Math.max(0, end + 24 - this.scroll.clientWidth);
    if (Math.abs(left - this.scroll.scrollLeft) > 1) {
      this.followedTo = left;
      this.scroll.scrollLeft = left;
    }
  }

  #paint(run) {
    const { context, columns } = this;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    const count = Math.min(run.rows.length, columns.length);
    const left = this.scroll.scrollLeft;
    const shift = left - 10;
    const from = count ? columns.at(left - 10) : 0;
    const to = count ? Math.min(count, columns.at(left + this.width) + 1) : 0;
    this.visible = [from, to];
    paintLanes(canvasSurface(context), {
      run,
      columns,
      from,
      to,
      shift,
      laneHeight: this.laneHeight,
      drop: this.drop,
      width: this.width,
      slowest: slowestOf(run),
      cursor: this.cursor < 0 ? undefined : this.cursor,
      colours: this.colours,
    });
  }

  /** The row under the cursor, in words: for everybody who cannot, or does not want to, look at a picture. */
  #describe(run) {
    const row = run.rows[this.cursor];
    setText(byId("row-words"), row ? rowWords(run, this.cursor) : "");
  }

  #drawText(run) {
    const box = byId("transcript");
    run.turns.forEach((turn, number) => {
      const part =
        box.children[number] ?? box.appendChild(make("div", {}, make("h3", { text: `Turn ${number + 1}` })));
      for (const lane of run.lanes) {
        const text = textIn(turn, lane);
        let line = part.querySelector(`[data-lane="${CSS.escape(lane.label)}"]`);
        if (!text && !line) continue;
        if (!line) {
          const body = make("span");
          line = make(
            "p",
            { class: `role-${lane.role}`, "data-lane": lane.label },
            make("b", { text: `${lane.label}: ` }),
            body,
          );
          part.append(line);
        }
        setText(line.lastChild, text);
      }
    });
    while (box.children.length > run.turns.length) box.lastChild.remove();
  }

  #moveTo(i) {
    const count = this.store.shown.rows.length;
    if (!count) return;
    this.cursor = Math.max(0, Math.min(count - 1, i));
    const x = this.columns.x(this.cursor);
    const { scrollLeft, clientWidth } = this.scroll;
    const isLeft = x < scrollLeft;
    if (isLeft || x + this.columns.width(this.cursor) > scrollLeft + clientWidth - 12) {
      this.store.state.follows = false;
      this.scroll.scrollLeft = isLeft ? x - 40 : x - clientWidth + this.columns.width(this.cursor) + 40;
    }
    this.store.touch();
  }

  #watch() {
    this.scroll.addEventListener(
      "scroll",
      () => {
        const end = this.scroll.scrollWidth - this.scroll.clientWidth;
        const isOurs = Math.abs(this.scroll.scrollLeft - (this.followedTo ?? -1)) < 2;
        if (!isOurs) this.store.state.follows = this.scroll.scrollLeft > end - 30;
        this.store.touch();
      },
      { passive: true },
    );
    this.scroll.addEventListener("keydown", (event) => {
      const last = this.store.shown.rows.length - 1;
      const here = this.cursor < 0 ? last : this.cursor;
      const page = Math.max(1, (this.visible?.[1] ?? 0) - (this.visible?.[0] ?? 0) - 2);
      const goal = {
        ArrowLeft: here - 1,
        ArrowRight: here + 1,
        Home: 0,
        End: last,
        PageUp: here - page,
        PageDown: here + page,
      }[event.key];
      if (goal === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      this.#moveTo(goal);
    });
    this.scroll.addEventListener("click", (event) => {
      const x = event.clientX - this.scroll.getBoundingClientRect().left + this.scroll.scrollLeft - 10;
      if (x <= this.columns.total) this.#moveTo(this.columns.at(x));
    });
    new ResizeObserver(() => this.store.touch()).observe(this.scroll);
  }
}

function nameItem(lane) {
  return make(
    "li",
    { class: `role-${lane.role}` },
    make("b", { text: lane.label, title: lane.label }),
    make("span"),
  );
}

function doingWords({ doing, reason }) {
  if (!reason) return doing;
  return /^(for|until) /.test(reason) ? `${doing} ${reason}` : `${doing} · ${reason}`;
}

function countWords(run, shown) {
  const count = run.rows.length;
  if (!count) return "no rows yet";
  const { tokens } = shown;
  const rows =
    shown.rows.length === count
      ? `${count} row${count === 1 ? "" : "s"}`
      : `row ${shown.rows.length} of ${count}`;
  return `${rows}, ${tokens} token${tokens === 1 ? "" : "s"}`;
}

/** A row as a sentence. @param {import("./run.js").Run} run @param {number} i */
export function rowWords(run, i) {
  const row = run.rows[i];
  const ms = latency(run.rows, i);
  const cells = run.lanes
    .filter((lane) => row.cells[lane.label])
    .map((lane) => {
      const cell = row.cells[lane.label];
      return `${lane.label} “${visibleText(cell)}”${cell.forced && !lane.isInput ? " (forced)" : ""}`;
    });
  return `Row ${row.t}${ms === null ? "" : `, ${Math.round(ms)} ms after the one before`}: ${cells.join(", ")}.`;
}
