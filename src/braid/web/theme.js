/** Light, dark, or as the system has it; remembered where the browser allows that. */

import { byId, setText } from "./dom.js";

const KEY = "braid-theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export class Theme {
  /** @param {() => void} onChange */
  constructor(onChange) {
    this.onChange = onChange;
    this.choice = remembered();
    byId("theme").addEventListener("click", () => this.next());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
    this.#show();
  }

  next() {
    this.choice = NEXT[this.choice];
    try {
      localStorage.setItem(KEY, this.choice);
    } catch {
      // A browser that keeps nothing still shows it.
    }
    this.#show();
    this.onChange();
  }

  #show() {
    document.documentElement.dataset.theme = this.choice;
    setText(byId("theme-sign"), SIGNS[this.choice]);
    byId("theme").setAttribute("aria-label", `Theme: ${this.choice}`);
  }
}

function remembered() {
  try {
    const kept = localStorage.getItem(KEY);
    return kept !== null && Object.hasOwn(NEXT, kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}
