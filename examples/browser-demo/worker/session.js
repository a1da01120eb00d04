// What the page plays: a corpus, an orderer, and beside it every policy over the same requests.

import { Explainer, Orderer, Replay, SimilarityCache, Trace, policies } from "../foreword/foreword.js";
import { Beginnings, BREAKS, headOf } from "./head.js";
import { bodyOf, headText, MODEL, partsOf, withHeadOf } from "./prompt.js";
import { hashed, Index, passages } from "./retrieval.js";

/** Nodes of the tree that are drawn: more than a screen can tell apart is waste. */
const DRAWN_NODES = 1200;

/** What `head.mode` can be here. */
const MODES = ["report", "apply"];

/** Requests of which the page says where their prompts broke. */
const TOLD = 8;

/** A gateway with a configuration of its own, and what the engine behind it has seen. */
class Way {
  #orderer;
  #explainer = new Explainer(null, 1);
  #heads = new Beginnings();
  /** Tokens of documents from the cache. */
  matched = 0;

  constructor(config) {
    this.#orderer = new Orderer(config);
  }

  get orderer() {
    return this.#orderer;
  }

  /** What a body is sent as, how much of its prompt an earlier one began with, and in parts what the page shows. */
  send(came) {
    const { body, report, head, skipped } = this.#orderer.rewrite(came);
    if (skipped) throw new Error(skipped.message);
    this.matched += report.matchedTokens;
    const { reusedTokens } = this.#explainer.explain(body);
    return { body, report, head, reusedTokens, parts: partsOf(body, report.matched, this.#heads.add(headText(body))) };
  }
}

export class Session {
  #documents;
  #questions;
  #settings;
  #index;
  #embed;
  #next = 0;
  #asked = [];
  /** The gateway in both modes of `head.mode`, side by side, and none. */
  #ways;
  #unordered;
  #mode = "report";
  /** What the client changes from one head to the next. */
  #breaks = [];
  /** Why prompts broke as they came. */
  #explainer = new Explainer(null, 1);
  #diagnoses = [];
  #lost = { tokens: 0, report: 0, apply: 0 };
  /** The last question, in both modes. */
  #last = null;
  /** What was asked, for the policies beside. */
  #trace = new Trace();
  #replays;
  #curve = [];
  /** Titles by fingerprint: the tree knows nothing else. */
  #titles = new Map();
  #documentTokens = 0;

  /**
   * `vectors`: a host's embeddings, of the documents as a list and of the questions as a Map; without them the core's
   * hashing embedder is used.
   */
  constructor(documents, questions, settings, vectors) {
    this.#documents = documents;
    this.#questions = questions;
    this.#settings = settings;
    this.#embed = (text) => vectors?.questions.get(text) ?? hashed(text);
    this.#index = new Index(vectors?.documents.map((vector) => [vector]) ?? documents.map(passages));
    const tree = settings.cacheTokens ? { max_tokens: settings.cacheTokens } : {};
    // The page compares policies, as its replays do: no document is favoured.
    const rank = { place: "free" };
    const way = (mode) => [mode, new Way({ policy: settings.policy, rank, tree, head: { mode } })];
    this.#ways = Object.fromEntries(MODES.map(way));
    this.#unordered = new Way({ policy: "retrieval", tree, head: { mode: "off" } });
    this.setHead(settings.head);
    this.#replays = policies().map(
      (policy) => new Replay({ policy, cacheTokens: settings.cacheTokens ?? null, pageTokens: 1 }),
    );
  }

  questionsLeft() {
    return this.#questions.length - this.#next;
  }

  nextQuestion() {
    const question = this.#questions[this.#next];
    this.#next += 1;
    return question;
  }

  /** What the client changes from now on, and what the gateway does about it; the last question as it looks then. */
  setHead({ breaks, mode }) {
    if (!MODES.includes(mode)) throw new Error(`head.mode: ${mode} is not one of ${MODES.join(", ")}`);
    this.#breaks = BREAKS.filter((name) => breaks.includes(name));
    this.#mode = mode;
    return this.#shown();
  }

  /** Retrieves, orders, remembers; everything that the page shows of it. `vector`: the question's, if a host has it. */
  ask(question, vector = this.#embed(question)) {
    if (vector.every((component) => component === 0)) throw new Error("the question has no word to search by");
    const places = this.#index.nearest(vector, this.#settings.documents);
    const retrieved = places.map((place) => this.#documents[place]);
    const body = bodyOf(headOf(this.#breaks, this.#asked.length), retrieved, question);
    const sent = Object.fromEntries(MODES.map((mode) => [mode, this.#ways[mode].send(body)]));
    const plain = this.#unordered.send(body);
    this.#asked.push({ question, vector, places });

    const { orderer } = this.#ways.report;
    const before = orderer.documentsOf(body);
    before.forEach(({ fingerprint }, rank) => this.#titles.set(fingerprint, retrieved[rank].title));
    const rankOf = new Map(before.map(({ fingerprint }, rank) => [fingerprint, rank]));
    const orders = Object.fromEntries(
      MODES.map((mode) => [mode, orderer.documentsOf(sent[mode].body).map(({ fingerprint }) => rankOf.get(fingerprint))]),
    );

    // Every policy meets the head that the gateway sends.
    this.#trace.push(new TextEncoder().encode(`${withHeadOf(sent[this.#mode].body, body)}\n`));
    this.#advance();
    this.#documentTokens += plain.report.documentTokens;
    this.#diagnose(question, body, sent);
    const documents = retrieved.map(({ id, title }) => ({ id, title }));
    this.#last = { question, body, documents, before, sent, plain, orders };
    return this.#shown();
  }

  /** Why a prompt broke as it came, and what either mode wins back of that. */
  #diagnose(question, body, sent) {
    const diagnosis = this.#explainer.explain(body);
    const won = Object.fromEntries(MODES.map((mode) => [mode, sent[mode].reusedTokens - diagnosis.reusedTokens]));
    this.#lost.tokens += diagnosis.lostTokens;
    for (const mode of MODES) this.#lost[mode] += won[mode];
    this.#diagnoses.unshift({ ...diagnosis, question, won });
    this.#diagnoses.length = Math.min(this.#diagnoses.length, TOLD);
  }

  /** The last question, as the mode has it; `null` before the first. */
  #shown() {
    if (!this.#last) return null;
    const { question, body, documents, before, sent, plain, orders } = this.#last;
    const { report, head, parts } = sent[this.#mode];
    const order = orders[this.#mode];
    return {
      question,
      body,
      documents,
      tokens: before.map(({ tokens }) => tokens),
      order,
      report,
      plainReport: plain.report,
      parts,
      plainParts: plain.parts,
      head: { mode: this.#mode, done: head, diagnoses: this.#diagnoses, lost: { ...this.#lost } },
      tree: this.#tree(),
      path: order.map((rank) => before[rank].fingerprint),
      summary: this.summary(),
    };
  }

  summary() {
    return {
      asked: this.#asked.length,
      questionsLeft: this.questionsLeft(),
      documents: this.#documents.length,
      nodes: this.#way.orderer.nodes,
      total: { tokens: this.#documentTokens, ordered: this.#way.matched, retrieval: this.#unordered.matched },
      policies: policies(),
      curve: this.#curve,
    };
  }

  /**
   * The questions asked so far, one after the other, against a similarity cache of this tolerance. A hit is false when
   * what is cached lacks the document that retrieval ranks first.
   */
  similarity(tolerance) {
    const dimensions = this.#asked[0]?.vector.length ?? 1;
    const cache = new SimilarityCache({ dimensions, tolerance, capacity: 10_000, ttl_ms: null });
    const hits = [];
    this.#asked.forEach(({ question, vector, places }, at) => {
      const hit = cache.lookup(vector, at);
      const ids = places.map((place) => this.#documents[place].id);
      if (hit) {
        const isFalse = !hit.documents.includes(ids[0]);
        hits.push({ question, distance: hit.distance, wanted: ids[0], isFalse });
      } else {
        cache.insert(vector, ids, at);
      }
    });
    cache.free();
    return { tolerance, lookups: this.#asked.length, hits };
  }

  get #way() {
    return this.#ways[this.#mode];
  }

  #advance() {
    const reuse = this.#replays.map((replay) => replay.advance(this.#trace, 1));
    this.#curve.push(reuse.map(({ reusedTokens, documentTokens }) => reusedTokens / Math.max(1, documentTokens)));
  }

  #tree() {
    const nodes = this.#way.orderer.tree({ model: MODEL, limit: DRAWN_NODES });
    return nodes.map(({ parent, fingerprint, tokens }) => ({
      parent,
      fingerprint,
      tokens,
      title: fingerprint ? (this.#titles.get(fingerprint) ?? "") : "head",
    }));
  }
}
