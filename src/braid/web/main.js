/**
 * The playground: what is said on the wire is folded into one run, and everything on the page draws that run.
 *
 *     composer ─▶ live ─▶ wire ⇄ server
 *                  │
 *                  ▼ entries
 *                store ─▶ lanes, conversation, figures, player, announcer
 */

import { Announcer } from "./announce.js";
import { Composer } from "./composer.js";
import { Conversation } from "./conversation.js";
import { byId, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { Files } from "./files.js";
import { bindKeys } from "./keys.js";
import { Lanes } from "./lanes.js";
import { Live } from "./live.js";
import { Player } from "./player.js";
import { Run } from "./run.js";
import { offerExamples } from "./examples.js";
import { firstConfig, Setup } from "./setup.js";
import { Store } from "./store.js";
import { Theme } from "./theme.js";

async function start() {
  const setup = await fetchSetup();
  const store = new Store({
    setup,
    config: firstConfig(setup),
    run: new Run(),
    entries: [],
    wire: "closed",
    wireWords: "not connected",
    view: null,
    isPlaying: false,
    isOpened: false,
    follows: true,
    compared: null,
  });
  const lanes = new Lanes(store);
  const theme = new Theme(() => lanes.recolour());
  const announcer = new Announcer(store);
  const live = new Live(store, (problem, isRefused) => tellProblem(problem, isRefused));
  const composer = new Composer(store, live, (words) => announcer.say(words));
  const player = new Player(store);
  const files = new Files(store, lanes, live, (words) => showBanner(words));
  new Conversation(store);
  offerExamples(store, composer);
  new Figures(store);

  const begin = () => {
    hideBanner();
    composer.reset();
    live.begin();
  };
  const setupDialog = new Setup(store, begin);

  function tellProblem(problem, isRefused) {
    const { config } = store.state;
    const other = setup.start_with;
    if (!isRefused || (config.name === other && !config.own && !Object.keys(config.changes).length)) {
      showBanner(problem.message);
      return;
    }
    showBanner(problem.message, `Use ${other}`, () => {
      store.update({ config: { ...firstConfig(setup), seed: config.seed, ownText: config.ownText } });
      begin();
    });
  }

  store.subscribe((state) => drawBar(state, store.shown));
  byId("new-session").addEventListener("click", begin);
  byId("as-text").addEventListener("click", () => lanes.readAsText(!lanes.isText));
  byId("follow").addEventListener("click", () => store.update({ follows: true, view: null }));
  byId("banner-close").addEventListener("click", hideBanner);
  bindKeys(
    {
      Enter: { words: "end your turn (in the text box)", act: null },
      "Shift + Enter": { words: "new line (in the text box)", act: null },
      Esc: { words: "interrupt the model", act: null },
      "← → Home End": { words: "go from row to row (in the lanes)", act: null },
      i: { words: "go to the text box", act: () => byId("words").focus() },
      n: { words: "new session", act: begin },
      s: { words: "session setup", act: () => setupDialog.open() },
      l: { words: "go to the lanes", act: () => byId("scroll").focus() },
      t: { words: "lanes, or all streams as text", act: () => lanes.readAsText(!lanes.isText) },
      f: { words: "follow the newest row", act: () => byId("follow").click() },
      p: { words: "play or pause the replay", act: () => player.toggle() },
      c: { words: "compare with one stream", act: () => byId("compare").click() },
      w: { words: "save the run as a file", act: () => files.save() },
      o: { words: "open a saved run", act: () => byId("file").click() },
      e: { words: "export the lanes as an SVG", act: () => files.exportSvg() },
      d: { words: "theme: system, light, dark", act: () => theme.next() },
      "?": { words: "this list", act: () => byId("help").showModal() },
    },
    () => live.interrupt(),
  );

  if (matchMedia("(min-width: 641px)").matches) byId("words").focus();
  else byId("thoughts").open = false; // a small screen has room for the answer first
  begin();
}

function drawBar(state, run) {
  setText(byId("model"), run.model || state.setup.model);
  setText(byId("shape"), run.topology.name ?? (state.config.own ? "your own" : state.config.name));
  byId("connection").dataset.state = state.wire;
  setText(byId("connection-words"), state.isOpened ? "a saved run" : state.wireWords);
  byId("follow").setAttribute("aria-pressed", String(state.follows));
  const isSpeaking = state.run.lanes.some((lane) => !lane.isInput && lane.doing === "speaking");
  byId("interrupt").disabled = !isSpeaking || state.isOpened;
}

function showBanner(words, actWords = "", act = () => {}) {
  byId("banner").hidden = false;
  setText(byId("banner-words"), words);
  byId("banner-act").hidden = !actWords;
  setText(byId("banner-act"), actWords);
  byId("banner-act").onclick = act;
}

function hideBanner() {
  byId("banner").hidden = true;
}

async function fetchSetup() {
  const answer = await fetch(new URL("playground/setup.json", document.baseURI));
  if (!answer.ok) throw new Error(`the server did not say what it has (${answer.status})`);
  return answer.json();
}

start().catch((error) =>
  showBanner(`The playground could not start: ${error.message}. Reload the page to try again.`),
);
