// The explorer's page: its state stands in the address, what it asks goes to the server as JSON.
"use strict";
const at = (id) => document.getElementById(id);
const made = (tag, set = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), set);
  element.append(...inside);
  return element;
};
const state = {
  text: "Once upon a time there was a little dog.", models: [], layer: null, hidden: [], solvers: [],
  noise: 0, kind: "invert", lens: "logit", precision: "noise 1 rms", cut: null, // tokens by the models before
};
let known, missing = [], seen = null, running = null, sentence = null, asking = 0, measured = [], expected = 0, began = 0;

// ---- the address

const LISTS = { model: "models", solver: "solvers", hidden: "hidden" };

const read = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  for (const name of ["text", "kind", "lens", "precision"]) state[name] = given.get(name) ?? state[name];
  for (const [word, name] of Object.entries(LISTS)) state[name] = given.getAll(word);
  missing = state.models.filter((name) => !names().includes(name));
  state.models = state.models.filter((name) => names().includes(name)).slice(0, 2);
  state.solvers = state.solvers.filter((name) => known.solvers.some((one) => one.name === name));
  [state.hidden, state.cut] = [state.hidden.map(Number), null];
  state.layer = given.has("layer") ? Number(given.get("layer")) : null;
  state.noise = Number(given.get("noise") ?? 0);
  if (!state.models.length) state.models = [...known.suggested];
};

const names = () => known.runs.flatMap(({ models }) => models);

const write = () => {
  const lines = [["text", state.text]];
  for (const [word, name] of Object.entries(LISTS)) lines.push(...state[name].map((one) => [word, one]));
  for (const name of ["layer", "noise", "kind", "lens", "precision"]) {
    if (state[name] || state[name] === 0 && name === "layer") lines.push([name, state[name]]);
  }
  const address = `#${new URLSearchParams(lines)}`;
  try { history.replaceState(null, "", address); } catch { /* Safari takes a hundred in 30 s; a later one does it */ }
  return address;
};

const question = (changes = {}) => {
  const { text, models, layer, hidden, solvers, noise, kind, lens } = { ...state, ...changes };
  return JSON.stringify({ text, models, layer, hidden, solvers, noise, kind, lens });
};

const post = async (path, body, signal) => {
  const headers = { "Content-Type": "application/json" };
  const response = await fetch(path, { method: "POST", headers, body, signal }).catch((error) => {
    throw signal?.aborted ? error : new Error("the server does not answer; is it still running?");
  });
  if (!response.ok) throw new Error(reason(await response.text()));
  return response;
};

const reason = (text) => { // of a refusal, also of one that a proxy wrote
  try {
    return JSON.parse(text).error;
  } catch {
    return text.slice(0, 300) || "the server gave no reason";
  }
};

const say = (text, wrong = false) => {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", wrong);
};

// ---- what is asked

const changed = () => { // what was said is of the question before
  at("copied").hidden = true;
  if (!running) say("");
  clearTimeout(asking);
  asking = setTimeout(() => { write(); look(); }, 120);
};

const look = async () => {
  const asked = question();
  try {
    if (state.cut && state.hidden.length) { // positions stay where another model cuts the sentence alike
      const { tokens } = await (await post("/look", question({ hidden: [] }))).json();
      if (asked !== question()) return;
      if (tokens.join("\n") !== state.cut.join("\n")) { state.hidden = []; return changed(); }
    }
    const answer = await (await post("/look", asked)).json();
    if (asked !== question()) return;
    [seen, state.cut] = [answer, null];
    draw();
  } catch (error) {
    if (asked !== question()) return;
    seen = null;
    draw();
    say(error.message, true);
  }
};

const isHidden = (i) => state.hidden.includes(i);
const lastShown = () => seen.tokens.findLastIndex((_, i) => !isHidden(i));

