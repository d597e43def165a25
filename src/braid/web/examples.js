/** Questions that type themselves, for somebody who only wants to watch. */

import { byId, make } from "./dom.js";

const QUESTIONS = [
  "Sally has three apples, gives one to Tom and buys five more. How many apples does she have now?",
  "I have a long train ride tomorrow. Which three things should I pack, and why?",
];
/** Between two letters: a brisk typist. */
const LETTER_MS = 55;

/**
 * @param {import("./store.js").Store} store
 * @param {import("./composer.js").Composer} composer
 */
export function offerExamples(store, composer) {
  for (const question of QUESTIONS) {
    const button = make("button", { type: "button", class: "button", text: question });
    button.addEventListener("click", () => typeOut(question, store, composer));
    byId("tries").append(button);
  }
}

/** Type a question letter by letter; stop as soon as somebody else types, or the session is another one. */
function typeOut(question, store, composer) {
  const { box } = composer;
  const { run } = store.state;
  const letters = Array.from(question);
  let typed = "";
  box.focus();
  const step = () => {
    if (box.value !== typed || store.state.run !== run) return;
    if (!letters.length) {
      composer.finish();
      return;
    }
    const letter = letters.shift();
    typed += letter;
    composer.type(letter);
    setTimeout(step, LETTER_MS);
  };
  step();
}
