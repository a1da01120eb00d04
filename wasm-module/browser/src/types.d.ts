// config-docs: config begin; `cargo xtask config-docs` writes these types from the schema.
/** Rules that order documents. */
export type Policy =
  "retrieval" | "random" | "sorted" | "recency" | "greedy" | "context-index" | "longest" | "foresight";

/** What the gateway calls `ordering`; whatever is absent has its default. */
export interface Config {
  /** Which order; see below. */
  policy?: Policy;
  rank?: {
    /** `auto`: as `last`, but a request stays in its own order if that finds cached tokens, and as many as the new order would, or if the tenant's recent requests share longer beginnings in the retriever's order; `last`: behind the others, the best one next to a question that follows; `first`: before them, the best one first; `ends`: the best one last, the second best first, and so on; `free`: anywhere. `docs/answers.md` says what each costs. */
    place?: "free" | "last" | "first" | "ends" | "auto";
    /** Documents that keep this place. */
    documents?: number;
    /** Formats in which the client's order says nothing of ranks, such as a tool's results by date: there, every document may stand anywhere. Their names are those of `documents`' options. */
    unranked?: ("field" | "tags" | "blocks" | "results" | "clients" | "numbered" | "rules" | "headings")[];
  };
  policy_options?: {
    /** Where `random` starts. */
    seed?: number;
    /** Recent requests that `foresight` learns from. */
    window?: number;
    /** Places that `foresight` may move a document; the best ones (`rank.documents`) move farther and do not count. */
    max_displacement?: number | null;
    /** Contexts that `context-index` keeps. */
    max_contexts?: number;
    /** Tokens in a block of the engine's cache; nothing is moved for a shorter match, and `engines[].block_tokens` goes before it. */
    block_tokens?: number;
    /** Contexts of a log, written by `foreword index`: `context-index` orders a request by them if it shares nothing with requests sent so far. Each is the fingerprints of a request's documents, best first, in 16 hexadecimal digits each. */
    history?: string[];
    /** `context-index` forgets contexts that the engine evicted, as RAGBoost does; else it keeps them, up to `max_contexts`. */
    forget_evicted?: boolean;
    /** What documents' positions count in the distance of two contexts, by which `context-index` finds the nearest, in thousandths: RAGBoost's α, which it gives as 1 to 10. 0 reuses more where ranks change. */
    position_weight?: number;
    /** A search of `context-index` ends where all contexts are equally near, as RAGBoost's does; else it goes on to the oldest of them. */
    stop_at_ties?: boolean;
    /** `context-index` sorts the documents that contexts share, as RAGBoost does; else they keep the order in which they were first sent. */
    sort_shared?: boolean;
  };
  hint?: {
    /** Tell the model the retriever's ranking when documents were moved. */
    enabled?: boolean;
    /** The order hint where `short` does not serve; `{order}` stands for the labels, best first. */
    template?: string;
    /** A label in a hint; `{label}` stands for the document's id. */
    label?: string;
    /** Text between two labels. */
    separator?: string;
    /** The order hint where all documents have short names: labels of up to three letters or digits, or else their places in the prompt (not where one label among others is a number). `{order}` stands for these, best first; where a document is only referred to, there is no order hint. Empty: `template` serves for all. */
    short?: string;
    /** Stands where a document of an earlier turn would stand again. */
    location?: string;
  };
  documents?: {
    /** A `documents` array is written into the last user message without tools' results, put in order, or left alone; `reorder` is for engines that read the array themselves and cite its ids (Cohere). With `render` too, arrays of Cohere's v1 API, and arrays whose `data` has fields besides title and text, are put in order instead. `render` writes a document's id, title and text. */
    field?: "render" | "reorder" | "ignore";
    /** Tags that hold a document in a message. */
    tags?: string[];
    /** Tags that hold a document only where two or more of one name stand in a text, and none of `tags`. */
    loose_tags?: string[];
    /** `document` and `search_result` blocks (Anthropic, Cohere's tool results) are put in order; those with citations or `cache_control`, and Cohere's without an id, keep their places. */
    blocks?: boolean;
    /** Elements of a tool result's JSON array `results` are documents if each has a `url`, `path`, `file`, `filename`, `uri` or `href`. */
    results?: boolean;
    /** Contexts as AnythingLLM, Dify, LlamaIndex and RAGFlow write them without tags are documents. */
    clients?: boolean;
    /** Items of a list `[1] …` are documents, each with its number. */
    numbered?: boolean;
    /** What stands between lines `---` is a document. */
    rules?: boolean;
    /** Sections of a tool's result under headings `# …` are documents. */
    headings?: boolean;
    /** Lines of a tool's result that an earlier turn's result holds byte for byte become a location hint, as when an agent reads a file again (`conversation.deduplicate`): runs of lines of 480 bytes or more, in results without another format. Nothing is moved, and results do not count for `max`. See `docs/agents.md`. */
    outputs?: boolean;
    /** Documents in a request. */
    max?: number;
  };
  tree?: {
    /** Nodes of one knowledge tree. */
    max_nodes?: number;
    /** Tokens of one tree: the engine's KV capacity; 0: bounded by nodes alone. */
    max_tokens?: number;
    /** Trees, one per tenant and model. */
    max_trees?: number;
  };
  head?: {
    /** What stands before the documents: not looked at; what would be done is decided, counted and told; or it is done. */
    mode?: "off" | "report" | "apply";
    tools?: {
      /** Tools stand in the order of their names, and where requests offer different ones, those that most offer come first; not where two have one name, or one carries `cache_control`. */
      order?: boolean;
      /** A tool that equals an earlier one but for the order of its keys, or of `required`, takes the order that was first seen. */
      schemas?: boolean;
    };
    volatile?: {
      /** The built-in patterns of words that change in system texts, none, or these instead. */
      patterns?: boolean | { name?: string; pattern?: string; class?: "move" | "freeze" | "drop" | "leave" }[];
      /** More patterns; one without `pattern` gives the built-in one of its name another class (`move`, `freeze`, `drop`, `leave`). */
      add?: { name?: string; pattern?: string; class?: "move" | "freeze" | "drop" | "leave" }[];
      /** A line or sentence that has held two values moves too, if it looks like data. */
      learn?: boolean;
    };
    /** Bytes that are moved in one request. */
    max_moved_bytes?: number;
    contexts?: {
      /** With `conversation.pin`: a chat's earlier message that comes back without the contexts that it was sent with gets them back. */
      restore?: boolean;
      /** With `conversation.pin`: contexts in the system text stand in the newest user message instead, the one that they were found for. */
      relocate?: boolean;
    };
    documents?: {
      /** Documents that are numbered by their places have a number that follows from their words instead; words behind them say which number to cite each by. */
      numbers?: boolean;
      /** A score, rank or distance in a document stands behind the documents instead. */
      scores?: boolean;
    };
    /** For Anthropic's own API a head with a billing line is left alone. */
    upstream?: "tokens" | "anthropic";
  };
  conversation?: {
    /** A document that stands in an earlier turn of the chat is replaced by a location hint. */
    deduplicate?: boolean;
    /** The favoured documents (`rank`) are sent again even if an earlier turn holds them; the others become location hints. */
    repeat_favoured?: boolean;
    /** Documents of a `documents` array stay where they were first written when the chat goes on; read *Pinned documents and users of one tenant* in `gateway-config/envoy/README.md` first. */
    pin?: boolean;
    /** Estimated tokens pinned in one chat. */
    max_pinned_tokens?: number;
    /** Messages remembered for one tenant and model; 0: none. */
    max_entries?: number;
    /** Bytes of these. */
    max_bytes?: number;
    /** What gateways keep of a model's answers, and restore where the client changed it when the chat goes on: the arguments of tool calls as the model wrote them, or `all`, its reasoning too. Read docs/answers-restored.md before you switch it on. */
    answers?: "none" | "arguments" | "all";
    /** Bytes that are kept of one chat's answers; later ones are not kept. Of up to 512 chats, so a gateway takes up to 512 times this. */
    max_answers_bytes?: number;
  };
}
// config-docs: config end

/** What became of a body. */
export interface Rewrite {
  /** The body to send. */
  body: string;
  /** Whether it differs from the one that came. */
  changed: boolean;
  /** What was done; `null` when the body was skipped. */
  report: Report | null;
  /** What was done with what stands before the documents; in mode `report`, what would be; `null` when the body was skipped. */
  head: HeadReport | null;
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
  /** Locality-sensitive hashing, for many thousands of entries; `null`: all are compared. */
  buckets?: { tables?: number; functions?: number; probes?: number; max_candidates?: number } | null;
  /** Hits of which one is a sample, to be compared with a real search; `null`: none. */
  sample_one_in?: number | null;
}

export interface Hit {
  /** Ids, best first, as they were inserted. */
  documents: string[];
  distance: number;
  ageMs: number;
}