const draw = () => {
  for (const id of ["invert", "bits", "look"]) at(id).disabled = !seen;
  drawTokens();
  if (!seen) return at("shown").replaceChildren();
  at("layer").max = seen.layers;
  at("layer").value = state.layer ?? seen.layers;
  const layer = at("layer").value;
  at("layer-is").textContent = layer === "0" ? "0, the embedding" : `${layer} of ${seen.layers}`;
  const after = seen.tokens.length - 1 - lastShown();
  const lost = after ? " Later tokens leave no trace in earlier outputs: those hidden at the end cannot be known." : "";
  at("shown").replaceChildren(
    state.hidden.length ? `${state.hidden.length} of ${seen.tokens.length} tokens hidden.` : `All ${seen.tokens.length} tokens are shown.`,
    lost, ` As a slice: ${seen.slice}. Corpus: ${seen.corpus}.`);
  at("chosen").textContent = seen.asked.join(", ");
  for (const box of at("solvers").querySelectorAll("input")) {
    const reason = seen.refusals[box.value];
    box.checked = seen.asked.includes(box.value);
    box.parentElement.classList.toggle("cannot", Boolean(reason));
    box.parentElement.querySelector("small").textContent = reason ?? box.parentElement.title.replace(/\. .*/, ".");
  }
};

const drawTokens = () => {
  const tokens = seen?.tokens ?? [];
  const buttons = [...at("tokens").children];
  if (buttons.map((button) => button.textContent).join("\n") !== tokens.join("\n")) {
    const focused = buttons.indexOf(document.activeElement);
    const drawn = tokens.map((piece, i) => {
      const button = made("button", { type: "button", textContent: piece, tabIndex: i ? -1 : 0 });
      button.addEventListener("click", () => toggle(i));
      return button;
    });
    at("tokens").replaceChildren(...drawn);
    if (focused >= 0) drawn[Math.min(focused, drawn.length - 1)]?.focus();
  } // else the same buttons stay, so that a press that has begun is not lost
  [...at("tokens").children].forEach((button, i) => {
    button.setAttribute("aria-pressed", isHidden(i));
    button.setAttribute("aria-label", `${tokens[i]}, ${isHidden(i) ? "hidden" : "shown"}`);
  });
};

const toggle = (i) => {
  const hidden = isHidden(i) ? state.hidden.filter((j) => j !== i) : [...state.hidden, i];
  if (hidden.length === seen.tokens.length) return say("one token at least must be shown", true);
  state.hidden = hidden.sort((a, b) => a - b);
  changed();
  drawTokens();
};

const MOVES = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
const move = (event) => {
  const buttons = [...at("tokens").children];
  const now = buttons.indexOf(document.activeElement);
  if (!(event.key in MOVES) || now < 0) return;
  event.preventDefault();
  const next = Math.max(0, Math.min(buttons.length - 1, now + MOVES[event.key]));
  buttons.forEach((button, i) => { button.tabIndex = i === next ? 0 : -1; });
  buttons[next].focus();
};

// ---- what comes back

const ask = async (kind) => {
  if (!seen) return;
  stop();
  const mine = running = new AbortController();
  state.kind = kind;
  write();
  say("asking …");
  at("results").replaceChildren(); // of another question, also where this one is refused
  const started = performance.now();
  const seconds = () => `${((performance.now() - started) / 1000).toFixed(1)} s`;
  at("stop").disabled = false;
  const refusals = [];
  let begun = 0, ended = false;
  try {
    const response = await post("/ask", question(), mine.signal);
    for await (const event of lines(response.body)) {
      if (running !== mine) return;
      if (event.type === "question") {
        sentence = event; // the form may hold another one by the time of the answer
        show[kind].prepare?.(event);
      }
      if (event.type === "waiting") say(event.before ? `waiting; ${event.before} before you` : "");
      if (event.type === "begin") { begun++; say("at work …"); }
      if (event.type === "refused") { refusals.push(event.text); refused(event); }
      ended = event.type === "end";
      const answered = begun > refusals.length && !event.error && !event.stopped;
      if (!ended || answered) show[kind][event.type]?.(event);
      if (ended) {
        const why = event.error ?? (kind === "invert" ? "" : refusals.join("; "));
        say(why || (event.stopped ? `${event.stopped} after ${seconds()}` : `done in ${seconds()}`), Boolean(why));
      }
    }
    if (!ended) throw new Error("the server ended before the answer came");
  } catch (error) {
    if (running !== mine) return;
    const stopped = mine.signal.aborted;
    mine.abort(); // so that the server does not work on
    say(stopped ? `stopped after ${seconds()}` : error.message, !stopped);
  }
  if (running !== mine) return;
  running = null;
  at("stop").disabled = true;
};

async function* lines(body) {
  let rest = "";
  const decoder = new TextDecoder();
  const reader = body.getReader();
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    const parts = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = parts.pop();
    yield* parts.map(JSON.parse);
  }
}

const stop = () => running?.abort();

