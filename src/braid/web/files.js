/** Saving, opening and exporting runs: the buttons, and files that are dropped on the page. */

import { byId, download } from "./dom.js";
import { fileName, PictureError, toPng, toSvg } from "./export.js";
import { MAX_BYTES, parse, RecordingError, serialise } from "./recording.js";
import { fold } from "./run.js";

export class Files {
  /**
   * @param {import("./store.js").Store} store
   * @param {import("./lanes.js").Lanes} lanes
   * @param {import("./live.js").Live} live
   * @param {(words: string) => void} complain
   */
  constructor(store, lanes, live, complain) {
    Object.assign(this, { store, lanes, live, complain });
    byId("save").addEventListener("click", () => this.save());
    byId("export-svg").addEventListener("click", () => this.exportSvg());
    byId("export-png").addEventListener("click", () => this.exportPng());
    byId("open-file").addEventListener("click", () => byId("file").click());
    byId("file").addEventListener("change", (event) => {
      const [file] = event.target.files;
      event.target.value = ""; // so that the same file can be chosen again
      if (file) this.open(file);
    });
    this.#watchDrops();
    store.subscribe((state) => {
      for (const id of ["save", "export-svg", "export-png"]) byId(id).disabled = state.run.rows.length === 0;
    });
  }

  save() {
    const { entries, run, setup } = this.store.state;
    if (!run.rows.length) return;
    download(
      fileName(run, "json"),
      new Blob([serialise(entries, setup.version)], { type: "application/json" }),
    );
  }

  /** @param {File} file */
  async open(file) {
    try {
      if (file.size > MAX_BYTES)
        throw new RecordingError("This file is larger than any run that this page saves.");
      const entries = parse(await file.text());
      this.live.leave();
      this.store.update({
        entries,
        run: fold(entries),
        view: null,
        isPlaying: false,
        isOpened: true,
        compared: null,
        follows: true,
      });
    } catch (error) {
      this.complain(
        error instanceof RecordingError ? `${file.name}: ${error.message}` : `${file.name} cannot be read.`,
      );
    }
  }

  exportSvg() {
    const run = this.store.shown;
    if (!run.rows.length) return;
    const text = toSvg(run, this.lanes.columns, this.lanes.colours);
    download(fileName(run, "svg"), new Blob([text], { type: "image/svg+xml" }));
  }

  async exportPng() {
    const run = this.store.shown;
    if (!run.rows.length) return;
    try {
      download(fileName(run, "png"), await toPng(run, this.lanes.columns, this.lanes.colours));
    } catch (error) {
      if (!(error instanceof PictureError)) throw error;
      this.complain(error.message);
    }
  }

  #watchDrops() {
    const holds = (event) => event.dataTransfer?.types.includes("Files");
    addEventListener("dragover", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      byId("drop").hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) byId("drop").hidden = true;
    });
    addEventListener("drop", (event) => {
      if (!holds(event)) return;
      event.preventDefault();
      byId("drop").hidden = true;
      this.open(event.dataTransfer.files[0]);
    });
  }
}
