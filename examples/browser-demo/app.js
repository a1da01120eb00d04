// The page: reads the controls, asks the worker, hands what comes back to the views.
//
//   controls ─▶ app ─▶ engine (worker: module, retrieval, replay) ─▶ views
//                └──▶ gateway (a real server, if one is connected) ─▶ its view
//
// policy.js comes first: it narrows what this page may speak to.

import { gateway as origin } from "./policy.js";
import { byId, counted, element, grouped, percent } from "./dom.js";
import { Engine } from "./engine.js";
import { GatewayView } from "./views/gateway.js";
import { showHead } from "./views/head.js";
import { showOrder } from "./views/order.js";
import { showPrompt } from "./views/prompt.js";
import { ReuseView } from "./views/reuse.js";
import { SimilarityView } from "./views/similarity.js";
import { TreeView } from "./views/tree.js";

/** The gateway's. */
const DEFAULT_POLICY = "foresight";

const engine = new Engine();
const views = { gateway: new GatewayView(), reuse: new ReuseView(), similarity: new SimilarityView(), tree: new TreeView() };
/** `{documents, questions, vectors}`: the corpus. */
let corpus = null;
/** What the reuse chart shows of the questions, while a log is in its place. */
let beside = null;

async function start() {
  [corpus] = await Promise.all([readCorpus(), views.gateway.connect()]);
  const options = corpus.questions.map((question) => element("option", { value: question }));
  byId("questions").replaceChildren(...options);
  await readVectors();
  await restart();
  listen();
}

async function readCorpus() {
  const [documents, questions] = await Promise.all(["documents", "questions"].map(readLines));
  return { documents, questions: questions.map(({ question }) => question), vectors: null };
}

async function readLines(name) {
  const response = await fetch(`handbook/${name}.jsonl`);
  if (!response.ok) throw new Error(`handbook/${name}.jsonl answered ${response.status}`);
  return (await response.text()).trim().split("\n").map((line) => JSON.parse(line));
}

/** The host's embeddings of the corpus, if a gateway is connected that has them. */
async function readVectors() {
  const gateway = views.gateway.connected;
  if (!gateway) return;
  const texts = corpus.documents.map(({ title, text }) => `${title}\n${text}`);
  say("Embedding the corpus by the gateway…");
  const vectors = await gateway.embeddings([...texts, ...corpus.questions]);
  if (!vectors) return;
  const questions = corpus.questions.map((question, at) => [question, vectors[texts.length + at]]);
  corpus.vectors = { documents: vectors.slice(0, texts.length), questions: new Map(questions) };
}

/** A new session: nothing is known, nothing was asked. */
async function restart() {
  const summary = await engine.call("begin", { ...corpus, settings: settings() });
  if (byId("policy").options.length === 0) {
    const options = summary.policies.map((name) => element("option", { selected: name === DEFAULT_POLICY }, name));
    byId("policy").replaceChildren(...options);
  }
  views.tree.clear();
  showHead(null);
  showSummary(summary);
  showSimilarity([]);
  const how = corpus.vectors ? "the gateway’s embeddings" : "the core’s hashing embedder";
  byId("corpus").textContent = `${summary.documents} documents, found by ${how}`;
  say(origin && views.gateway.connected ? `Ready, sending to ${origin}` : "Ready, everything stays in this page", "ready");
  busy(false);
}

function settings() {
  const cacheTokens = Number(byId("cache-tokens").value) || null;
  const policy = byId("policy").value || DEFAULT_POLICY;
  return { policy, documents: Number(byId("documents").value), cacheTokens, head: headSettings() };
}

/** What the client changes in its heads, and what the gateway does about it. */
function headSettings() {
  const form = new FormData(byId("head-form"));
  return { breaks: form.getAll("breaks"), mode: form.get("mode") };
}

/** Takes effect at once: the last question is shown as it looks then. */
async function changeHead() {
  try {
    const shown = await engine.call("head", headSettings());
    if (shown) show(shown);
  } catch (error) {
    problem("problem", error.message);
  }
}

/** One question, by the user. */
async function ask(question) {
  await working(async () => {
    const vectors = corpus.vectors;
    if (vectors && !vectors.questions.has(question)) {
      const [vector] = (await views.gateway.connected.embeddings([question])) ?? [];
      if (!vector) throw new Error("the gateway embedded the corpus, but not this question");
      vectors.questions.set(question, vector);
    }
    const shown = await engine.call("ask", { question, vector: vectors?.questions.get(question) ?? null });
    show(shown);
    if (views.gateway.connected) await views.gateway.send(shown);
  });
}

/** The corpus' next questions; `count` of them. */
async function askNext(count) {
  await working(async () => {
    const progress = byId("ask-progress");
    progress.hidden = false;
    byId("stop").hidden = count === 1;
    const tell = (told) => {
      progress.max = told.count;
      progress.value = told.done;
      show(told.shown);
    };
    const { shown } = await engine.call("askNext", { count }, tell);
    if (shown && count === 1 && views.gateway.connected) await views.gateway.send(shown);
  });
  byId("ask-progress").hidden = true;
  byId("stop").hidden = true;
}

