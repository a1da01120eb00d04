// What a TypeScript user writes. Compiled by `tsc --strict`, never run.

import init, {
  embed,
  Orderer,
  policies,
  Replay,
  SimilarityCache,
  Trace,
  type Config,
  type Document,
  type Hit,
  type Ordered,
  type Policy,
  type Report,
  type Reuse,
  type TreeNode,
} from "foreword-browser/web";

await init();

const config: Config = {
  policy: "longest",
  policy_options: { seed: 1, window: 16, max_displacement: null, max_contexts: 16 },
  rank: { place: "last", documents: 1, unranked: ["results"] },
  hint: { enabled: true, template: "{order}", label: "{label}", separator: " ", location: "{document}" },
  documents: { field: "render", tags: ["doc"], max: 8 },
  tree: { max_nodes: 100, max_tokens: 0, max_trees: 2 },
  conversation: { deduplicate: true, pin: false, max_pinned_tokens: 1, max_entries: 1, max_bytes: 1, answers: "none", max_answers_bytes: 1 },
};
const orderer = new Orderer(config);
const documents: Document[] = [{ id: "a", title: null, text: "…" }, { text: "…" }];
const { order, hint }: Ordered = orderer.order(documents, { before: "", tenant: "t", model: "m" });
const places: number[] = order;
const words: string = hint ?? "";

const { body, report, skipped } = orderer.rewrite("{}", "tenant");
const matched: number | undefined = (report as Report | null)?.matched;
const reason: "no-documents" | string | undefined = skipped?.reason;
const nodes: TreeNode[] = orderer.tree({ limit: 10 });
const above: number | null | undefined = nodes[0]?.parent;
orderer.free();

const trace = new Trace();
trace.push(new Uint8Array());
const bad: { line: number; message: string }[] = trace.finish().badLines;
const names: Policy[] = policies();
using replay = new Replay({ policy: "foresight", cacheTokens: null, pageTokens: 16, seed: 0 });
const reuse: Reuse = replay.advance(trace, 100);
const share: number = trace.upperBound().share;

const cache = new SimilarityCache({ dimensions: 4, tolerance: 0.1, ttl_ms: null });
const hit: Hit | null = cache.lookup(embed("…", 4), 0);
cache.insert([1, 0, 0, 0], ["a"], 0);

// @ts-expect-error an unknown policy
new Orderer({ policy: "best" });
// @ts-expect-error an unknown field
new Orderer({ polcy: "longest" });
// @ts-expect-error a document without text
orderer.order([{ id: "a" }]);
// @ts-expect-error a body is text
orderer.rewrite({ messages: [] });
// @ts-expect-error `hint` may be null
const certain: string = orderer.order(documents).hint;

export { above, bad, body, certain, hit, matched, names, places, reason, reuse, share, words };