const sides = (models, name) => {
  const cards = models.map((model, i) =>
    made("article", { className: "card", id: `side-${i}` }, made("h2", { textContent: model })));
  at("results").append(made("div", { className: `sides ${name}` }, ...cards));
  return cards;
};
const block = ({ model, solver }) => document.querySelector(`#side-${model} [data-solver="${solver}"]`);
const refused = (event) => {
  const place = block(event);
  if (place) place.querySelector(".figures").textContent = event.text;
  else say(event.text, true);
};
const number = (value) => (value === null || value === undefined ? "unknown" : value && Math.abs(value) < 1e-3 ? value.toExponential(2) : Number(value.toPrecision(3)).toString());

const cell = (piece, i, right, mark) => {
  const marks = ["t", right ? "" : "wrong", sentence.hidden.includes(i) ? "hid" : "", mark].filter(Boolean).join(" ");
  const title = right ? "" : `the sentence has ${sentence.tokens[i]} here`;
  return made("b", { className: marks, textContent: piece.replaceAll("\ufffd", "▯"), title });
};

const PROOFS = {
  enumerated: "proved: every other choice was tried, and none fits",
  residual: "matches: this sentence gives the same outputs, up to rounding",
};

const show = {
  invert: {
    prepare({ models, asked }) {
      for (const card of sides(models, "recovered")) for (const solver of asked) {
        const section = made("section", {}, made("h3", { textContent: solver }),
          made("p", { className: "strip found" }), made("p", { className: "note figures" }));
        section.dataset.solver = solver;
        card.append(section);
      }
    },
    tokens(event) {
      const place = block(event);
      place.querySelector(".found").replaceChildren(...event.found.map((piece, i) =>
        cell(piece, i, event.right[i], event.settled?.[i] ? "" : "open")));
      const settled = event.settled?.filter(Boolean).length ?? 0;
      const margin = event.margin === null ? "" : `; the next best errs ${number(2 ** event.margin)} times as much as rounding`;
      place.querySelector(".figures").textContent = `${settled} of ${event.found.length} tokens stand so far${margin}`;
    },
    answer(event) {
      const place = block(event);
      const { right, ambiguous, found } = event;
      const lost = sentence.tokens.length - found.length;
      const cells = found.map((piece, i) => cell(piece, i, right[i] || ambiguous[i], ambiguous[i] ? "same" : ""));
      for (let i = 0; i < lost; i++) {
        cells.push(made("b", { className: "t lost", textContent: "?", title: "cannot be known: no output after it is kept" }));
      }
      place.querySelector(".found").replaceChildren(...cells);
      const proof = event.uncertified ?? PROOFS[event.certificate] ?? (event.at_floor ? PROOFS.residual : "not found: this sentence gives other outputs");
      place.querySelector(".figures").textContent = [
        `${right.filter(Boolean).length} of ${found.length} tokens right`, proof,
        ...(lost ? [`${lost} cannot be known`] : []),
        `error ${number(event.residual)}, rounding limit ${number(event.floor)}`,
        ...(event.margin_bits === null ? [] : [`the nearest wrong token errs ${number(2 ** event.margin_bits)} times as much as rounding`]),
        `${event.evaluations.toLocaleString("en")} tokens run in ${number(event.seconds)} s`,
      ].join("; ");
    },
    end() {
      const link = made("a", { href: `/results/${sentence.name}`, target: "_blank", rel: "noopener", textContent: "The same as a page of evidence" });
      at("results").append(made("p", { className: "note" }, link));
    },
  },
  bits: {
    prepare({ models }) {
      const menu = made("select", { id: "precision" });
      menu.addEventListener("change", () => { state.precision = menu.value; write(); drawBits(); });
      const about = "One token at a time is asked about, with all others given: hidden ones as well. The upper bar is what its own output says of it, the lower one what the outputs after it say, up to eight.";
      [measured, expected, began] = [[], models.length * sentence.tokens.length, performance.now()];
      at("results").append(made("label", { className: "switch" }, "Outputs known as ", menu, made("span", { id: "most", textContent: about })));
      for (const card of sides(models, "bits")) card.append(made("p", { className: "strip found" }));
    },
    bits(event) {
      measured.push(event);
      const left = (performance.now() - began) / 1000 * (expected / measured.length - 1);
      say(`${measured.length} of ${expected} tokens measured; about ${Math.ceil(left)} s left`);
      const menu = at("precision");
      if (!menu.options.length) {
        const names = Object.keys(event.bits);
        menu.append(...names.map((name) => made("option", { value: name, textContent: name })));
        menu.value = state.precision = names.includes(state.precision) ? state.precision : names[0];
        at("most").append(` A full bar is ${event.prior.toFixed(1)} bits.`);
      }
      drawBits();
    },
  },
  lens: {
    end() {
      at("results").replaceChildren(made("iframe", { src: `/results/${sentence.name}?inside`, title: "what the lens shows" }));
    },
  },
};

