// The explorer's page: its state stands in the address, what it asks goes to the server as JSON.
"use strict";
const at = (id) => document.getElementById(id);
const made = (tag, set = {}, ...inside) => {
  const element = Object.assign(document.createElement(tag), set);
  element.append(...inside);
  return element;
};
const state = {
  text: "Once upon a time there was a little dog.",
  models: [], layer: null, hidden: [],
  solvers: [], noise: 0, kind: "invert", lens: "logit", precision: "noise 1 rms", ran: false,
};
let known, seen = null, source = null, running = null, asking = 0;

// ---- the address

const read = () => {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (given.get(name) ? Number(given.get(name)) : null);
  state.text = given.get("text") ?? state.text;
  state.models = given.getAll("model").filter((name) => known.models.includes(name)).slice(0, 2);
  state.solvers = given.getAll("solver").filter((n) => known.solvers.some((s) => s.name === n));
  state.layer = number("layer");
  state.hidden = given.getAll("hidden").map(Number);
  state.noise = number("noise") ?? 0;
  for (const name of ["kind", "lens", "precision"]) state[name] = given.get(name) ?? state[name];
  state.ran = given.has("ran");
  if (!state.models.length) state.models = suggested();
};

const suggested = () => {
  const last = known.models.at(-1);
  const run = last.replace(/, step.*/, "");
  const first = known.models.find((name) => name.startsWith(`${run}, step`));
  return first === last ? [last] : [first, last];
};

const write = () => {
  const lines = [["text", state.text], ...state.models.map((m) => ["model", m])];
  if (state.layer !== null) lines.push(["layer", state.layer]);
  lines.push(...state.hidden.map((i) => ["hidden", i]));
  lines.push(...state.solvers.map((name) => ["solver", name]));
  if (state.noise) lines.push(["noise", state.noise]);
  lines.push(["kind", state.kind]);
  if (state.kind === "lens") lines.push(["lens", state.lens]);
  if (state.kind === "bits") lines.push(["precision", state.precision]);
  if (state.ran) lines.push(["ran", 1]);
  history.replaceState(null, "", `#${new URLSearchParams(lines)}`);
};

const question = () => {
  const { text, models, layer, hidden, solvers, noise, kind, lens } = state;
  return { text, models, layer, hidden, solvers, noise, kind, lens };
};

const post = async (path, body) => {
  let response;
  try {
    const headers = { "Content-Type": "application/json" };
    response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
  } catch {
    throw new Error("the server does not answer; is it still running?");
  }
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
};

const say = (text, wrong = false) => {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", wrong);
};

// ---- what is asked

const changed = () => {
  state.ran = false;
  write();
  clearTimeout(asking);
  asking = setTimeout(look, 120);
};

const look = async () => {
  const asked = JSON.stringify(question());
  try {
    const answer = await post("/look", question());
    if (asked !== JSON.stringify(question())) return;
    seen = answer;
    if (!running) say("");
    draw();
  } catch (error) {
    if (asked === JSON.stringify(question())) say(error.message, true);
  }
};

const draw = () => {
  at("layer").max = seen.layers;
  at("layer").value = state.layer ?? seen.layers;
  const layer = at("layer").value;
  at("layer-is").textContent = layer === "0" ? "0, the embedding" : `${layer} of ${seen.layers}`;
  drawTokens();
  const count = state.hidden.length;
  at("shown").textContent = count
    ? `${count} of ${seen.tokens.length} hidden: ${seen.slice}.`
    : `All ${seen.tokens.length} tokens are shown.`;
  if (isHidden(seen.tokens.length - 1)) {
    at("shown").textContent += " Later tokens leave no trace in earlier vectors: those hidden at the end cannot be recovered.";
  }
  at("chosen").textContent = seen.asked
    .map((name) => known.solvers.find((solver) => solver.name === name).title).join("; ");
  for (const box of at("solvers").querySelectorAll("input")) {
    const reason = seen.refusals[box.value];
    box.checked = seen.asked.includes(box.value);
    box.parentElement.classList.toggle("cannot", Boolean(reason));
    box.parentElement.querySelector("small").textContent = reason ?? "";
  }
};

const isHidden = (i) => state.hidden.includes(i);

const drawTokens = () => {
  const buttons = [...at("tokens").children];
  if (buttons.map((button) => button.textContent).join("\n") !== seen.tokens.join("\n")) {
    const focused = buttons.indexOf(document.activeElement);
    const drawn = seen.tokens.map((piece, i) => {
      const button = made("button", { type: "button", textContent: piece, tabIndex: i ? -1 : 0 });
      button.addEventListener("click", () => toggle(i));
      return button;
    });
    at("tokens").replaceChildren(...drawn);
    if (focused >= 0) drawn[Math.min(focused, drawn.length - 1)].focus();
  } // else the same buttons stay, so that a press that has begun is not lost
  [...at("tokens").children].forEach((button, i) => {
    button.setAttribute("aria-pressed", isHidden(i));
    button.setAttribute("aria-label", `${seen.tokens[i]}, ${isHidden(i) ? "hidden" : "shown"}`);
  });
};

