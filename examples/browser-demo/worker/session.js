// What the page plays: a corpus, an orderer, and beside it every policy over the same requests.

import { Orderer, Replay, SimilarityCache, Trace, policies } from "../foreword/foreword.js";
import { bodyOf, MODEL, partsOf } from "./prompt.js";
import { hashed, Index, passages } from "./retrieval.js";

/** Nodes of the tree that are drawn: more than a screen can tell apart is waste. */
const DRAWN_NODES = 1200;

export class Session {
  #documents;
  #questions;
  #settings;
  #index;
  #embed;
  #next = 0;
  #asked = [];
  /** The gateway's place, and the same without it. */
  #orderer;
  #unordered;
  /** What was asked, for the policies beside. */
  #trace = new Trace();
  #replays;
  #curve = [];
  /** Titles by fingerprint: the tree knows nothing else. */
  #titles = new Map();
  #total = { ordered: 0, retrieval: 0, tokens: 0 };

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
    this.#orderer = new Orderer({ policy: settings.policy, tree });
    this.#unordered = new Orderer({ policy: "retrieval", tree });
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

  /** Retrieves, orders, remembers; everything that the page shows of it. `vector`: the question's, if a host has it. */
  ask(question, vector = this.#embed(question)) {
    if (vector.every((component) => component === 0)) throw new Error("the question has no word to search by");
    const places = this.#index.nearest(vector, this.#settings.documents);
    const retrieved = places.map((place) => this.#documents[place]);
    const body = bodyOf(retrieved, question);
    const seen = this.#asked.length > 0;
    const rewrite = this.#orderer.rewrite(body);
    if (rewrite.skipped) throw new Error(rewrite.skipped.message);
    const plain = this.#unordered.rewrite(body);
    this.#asked.push({ question, vector, places });

    const before = this.#orderer.documentsOf(body);
    before.forEach(({ fingerprint }, rank) => this.#titles.set(fingerprint, retrieved[rank].title));
    const rankOf = new Map(before.map(({ fingerprint }, rank) => [fingerprint, rank]));
    const order = this.#orderer.documentsOf(rewrite.body).map(({ fingerprint }) => rankOf.get(fingerprint));

    this.#trace.push(new TextEncoder().encode(`${body}\n`));
    this.#advance();
    const { report } = rewrite;
    this.#total.tokens += report.documentTokens;
    this.#total.ordered += report.matchedTokens;
    this.#total.retrieval += plain.report.matchedTokens;
    return {
      question,
      body,
      documents: retrieved.map(({ id, title }) => ({ id, title })),
      tokens: before.map(({ tokens }) => tokens),
      order,
      report,
      plainReport: plain.report,
      parts: partsOf(rewrite.body, report.matched, seen),
      plainParts: partsOf(body, plain.report.matched, seen),
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
      nodes: this.#orderer.nodes,
      total: { ...this.#total },
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

  #advance() {
    const reuse = this.#replays.map((replay) => replay.advance(this.#trace, 1));
    this.#curve.push(reuse.map(({ reusedTokens, documentTokens }) => reusedTokens / Math.max(1, documentTokens)));
  }

  #tree() {
    const nodes = this.#orderer.tree({ model: MODEL, limit: DRAWN_NODES });
    return nodes.map(({ parent, fingerprint, tokens }) => ({
      parent,
      fingerprint,
      tokens,
      title: fingerprint ? (this.#titles.get(fingerprint) ?? "") : "system prompt",
    }));
  }
}