const drawBits = () => {
  for (const place of document.querySelectorAll(".bits .found")) place.replaceChildren();
  for (const event of measured) {
    const bars = event.bits[state.precision].flatMap((value) => {
      const inside = made("i");
      inside.style.width = `${Math.max(0, Math.min(100, (100 * (value ?? 0)) / event.prior))}%`;
      return [made("span", { className: "bar" }, inside), made("small", { textContent: value === null ? "–" : value.toFixed(1) })];
    });
    const token = cell(sentence.tokens[event.place], event.place, true, "");
    document.querySelector(`#side-${event.model} .found`).append(made("span", { className: "token" }, token, ...bars));
  }
};

// ---- beginning

const copy = async (text) => {
  at("copied").textContent = text;
  at("copied").hidden = false;
  try {
    await navigator.clipboard.writeText(text);
    say("copied");
  } catch {
    say("the browser did not let the page copy; the text stands below");
  }
};

const fill = () => {
  for (const name of ["text", "noise", "lens"]) at(name).value = state[name];
  [at("first").value, at("second").value] = [state.models[0], state.models[1] ?? ""];
};

const again = async () => { // an address fills the form; work begins by a press alone
  read();
  fill();
  if (!running) say("");
  await look();
  if (missing.length) say(`the link names ${missing.join(" and ")}, which is not here`, true);
};

const start = async () => {
  known = await (await fetch("/models")).json();
  const option = (name) => made("option", { value: name, textContent: name });
  const groups = () => known.runs.map(({ run, models }) => made("optgroup", { label: run }, ...models.map(option)));
  at("first").append(...groups());
  at("second").append(made("option", { value: "", textContent: "none" }), ...groups());
  at("lens").append(...known.lenses.map(({ name, title }) => made("option", { value: name, textContent: title })));
  at("solvers").append(...known.solvers.map(({ name, text }) =>
    made("label", { title: text }, made("input", { type: "checkbox", value: name }), ` ${name}`, made("small"))));
  at("text").maxLength = known.limits.letters;
  at("noise").max = known.limits.noise;
  const set = (id, event, change) => at(id).addEventListener(event, () => { Object.assign(state, change()); changed(); });
  set("text", "input", () => ({ text: at("text").value, hidden: [] }));
  const models = () => ({ cut: state.cut ?? seen?.tokens, models: [...new Set([at("first").value, at("second").value])].filter(Boolean) });
  for (const id of ["first", "second"]) set(id, "change", models);
  for (const id of ["layer", "noise"]) set(id, "input", () => ({ [id]: Number(at(id).value) || 0 }));
  set("lens", "change", () => ({ lens: at("lens").value }));
  set("solvers", "change", () => ({ solvers: [...at("solvers").querySelectorAll(":checked")].map((box) => box.value) }));
  at("tokens").addEventListener("keydown", move);
  at("form").addEventListener("submit", (event) => { event.preventDefault(); ask("invert"); });
  at("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); ask("invert"); }
  });
  at("bits").addEventListener("click", () => ask("bits"));
  at("look").addEventListener("click", () => ask("lens"));
  at("stop").addEventListener("click", stop);
  const fields = async (name) => copy((await (await post("/look", question())).json())[name]);
  for (const name of ["command", "python"]) {
    at(`copy-${name}`).addEventListener("click", () => fields(name).catch((error) => say(error.message, true)));
  }
  at("copy-link").addEventListener("click", () => copy(new URL(write(), location).href));
  addEventListener("hashchange", again);
  addEventListener("message", ({ source, data }) => { // the height of what a lens shows
    const frame = document.querySelector("iframe");
    if (frame && source === frame.contentWindow) frame.style.height = `${Number(data) + 40}px`;
  });
  await again();
};

start().catch((error) => say(`the page could not begin: ${error.message}`, true));
