/** Rules that order documents. */
export type Policy =
  | "retrieval" | "random" | "sorted" | "recency" | "greedy" | "context-index" | "longest" | "foresight";

/** What the gateway calls `ordering`; whatever is absent has its default. */
export interface Config {
  policy?: Policy;
  policy_options?: { seed?: number; window?: number; max_displacement?: number | null; max_contexts?: number; block_tokens?: number };
  hint?: { enabled?: boolean; template?: string; label?: string; separator?: string; location?: string };
  documents?: {
    field?: "render" | "reorder" | "ignore"; tags?: string[]; loose_tags?: string[]; max?: number;
    blocks?: boolean; results?: boolean; clients?: boolean; numbered?: boolean; rules?: boolean; headings?: boolean;
  };
  tree?: { max_nodes?: number; max_tokens?: number; max_trees?: number };
  conversation?: {
    deduplicate?: boolean; pin?: boolean; max_pinned_tokens?: number; max_entries?: number; max_bytes?: number;
  };
}

/** What became of a body. */
export interface Rewrite {
  /** The body to send. */
  body: string;
  /** Whether it differs from the one that came. */
  changed: boolean;
  /** What was done; `null` when the body was skipped. */
  report: Report | null;
  /** Why the body is to be sent as it came; `null` when it was ordered. */
  skipped: Skipped | null;
}

/** What was done with a body's documents. */
export interface Report {
  policy: Policy;
  documents: number;
  /** Documents at the prompt's beginning that the engine is believed to hold. */
  matched: number;
  moved: number;
  /** Repeats that were left out. */
  dropped: number;
  /** Documents that a location hint stands for. */
  deduplicated: number;
  /** Documents of earlier requests that were written again where they first stood. */
  pinned: number;
  /** Messages that were sent as they are remembered. */
  replayed: number;
  /** Whether an order hint was written. */
  hinted: boolean;
  /** Whether one calls documents by their places, because a label was not fit to stand outside its document. */
  numbered: boolean;
  documentTokens: number;
  matchedTokens: number;
}

export interface Skipped {
  reason:
    | "invalid-utf8" | "invalid-json" | "malformed-document" | "no-documents" | "no-user-message"
    | "too-many-documents" | "too-many-messages" | "long-model-name";
  message: string;
}

/** What else it has, a score for instance, is yours. */
export interface Document {
  /** What a hint calls it. */
  id?: string | null;
  title?: string | null;
  text: string;
}

export interface OrderOptions {
  /** What stands before the documents in the prompt, as a system message does. Other words share no KV state. */
  before?: string;
  tenant?: string;
  model?: string;
}

/** In which order to send documents. */
export interface Ordered {
  /** Positions in the list that was given; those of repeats are absent. */
  order: number[];
  /** How many, from the first on, stand in the prompt as the engine is believed to hold them. */
  matched: number;
  matchedTokens: number;
  documentTokens: number;
  moved: number;
  dropped: number;
  /** What to tell the model of the order that was given, behind the documents; `null`: nothing. */
  hint: string | null;
  /** Whether the hint calls documents by their places, because an id or a title was not fit to be in it. */
  numbered: boolean;
}

/** A document found in a body. */
export interface ListedDocument {
  /** Documents of one group are ordered together. */
  group: number;
  label: string;
  /** 64 bits as 16 hexadecimal digits: what the document is. */
  fingerprint: string;
  tokens: number;
}

export interface TreeOptions {
  tenant?: string;
  model?: string;
  /** Nodes at most, 1,000 if absent. */
  limit?: number;
}

/** A node of the knowledge tree: a document behind those that lead to it. */
export interface TreeNode {
  /** Its parent's place in the list; `null`: what stands before all documents. */
  parent: number | null;
  /** For a node without parent: what stands before the documents. */
  scope: string | null;
  /** For every other node: its document. */
  fingerprint: string | null;
  tokens: number;
}

/** What was read of a log. */
export interface TraceSummary {
  bytes: number;
  /** Lines that are not blank. */
  lines: number;
  /** Requests with documents. */
  requests: number;
  /** Distinct documents. */
  documents: number;
  /** Documents of all requests. */
  listed: number;
  withoutDocuments: number;
  /** Lines that are not understood. */
  bad: number;
  /** The first 20 of them. */
  badLines: { line: number; message: string }[];
}

/** What no order of documents exceeds. */
export interface Bound {
  share: number;
  /** Whether it was measured on a sample of the requests. */
  sampled: boolean;
}

export interface ReplayOptions {
  policy?: Policy;
  /** The engine's KV capacity; absent or `null`: it holds everything. */
  cacheTokens?: number | null;
  /** Tokens of a page, 16 if absent; a match is cut to whole pages. */
  pageTokens?: number;
  seed?: number;
}

/** What a replay came to so far. */
export interface Reuse {
  policy: Policy;
  requests: number;
  documentTokens: number;
  reusedTokens: number;
}

/** What is absent has its default. */
export interface SimilarityConfig {
  /** Components of an embedding. */
  dimensions?: number;
  metric?: "cosine" | "l2" | "inner-product";
  /** Farthest distance at which an entry answers for another question. */
  tolerance?: number;
  /** Entries. */
  capacity?: number;
  eviction?: "lru" | "fifo";
  /** Milliseconds after which an entry is forgotten; `null`: never. */
  ttl_ms?: number | null;
  max_documents?: number;
  max_id_bytes?: number;
  max_caches?: number;
}

export interface Hit {
  /** Ids, best first, as they were inserted. */
  documents: string[];
  distance: number;
  ageMs: number;
}
