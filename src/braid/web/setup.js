/** The dialog in which the next session is set up: topology, wait and visibility of its outputs, input, sampling. */

import { byId, make, setText } from "./dom.js";
import { roleOf } from "./run.js";

const OWN = "(your own)";

/** What the page begins with. */
export function firstConfig(setup) {
  return {
    name: setup.start_with,
    own: null,
    ownText: "",
    changes: {},
    input: suitedInput(setup.topologies[setup.start_with].topology),
    mode: "exact",
    seed: 0,
    temperature: null,
  };
}

/** Where nobody speaks before the end of the only input, it may as well change until then. */
function suitedInput(topology) {
  const specs = Object.values(topology.streams);
  const outputs = specs.filter((spec) => spec.direction === "output");
  const isPlain = specs.length === 2 && outputs.length === 1 && outputs[0].visibility !== "internal";
  return isPlain ? "editable" : "live";
}

export class Setup {
  /**
   * @param {import("./store.js").Store} store
   * @param {() => void} onApply begins the new session
   */
  constructor(store, onApply) {
    this.store = store;
    this.onApply = onApply;
    this.dialog = byId("setup");
    this.choice = byId("topology");
    byId("open-setup").addEventListener("click", () => this.open());
    byId("setup-cancel").addEventListener("click", () => this.dialog.close());
    this.choice.addEventListener("change", () => {
      this.#choose();
      const chosen = this.store.state.setup.topologies[this.choice.value];
      if (chosen) byId("input-kind").value = suitedInput(chosen.topology);
      this.#offerMode();
    });
    byId("input-kind").addEventListener("change", () => this.#offerMode());
    byId("setup-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#apply();
    });
  }

  open() {
    const { config, setup } = this.store.state;
    const names = [...Object.keys(setup.topologies), OWN];
    this.choice.replaceChildren(...names.map((name) => make("option", { value: name, text: name })));
    this.choice.value = config.own ? OWN : config.name;
    byId("input-kind").value = config.input;
    byId("mode").value = config.mode;
    this.#offerMode();
    byId("seed").value = String(config.seed);
    byId("temperature").value = config.temperature ?? "";
    this.#choose(config.changes);
    this.dialog.showModal();
  }

  /** Only a text that may still change has edits. */
  #offerMode() {
    byId("mode-field").hidden = byId("input-kind").value !== "editable";
  }

  #choose(changes = {}) {
    const { config, setup } = this.store.state;
    const isOwn = this.choice.value === OWN;
    setText(byId("setup-problem"), "");
    byId("own-field").hidden = !isOwn;
    byId("outputs").hidden = isOwn;
    if (isOwn) {
      setText(byId("topology-words"), "Streams as a topology file spells them.");
      byId("own").value ||= config.ownText || setup.topologies[config.name].yaml;
      return;
    }
    const { topology } = setup.topologies[this.choice.value];
    setText(byId("topology-words"), topology.description ?? "");
    const outputs = Object.entries(topology.streams).filter(([, spec]) => spec.direction === "output");
    byId("output-rows").replaceChildren(
      ...outputs.map(([name, spec]) => outputRow(name, { ...spec, ...changes[name] })),
    );
  }

  async #apply() {
    const { config, setup } = this.store.state;
    try {
      const own = this.choice.value === OWN ? await readOwn(byId("own").value) : null;
      const name = own ? config.name : this.choice.value;
      const next = {
        name,
        own,
        ownText: byId("own").value,
        changes: own ? {} : readChanges(setup.topologies[name].topology),
        input: byId("input-kind").value,
        mode: byId("mode").value,
        seed: readSeed(byId("seed").value),
        temperature: readTemperature(byId("temperature").value),
      };
      this.store.update({ config: next });
    } catch (error) {
      setText(byId("setup-problem"), error.message);
      return;
    }
    this.dialog.close();
    this.onApply();
  }
}

function outputRow(name, spec) {
  const wait = make("input", {
    type: "text",
    class: "wait",
    value: waitText(spec.wait_k),
    placeholder: "no wait",
    "aria-label": `${name}: wait for`,
  });
  const seen = make(
    "select",
    { class: "seen", "aria-label": `${name}: visibility` },
    make("option", { value: "external", text: "external" }),
    make("option", { value: "internal", text: "internal" }),
  );
  seen.value = spec.visibility ?? "external";
  const role = roleOf(name, false, spec.visibility === "internal");
  return make(
    "div",
    { class: `output-row role-${role}`, "data-stream": name },
    make("b", { text: name }),
    make("label", { text: "Wait-k" }, wait),
    make("label", { text: "Visibility" }, seen),
  );
}

function waitText(wait) {
  if (wait == null) return "";
  return typeof wait === "object" ? "adaptive" : String(wait);
}

/** What was changed of the outputs, by stream. */
function readChanges(topology) {
  const changes = {};
  for (const row of byId("output-rows").children) {
    const name = row.dataset.stream;
    const spec = topology.streams[name];
    const change = {};
    const wait = row.querySelector(".wait").value.trim();
    if (wait !== waitText(spec.wait_k)) change.wait_k = readWait(name, wait);
    const visibility = row.querySelector(".seen").value;
    if (visibility !== (spec.visibility ?? "external")) change.visibility = visibility;
    if (Object.keys(change).length) changes[name] = change;
  }
  return changes;
}

function readWait(name, text) {
  if (text === "") return null;
  if (text === "end" || text === "adaptive") return text;
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text);
  throw new Error(
    `“${text}” is no wait for ${name}: say a number of input tokens from 1, “end”, “adaptive”, or nothing.`,
  );
}

function readSeed(text) {
  const seed = Number(text || 0);
  if (!Number.isSafeInteger(seed) || seed < 0) throw new Error("The seed is a whole number from 0.");
  return seed;
}

function readTemperature(text) {
  if (text.trim() === "") return null;
  const value = Number(text);
  if (!Number.isFinite(value) || value < 0)
    throw new Error("The temperature is 0 (the likeliest token) or more.");
  return value;
}

/** The server reads YAML, and says what is wrong with it. */
async function readOwn(text) {
  let answer;
  try {
    answer = await fetch(new URL("playground/topology", document.baseURI), { method: "POST", body: text });
  } catch {
    throw new Error("The server cannot be reached to read the topology; try again.");
  }
  const told = await answer.json().catch(() => ({}));
  if (!answer.ok)
    throw new Error(told.error?.message ?? `The server did not read the topology (${answer.status}).`);
  return told.topology;
}