const toggle = (i) => {
  const hidden = isHidden(i) ? state.hidden.filter((j) => j !== i) : [...state.hidden, i];
  if (hidden.length === seen.tokens.length) return say("one token at least must be shown", true);
  state.hidden = hidden.sort((a, b) => a - b);
  changed();
  drawTokens();
};

const moves = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
const move = (event) => {
  const buttons = [...at("tokens").children];
  const now = buttons.indexOf(document.activeElement);
  if (!(event.key in moves) || now < 0) return;
  event.preventDefault();
  const next = Math.max(0, Math.min(buttons.length - 1, now + moves[event.key]));
  buttons.forEach((button, i) => { button.tabIndex = i === next ? 0 : -1; });
  buttons[next].focus();
};

// ---- what comes back

const ask = async (kind) => {
  stop();
  state.kind = kind;
  state.ran = true;
  write();
  say("asking …");
  try {
    const answer = await post("/jobs", question());
    at("results").replaceChildren();
    show[kind].prepare(answer);
    follow(answer.job, kind);
  } catch (error) {
    say(error.message, true);
  }
};

const follow = (job, kind) => {
  running = job;
  at("stop").disabled = false;
  const started = performance.now();
  source = new EventSource(`/jobs/${job}/events`);
  source.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (event.type === "waiting") say(event.before ? `waiting; ${event.before} before you` : "");
    if (event.type === "begin") say("at work …");
    if (event.type === "refused") refused(event);
    show[kind][event.type]?.(event, job);
    if (event.type !== "end") return;
    ended();
    const seconds = ((performance.now() - started) / 1000).toFixed(1);
    if (event.error) say(event.error, true);
    else if (event.stopped) say(`${event.stopped} after ${seconds} s`);
    else {
      say(`done in ${seconds} s`);
      show[kind].done?.(job);
    }
  };
  source.onerror = () => {
    if (source?.readyState === EventSource.CLOSED) {
      ended();
      say("the connection was lost; ask again", true);
    }
  };
};

const ended = () => {
  source?.close();
  source = running = null;
  at("stop").disabled = true;
};

const stop = () => {
  if (!running) return;
  post(`/jobs/${running}/stop`, {}).catch(() => {});
};

const refused = (event) => {
  const place = block(event);
  if (place) place.querySelector(".figures").textContent = event.text;
  else say(event.text, true);
};

const sides = (models, name) => {
  const cards = models.map((model, i) =>
    made("article", { className: "card side", id: `side-${i}` }, made("h2", { textContent: model })));
  at("results").append(made("div", { className: `sides ${name}` }, ...cards));
};
const block = ({ model, solver }) => document.querySelector(`#side-${model} [data-solver="${solver}"]`);
const number = (value) => (value === null || value === undefined ? "unknown" : value && Math.abs(value) < 1e-3 ? value.toExponential(2) : Number(value.toPrecision(3)).toString());

const cell = (piece, i, right, extra) => {
  const marks = [right ? "" : "w", isHidden(i) ? "k" : "", extra].filter(Boolean).join(" ");
  const element = made("b", { className: `t ${marks}`, textContent: piece });
  if (!right && seen) element.title = `the sentence has ${seen.tokens[i]} here`;
  return element;
};

const PROOFS = {
  enumerated: "proved: every other choice was tried, and none fits",
  residual: "consistent: its vectors are those kept, to rounding",
};

const show = {
  invert: {
    prepare({ models, asked }) {
      sides(models, "recovered");
      models.forEach((_, i) => asked.forEach((name) => {
        const title = known.solvers.find((solver) => solver.name === name).title;
        const section = made("section", { className: "solver" }, made("h3", { textContent: title }),
          made("p", { className: "strips wrap found" }), made("p", { className: "note figures" }));
        section.dataset.solver = name;
        at(`side-${i}`).append(section);
      }));
    },
    tokens(event) {
      const place = block(event);
      place.querySelector(".found").replaceChildren(...event.found.map((piece, i) =>
        cell(piece, i, event.right[i], event.settled?.[i] ? "" : "u")));
      const settled = event.settled?.filter(Boolean).length ?? 0;
      const margin = event.margin === null ? "" : `; the next best is ${number(event.margin)} bits above the floor`;
      place.querySelector(".figures").textContent = `${settled} tokens settled so far${margin}`;
    },
    answer(event) {
      const place = block(event);
      const { right, ambiguous, found } = event;
      place.dataset.done = "yes";
      place.querySelector(".found").replaceChildren(...found.map((piece, i) =>
        cell(piece, i, right[i] || ambiguous[i], ambiguous[i] ? "a" : "")));
      const proof = event.uncertified ?? PROOFS[event.certificate] ?? (event.at_floor ? PROOFS.residual : "not found: its vectors are not those kept");
      const margin = event.margin_bits === null ? [] : [`the nearest wrong token is ${number(event.margin_bits)} bits above the floor`];
      place.querySelector(".figures").textContent = [
        `${right.filter(Boolean).length} of ${found.length} tokens right`, proof,
        `residual ${number(event.residual)}, floor ${number(event.floor)}`, ...margin,
        `${event.evaluations.toLocaleString("en")} tokens run in ${number(event.seconds)} s`,
      ].join("; ");
    },
    done(job) {
      const link = made("a", { href: `/jobs/${job}/page`, target: "_blank", rel: "noopener", textContent: "The same as a page of evidence" });
      at("results").append(made("p", { className: "note" }, link));
    },
  },
  bits: {
    prepare({ models }) {
      const menu = made("select", { id: "precision" });
      menu.addEventListener("change", () => { state.precision = menu.value; write(); drawBits(); });
      const label = made("label", { className: "switch" }, "Outputs known as ", menu);
      label.append(made("span", { textContent: "The upper bar is what the token's own output says of it; the lower one is what the outputs after it, up to eight, say together." }));
      measured = [];
      at("results").append(label);
      sides(models, "bits");
      models.forEach((_, i) => at(`side-${i}`).append(made("p", { className: "strips wrap found" })));
    },
    bits(event) {
      measured.push(event);
      const menu = at("precision");
      if (!menu.options.length) {
        const names = Object.keys(event.bits);
        menu.append(...names.map((name) => made("option", { value: name, textContent: name })));
        menu.value = state.precision = names.includes(state.precision) ? state.precision : names[0];
      }
      drawBits();
    },
  },
  lens: {
    prepare() {},
    done(job) {
      at("results").replaceChildren(made("iframe", { src: `/jobs/${job}/page`, title: "what the lens shows" }));
    },
  },
};