/** Does what takes a while; the buttons rest, and what goes wrong is shown. */
async function working(work) {
  busy(true);
  problem("problem", null);
  try {
    await work();
    await measureSimilarity();
  } catch (error) {
    problem("problem", error.message);
  }
  busy(false);
}

/** Frames are drawn as the screen wants them: of several results between two frames the last one is shown. */
let next = null;
function show(shown) {
  if (next === null) requestAnimationFrame(draw);
  next = shown;
}

function draw() {
  const shown = next;
  next = null;
  showHead(shown.head);
  showOrder(shown);
  showPrompt(shown);
  views.tree.show(shown.tree, shown.path);
  showSummary(shown.summary);
  byId("question").value = shown.question;
}

function showSummary({ asked, nodes, total, questionsLeft, policies, curve }) {
  const share = (tokens) => (total.tokens === 0 ? "–" : percent(tokens / total.tokens));
  byId("figure-asked").textContent = grouped(asked);
  byId("figure-ordered").textContent = share(total.ordered);
  byId("figure-retrieval").textContent = share(total.retrieval);
  byId("figure-nodes").textContent = asked === 0 ? "–" : grouped(nodes);
  byId("ask-all").dataset.left = questionsLeft;
  const reuse = { policies, at: curve.map((_, at) => at + 1), curve };
  if (beside) beside = reuse;
  else views.reuse.show(reuse);
}

async function measureSimilarity() {
  showSimilarity(await engine.call("similarity", { tolerances: views.similarity.tolerances }));
}

function showSimilarity(points) {
  views.similarity.show(points, new Map(corpus.documents.map(({ id, title }) => [id, title])));
}

/** Replays a log in the place of the questions. */
async function replay(file) {
  problem("log-problem", null);
  const progress = byId("log-progress");
  progress.hidden = false;
  progress.removeAttribute("value");
  const source = byId("reuse-source").textContent;
  busy(true);
  byId("stop").hidden = false;
  try {
    const tell = ({ phase, done, count }) => {
      progress.max = count;
      progress.value = done;
      byId("reuse-source").textContent = `${phase} ${file.name}, ${percent(done / Math.max(1, count), 0)}`;
    };
    const found = await engine.call("replay", { file, settings: settings() }, tell);
    beside ??= views.reuse.shown;
    views.reuse.show(found);
    byId("log-close").hidden = false;
    sayLog(file.name, found.summary);
  } catch (error) {
    problem("log-problem", error.message);
    byId("reuse-source").textContent = source;
  }
  progress.hidden = true;
  byId("stop").hidden = true;
  busy(false);
}

function sayLog(name, { requests, documents, bad, withoutDocuments, badLines }) {
  const words = [counted(requests, "request"), counted(documents, "document")];
  if (withoutDocuments > 0) words.push(`${grouped(withoutDocuments)} without documents`);
  byId("reuse-source").textContent = `${name}: ${words.join(", ")}`;
  if (bad === 0) return;
  const [first] = badLines;
  problem("log-problem", `${counted(bad, "line")} not understood and left out; line ${first.line}: ${first.message}`);
}

function closeLog() {
  views.reuse.show(beside);
  beside = null;
  byId("log-close").hidden = true;
  byId("reuse-source").textContent = "questions asked here";
  problem("log-problem", null);
}

function listen() {
  byId("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    ask(byId("question").value.trim());
  });
  byId("ask-1").addEventListener("click", () => askNext(1));
  byId("ask-25").addEventListener("click", () => askNext(25));
  byId("ask-all").addEventListener("click", () => askNext(corpus.questions.length));
  byId("stop").addEventListener("click", () => engine.call("stop"));
  byId("head-form").addEventListener("change", changeHead);
  byId("head-form").addEventListener("submit", (event) => event.preventDefault());
  byId("settings").addEventListener("submit", (event) => {
    event.preventDefault();
    working(restart);
  });
  byId("log").addEventListener("change", ({ target }) => {
    if (target.files[0]) replay(target.files[0]);
    target.value = "";
  });
  byId("log-close").addEventListener("click", closeLog);
  listenForDrops();
}

function listenForDrops() {
  const curtain = byId("drop");
  addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    curtain.hidden = false;
  });
  addEventListener("dragleave", ({ relatedTarget }) => {
    if (!relatedTarget) curtain.hidden = true;
  });
  addEventListener("drop", (event) => {
    event.preventDefault();
    curtain.hidden = true;
    const [file] = event.dataTransfer?.files ?? [];
    if (file && !byId("ask").disabled) replay(file);
  });
}

function busy(isBusy) {
  const left = Number(byId("ask-all").dataset.left ?? 0);
  byId("ask").disabled = isBusy;
  for (const id of ["ask-1", "ask-25", "ask-all"]) byId(id).disabled = isBusy || left === 0;
  byId("log").disabled = isBusy;
}

function say(words, kind = "") {
  byId("status").textContent = words;
  byId("status").className = `status ${kind}`;
}

function problem(id, words) {
  byId(id).hidden = !words;
  byId(id).textContent = words ?? "";
}

start().catch((error) => {
  say("Not started", "broken");
  problem("problem", error.message);
});

/** For tests: what the views hold. */
window.foreword = { views, engine };
