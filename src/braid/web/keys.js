/** Keyboard shortcuts, and the list of them. Single letters count only outside of fields. */

import { byId, make } from "./dom.js";

/**
 * @param {Object<string, {words: string, act: (() => void) | null}>} shortcuts by key; without `act`, only listed
 * @param {() => void} onEscape
 */
export function bindKeys(shortcuts, onEscape) {
  const list = byId("keys");
  for (const [key, { words }] of Object.entries(shortcuts)) {
    list.append(make("dt", {}, make("kbd", { text: key })), make("dd", { text: words }));
  }
  const help = byId("help");
  byId("open-help").addEventListener("click", () => help.showModal());
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Escape") {
      onEscape();
      return;
    }
    if (event.target.closest?.("input:not([type=range]), textarea, select")) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    const shortcut = Object.hasOwn(shortcuts, key) ? shortcuts[key] : undefined;
    if (!shortcut?.act) return;
    event.preventDefault();
    shortcut.act();
  });
}