let measured = [];
const drawBits = () => {
  for (const place of document.querySelectorAll(".bits .found")) place.replaceChildren();
  for (const event of measured) {
    const [own, later] = event.bits[state.precision];
    const bar = (value, colour) => {
      const inside = made("i");
      inside.style.width = `${Math.max(0, Math.min(100, (100 * (value ?? 0)) / event.prior))}%`;
      return made("span", { className: `bar ${colour}` }, inside);
    };
    const text = (value) => made("small", { textContent: value === null ? "–" : value.toFixed(1) });
    const token = made("span", { className: "token" }, made("b", { className: "t", textContent: seen.tokens[event.place] }),
      bar(own, "c0"), text(own), bar(later, "c1"), text(later));
    token.title = `of ${event.prior.toFixed(1)} bits; margin ${number(event.margin)} bits`;
    document.querySelector(`#side-${event.model} .found`).append(token);
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
  at("text").value = state.text;
  at("text").maxLength = known.limits.letters;
  at("noise").value = state.noise;
  at("noise").max = known.limits.noise;
  at("lens").value = state.lens;
  [at("first").value, at("second").value] = [state.models[0], state.models[1] ?? ""];
};

const start = async () => {
  known = await (await fetch("/models")).json();
  const option = (name) => made("option", { value: name, textContent: name });
  at("first").append(...known.models.map(option));
  at("second").append(made("option", { value: "", textContent: "none" }), ...known.models.map(option));
  at("lens").append(...known.lenses.map(({ name, title }) => made("option", { value: name, textContent: title })));
  at("solvers").append(...known.solvers.map(({ name, title, text }) => {
    const box = made("input", { type: "checkbox", value: name });
    return made("label", { title: text }, box, ` ${title}`, made("small"));
  }));
  const models = () => { state.models = [...new Set([at("first").value, at("second").value])].filter(Boolean); changed(); };
  const numeric = (id) => () => { state[id] = Number(at(id).value) || 0; changed(); };
  at("text").addEventListener("input", () => { Object.assign(state, { text: at("text").value, hidden: [] }); changed(); });
  for (const id of ["first", "second"]) at(id).addEventListener("change", models);
  for (const id of ["layer", "noise"]) at(id).addEventListener("input", numeric(id));
  at("lens").addEventListener("change", () => { state.lens = at("lens").value; changed(); });
  at("solvers").addEventListener("change", () => {
    state.solvers = [...at("solvers").querySelectorAll(":checked")].map((box) => box.value);
    changed();
  });
  at("tokens").addEventListener("keydown", move);
  at("form").addEventListener("submit", (event) => { event.preventDefault(); ask("invert"); });
  at("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); ask("invert"); }
  });
  at("bits").addEventListener("click", () => ask("bits"));
  at("look").addEventListener("click", () => ask("lens"));
  at("stop").addEventListener("click", stop);
  const current = async (field) => { seen = await post("/look", question()); copy(seen[field]); };
  for (const field of ["command", "python"]) {
    at(`copy-${field}`).addEventListener("click", () => current(field).catch((error) => say(error.message, true)));
  }
  at("copy-link").addEventListener("click", () => { write(); copy(location.href); });
  addEventListener("hashchange", () => { read(); fill(); again(); });
  read();
  fill();
  await again();
};

const again = async () => {
  const ran = state.ran;
  await look();
  if (ran && seen) ask(state.kind);
};

start().catch((error) => say(`the page could not begin: ${error.message}`, true));
