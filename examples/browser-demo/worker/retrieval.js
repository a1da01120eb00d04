// Documents by nearness to a question: every vector is compared, which for a corpus of a page takes no time. A document
// is as near as its nearest passage: a question asks for one sentence of it, and long texts are all alike.

import { embed } from "../foreword/foreword.js";

/** Components of the core's hashing embedder here. */
const DIMENSIONS = 1024;

/** The vector of a text by the core's embedder, which counts hashed words and knows no meaning. */
export function hashed(text) {
  return embed(text, DIMENSIONS);
}

/** The vectors of a document's passages: its sentences, each with the title. */
export function passages({ title, text }) {
  return text.split(/(?<=[.!?;])\s+/).map((sentence) => hashed(`${title} ${sentence}`));
}

export class Index {
  #vectors;

  /** Over lists of vectors of equal length; a document's place is its number. */
  constructor(vectors) {
    this.#vectors = vectors.map((list) => list.map(normalised));
  }

  /** The `count` nearest documents' places, best first; ties go to the smaller place. */
  nearest(vector, count) {
    const query = normalised(vector);
    const score = (list) => Math.max(...list.map((candidate) => dot(candidate, query)));
    const scored = this.#vectors.map((list, place) => ({ place, score: score(list) }));
    scored.sort((a, b) => b.score - a.score || a.place - b.place);
    return scored.slice(0, count).map(({ place }) => place);
  }
}

function normalised(vector) {
  const length = Math.hypot(...vector) || 1;
  return Float32Array.from(vector, (component) => component / length);
}

function dot(a, b) {
  let sum = 0;
  for (let at = 0; at < a.length; at += 1) sum += a[at] * b[at];
  return sum;
}
