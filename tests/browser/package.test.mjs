// The npm package: what is in it, how large it is, whether its types are true, and what it does with bad input.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { named, random } from "./support.mjs";

const folder = named("FOREWORD_PACKAGE");
const here = fileURLToPath(new URL(".", import.meta.url));
const foreword = await import(join(folder, "web/foreword.js"));
await foreword.default({ module_or_path: readFileSync(join(folder, "web/foreword_bg.wasm")) });
const { embed, Orderer, policies, Replay, SimilarityCache, Trace } = foreword;

// As a server sends what `gzip -9` has packed; Node's own zlib is another one, and packs 0.7 % worse.
// One build has all that the demo page needs: just below the limit, where a build without heads and half of the body formats took 167,000.
const LIMIT = 300_000;

test("module and JavaScript take less than 300 KB gzipped", (context) => {
  for (const target of ["bundler", "web"]) {
    const files = readdirSync(join(folder, target)).filter((name) => /\.(js|wasm)$/.test(name));
    const sizes = files.map((name) => execFileSync("gzip", ["-9", "-c", join(folder, target, name)]).length);
    const sum = sizes.reduce((a, b) => a + b);
    context.diagnostic(`${target}: ${sum} bytes gzipped`);
    assert.ok(sum < LIMIT, `${target}: ${sum} bytes, the limit is ${LIMIT}`);
  }
});

test("npm packs it with types, README and licence", () => {
  const [packed] = JSON.parse(npm(["pack", "--dry-run", "--json", "--ignore-scripts"], folder));
  const names = packed.files.map(({ path }) => path);
  const wanted = ["LICENSE", "README.md", "package.json", "bundler/foreword.d.ts", "web/foreword.d.ts", "web/foreword_bg.wasm"];
  for (const name of wanted) assert.ok(names.includes(name), `${name} of ${names}`);
  assert.equal(packed.name, "foreword-browser");
  assert.equal(packed.version, foreword.version());
  const { exports } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  for (const path of Object.values(exports).flatMap((entry) => (typeof entry === "string" ? entry : Object.values(entry)))) {
    assert.ok(existsSync(join(folder, path)), path);
  }
});

test("its types satisfy tsc --strict", () => inProject((project) => compile(project, readFileSync(join(here, "types/use.ts"), "utf8"))));

test("its types say no more and no less than its results have", () => {
  const orderer = new Orderer();
  const body = (ids) => JSON.stringify({ messages: [{ role: "user", content: "Why?" }], documents: ids.map((id) => ({ id, text: id })) });
  orderer.rewrite(body(["a", "b"]));
  const trace = new Trace();
  trace.push(new TextEncoder().encode('{"docs": ["a", "b"]}\n{"docs": 1}\n'));
  const cache = new SimilarityCache({ dimensions: 2 });
  cache.insert([1, 0], ["a"], 0);
  const results = {
    Rewrite: [orderer.rewrite(body(["b", "a"])), orderer.rewrite("{}")],
    Ordered: [orderer.order([{ id: "a", text: "a" }])],
    "ListedDocument[]": [orderer.documentsOf(body(["a"]))],
    "TreeNode[]": [orderer.tree()],
    TraceSummary: [trace.finish()],
    Bound: [trace.upperBound()],
    Reuse: [new Replay().advance(trace, 9)],
    Hit: [cache.lookup([1, 0], 5)],
    "Policy[]": [policies()],
  };
  // An object literal may have no property that its type does not name, and must have all that it does.
  const lines = Object.entries(results).flatMap(([type, values]) =>
    values.map((value, at) => `export const ${type.replace("[]", "s")}${at}: t.${type} = ${JSON.stringify(value)};`),
  );
  inProject((project) => compile(project, `import type * as t from "foreword-browser";\n${lines.join("\n")}\n`));
});

test("the page's module explains heads, and its types say no more and no less than its results have", async () => {
  const folder = join(named("FOREWORD_PAGE"), "foreword");
  const page = await import(join(folder, "foreword.js"));
  await page.default({ module_or_path: readFileSync(join(folder, "foreword_bg.wasm")) });
  const orderer = new page.Orderer({ head: { mode: "apply" } });
  const explainer = new page.Explainer({ policy: "longest" }, 1);
  const body = (second) => {
    const content = '<document id="a">alpha beta gamma</document>\nWhy?';
    const system = `Be brief and kind to everybody who asks.\nCurrent time: 12:00:0${second}`;
    return JSON.stringify({ messages: [{ role: "system", content: system }, { role: "user", content }] });
  };
  const rewrites = [0, 1].map((second) => orderer.rewrite(body(second)));
  const diagnoses = [0, 1].map((second) => explainer.explain(body(second), "tenant"));
  const [first, broken] = diagnoses;
  assert.deepEqual([first.cause, first.earlier, first.segment], ["first-seen", null, null]);
  assert.deepEqual([broken.cause, broken.volatile, broken.segment, broken.earlier], ["volatile-value", "date-time", "system", 1]);
  assert.ok(broken.lostTokens > 0 && broken.lostTokens <= broken.sharedTokens, JSON.stringify(broken));
  assert.doesNotMatch(broken.shape, /12:00/);
  const [change] = rewrites[1].head.changes;
  assert.equal(Buffer.from(body(1)).subarray(change.from, change.to).toString().replaceAll("\\n", ""), "Current time: 12:00:01");

  for (const [call, type, words] of [
    [() => new page.Explainer(5), TypeError, /config must be an object, not number/],
    [() => new page.Explainer({ polcy: 1 }), Error, /config: unknown field `polcy`/],
    [() => new page.Explainer(null, 0), RangeError, /pageTokens: 0 is not a whole number from 1 to 1048576/],
    [() => explainer.explain({}), TypeError, /body must be a string, not object/],
    [() => explainer.explain("{}", 7), TypeError, /tenant must be a string, not number/],
    [() => explainer.explain("["), Error, /error at line 1, column 1/],
    [() => new page.Orderer({ head: { mode: "on" } }), Error, /config: .*`on`/],
  ]) {
    const error = thrown(call);
    assert.ok(error instanceof type, `${error.name} for ${call}`);
    assert.match(error.message, words);
  }
  const lines = [["Rewrite", rewrites], ["Diagnosis", diagnoses]].flatMap(([type, values]) =>
    values.map((value, at) => `export const ${type}${at}: t.${type} = ${JSON.stringify(value)};`),
  );
  lines.push('export const config: t.Config = { head: { mode: "apply" } };');
  inProject((project) => {
    cpSync(folder, join(project, "page"), { recursive: true });
    compile(project, `import type * as t from "./page/foreword.js";\n${lines.join("\n")}\n`);
  });
});

test("a configuration with every field of the types is accepted, and no other field exists", () => {
  const config = {
    policy: "longest",
    policy_options: { seed: 1, window: 16, max_displacement: 3, max_contexts: 16, block_tokens: 16, history: ["0000000000000001"], forget_evicted: true, position_weight: 1, stop_at_ties: true, sort_shared: true },
    rank: { place: "ends", documents: 2, unranked: ["tags"] },
    hint: { enabled: true, template: "{order}", label: "{label}", short: "{order};", separator: " ", location: "{document}" },
    documents: {
      field: "render", tags: ["doc"], loose_tags: ["context"], max: 8,
      blocks: true, results: true, clients: true, numbered: false, rules: false, headings: false,
      outputs: false,
    },
    tree: { max_nodes: 100, max_tokens: 9, max_trees: 2 },
    conversation: { deduplicate: true, repeat_favoured: false, pin: false, max_pinned_tokens: 1, max_entries: 1, max_bytes: 1, answers: "none", max_answers_bytes: 1 },
    head: {
      mode: "apply", tools: {}, volatile: { patterns: [{ name: "clock", pattern: "o'clock", class: "freeze" }], add: [], learn: true },
      max_moved_bytes: 100, contexts: {}, documents: {}, upstream: "tokens",
    },
  };
  new Orderer(config).free();
  // serde names the fields that it knows.
  const known = (value) => {
    const { message } = thrown(() => new Orderer(value));
    return [...message.matchAll(/`([a-z_]+)`/g)].map(([, name]) => name).slice(1).sort();
  };
  assert.deepEqual(known({ nope: 1 }), Object.keys(config).sort());
  for (const [name, fields] of Object.entries(config)) {
    if (typeof fields === "object") assert.deepEqual(known({ [name]: { nope: 1 } }), Object.keys(fields).sort());
  }
});

test("errors are Errors that name the value and the limit", () => {
  const orderer = new Orderer({ documents: { max: 2 } });
  const cases = [
    [() => new Orderer({ polcy: "longest" }), Error, /config: unknown field `polcy`, expected one of `policy`/],
    [() => new Orderer({ policy: "best" }), Error, /config: policy: `best` is not one of retrieval, /],
    [() => new Orderer({ tree: { max_nodes: 0 } }), Error, /config: tree\.max_nodes: 0 is out of range, it must be 1 to 10000000/],
    [() => new Orderer(5), TypeError, /config must be an object, not number/],
    [() => orderer.rewrite({}), TypeError, /body must be a string, not object/],
    [() => orderer.rewrite("{}", 7), TypeError, /tenant must be a string, not number/],
    [() => orderer.order(null), TypeError, /documents must be an array, not null/],
    [() => orderer.order([]), Error, /the request has no documents/],
    [() => orderer.order([{ id: "a" }]), Error, /documents: missing field `text`/],
    [() => orderer.order([1, 2, 3].map((n) => ({ text: `${n}` }))), Error, /3 documents, more than the limit of 2/],
    [() => orderer.documentsOf("["), Error, /error at line 1, column 1/],
    [() => orderer.tree({ limit: 0 }), Error, /options\.limit: 0 is out of range, it must be 1 to 10000000/],
    [() => new Trace(-1), RangeError, /documentTokens: -1 is not a whole number from 0 to 4294967295/],
    [() => new Trace().push("text"), TypeError, /chunk must be a Uint8Array, not string/],
    [() => new Replay({ policy: "x" }), Error, /options\.policy: `x` is not one of/],
    [() => new Replay({ pageTokens: 0 }), Error, /options\.pageTokens: 0 is out of range, it must be 1 to 1048576/],
    [() => new Replay().advance(new Trace(), 0.5), RangeError, /requests: 0\.5 is not a whole number/],
    [() => new Replay().advance({}, 1), Error, /instance of Trace/],
    [() => new SimilarityCache({ dimensions: 0 }), Error, /similarity\.dimensions: 0 is out of range, it must be 1 to/],
    [() => new SimilarityCache({ dimensions: 16384, capacity: 1e7 }), Error, /may take \d+ bytes, more than the limit of 2147483648/],
    [() => new SimilarityCache({ dimensions: 2 }).lookup([1], 0), Error, /the embedding has 1 dimensions, this cache is for 2/],
    [() => new SimilarityCache({ dimensions: 1 }).insert([1], undefined, 0), TypeError, /documents must be an array, not undefined/],
    [() => new SimilarityCache({ dimensions: 2 }).lookup([1, "x"], 0), Error, /embedding: invalid type: string "x", expected f64/],
    [() => new SimilarityCache({ dimensions: 2 }).lookup([1, 0], NaN), RangeError, /nowMs: NaN is not a number/],
    [() => embed("text", 0), RangeError, /dimensions: 0 is not a whole number from/],
  ];
  for (const [call, type, words] of cases) {
    const error = thrown(call);
    assert.ok(error instanceof type, `${error?.name} for ${call}`);
    assert.match(error.message, words);
  }
});

test("an object whose getter throws leaves its orderer usable", () => {
  const orderer = new Orderer();
  const document = { get text() { throw new Error("no text today"); } };
  assert.match(thrown(() => orderer.order([document])).message, /documents: it cannot be written as JSON/);
  const cycle = {};
  cycle.text = cycle;
  assert.match(thrown(() => orderer.order([cycle])).message, /documents: it cannot be written as JSON/);
  assert.deepEqual(orderer.order([{ text: "a" }]).order, [0]);
});

test("an array whose buffer was transferred leaves its object usable", () => {
  const detached = (array) => {
    structuredClone(array.buffer, { transfer: [array.buffer] });
    return array;
  };
  const trace = new Trace();
  trace.push(detached(new Uint8Array(9)));
  trace.push(new TextEncoder().encode('{"docs": ["a"]}'));
  assert.equal(trace.finish().requests, 1);
  const cache = new SimilarityCache({ dimensions: 2 });
  assert.match(thrown(() => cache.lookup(detached(new Float32Array(2)), 0)).message, /the embedding has 0 dimensions/);
  assert.equal(cache.lookup([1, 0], 0), null);
});

test("a text that is cut in the middle of a character is ordered as if U+FFFD stood there", () => {
  const cut = (text) => text.slice(0, -1);
  const documents = (cut) => [{ id: cut("a😀"), text: cut("\\ud83d \\\\ud83d ends in 😀") }, { id: "b", title: cut("😀"), text: "b" }];
  const sent = (cut) => new Orderer().order(documents(cut), { before: cut("Be brief 😀") });
  const whole = (text) => `${text.slice(0, -2)}\ufffd`;
  assert.deepEqual(sent(cut), sent(whole));
  assert.equal(sent(cut).order.length, 2);
  const orderer = new Orderer();
  orderer.order(documents(cut));
  assert.equal(orderer.order(documents(whole)).matched, 2);
  const cache = new SimilarityCache({ dimensions: 2 });
  cache.insert([1, 0], [cut("a\\ud83d 😀")], 0);
  assert.deepEqual(cache.lookup([1, 0], 0).documents, ["a\\ud83d \ufffd"]);
});

test("garbage ends in an Error or a result, never in a trap", () => {
  const below = random(8);
  const pick = (list) => list[below(list.length)];
  const atoms = [
    undefined, null, true, 0, -1, 0.5, NaN, Infinity, 2 ** 53, 2 ** 64, "", "longest", "\ud800", "{}", "[", '{"messages":[]}', "x".repeat(70_000),
    10n, Symbol("s"), () => 1, new Date(NaN), new Map(), new Uint8Array([0xff, 10, 123]), new Float32Array([NaN, 1]), new Float32Array(3),
    new ArrayBuffer(8), /x/, new Proxy({}, {}), Object.create(null),
  ];
  const keys = ["policy", "tree", "max_nodes", "documents", "hint", "id", "text", "title", "limit", "before", "dimensions", "tolerance", "length", "toJSON"];
  const value = (depth) => {
    const kind = depth > 0 ? below(3) : 0;
    if (kind === 1) return Array.from({ length: below(5) }, () => value(depth - 1));
    if (kind === 2) return Object.fromEntries(Array.from({ length: below(5) }, () => [pick(keys), value(depth - 1)]));
    return pick(atoms);
  };
  const make = { Orderer: () => new Orderer(), Trace: () => new Trace(), Replay: () => new Replay(), SimilarityCache: () => new SimilarityCache({ dimensions: 3 }) };
  const objects = Object.fromEntries(Object.entries(make).map(([name, make]) => [name, make()]));
  const methods = Object.entries(objects).flatMap(([name, object]) =>
    Object.getOwnPropertyNames(Object.getPrototypeOf(object))
      .filter((method) => typeof Object.getOwnPropertyDescriptor(Object.getPrototypeOf(object), method).value === "function")
      .filter((method) => !["constructor", "free", "__destroy_into_raw"].includes(method))
      .map((method) => [name, method]),
  );
  assert.ok(methods.length >= 11, methods.join(" "));
  let refused = 0;
  for (let round = 0; round < 20_000; round += 1) {
    const [name, method] = pick(methods);
    const given = Array.from({ length: below(4) }, () => value(3));
    if (method === "advance" && below(2)) given[0] = objects.Trace;
    try {
      if (below(5) === 0) new foreword[name](...given).free();
      else objects[name][method](...given);
    } catch (error) {
      assert.ok(error instanceof Error, String(error));
      assert.ok(!(error instanceof WebAssembly.RuntimeError), `${name}.${method}: ${error.message}`);
      assert.doesNotMatch(error.message, /recursive use|unsafe aliasing/);
      refused += 1;
    }
  }
  assert.ok(refused > 5_000 && refused < 20_000, `${refused} of 20,000 were refused`);
  // The module still does what it did.
  assert.deepEqual(new Orderer().order([{ text: "a" }, { text: "b" }]).order, [1, 0]);
});

test("a log is read from pieces that are cut anywhere", () => {
  const log = new TextEncoder().encode('{"docs": ["ä", "b"]}\r\n\n{"docs": []}\nnonsense\n{"docs": [1], "tokens": 3}');
  for (const size of [1, 2, 7, log.length]) {
    const trace = new Trace();
    for (let from = 0; from < log.length; from += size) trace.push(log.subarray(from, from + size));
    const summary = trace.finish();
    assert.deepEqual(summary, {
      bytes: log.length, lines: 4, requests: 2, documents: 3, listed: 3, withoutDocuments: 1, bad: 1,
      badLines: [{ line: 4, message: "not a JSON object: error at column 1" }],
    });
    assert.equal(new Replay().advance(trace, 9).documentTokens, 2 * 256 + 3);
  }
});

test("a chat refers to a document that an earlier turn holds", () => {
  const orderer = new Orderer();
  const text = "a block that is longer than the hint that stands for it, or nothing would be gained by referring to it";
  const user = (question) => ({ role: "user", content: `<document id="a">${text}</document>\n${question}` });
  const first = { messages: [user("Why?")] };
  const second = { messages: [user("Why?"), { role: "assistant", content: "So." }, user("How?")] };
  orderer.rewrite(JSON.stringify(first), "t");
  const { body, report } = orderer.rewrite(JSON.stringify(second), "t");
  assert.equal(report.deduplicated, 1);
  assert.match(JSON.parse(body).messages[2].content, /refer to \[a\] in the previous conversation/);
  assert.equal(orderer.rememberedMessages > 0, true);
});

function thrown(call) {
  try {
    call();
  } catch (error) {
    return error;
  }
  throw new assert.AssertionError({ message: `${call} threw nothing` });
}

function npm(given, cwd) {
  return execFileSync("npm", given, { cwd, encoding: "utf8", stdio: ["ignore", "pipe", "ignore"] });
}

/** A folder in which the package is installed. */
function inProject(work) {
  const project = mkdtempSync(join(tmpdir(), "foreword-types-"));
  try {
    mkdirSync(join(project, "node_modules"));
    cpSync(folder, join(project, "node_modules/foreword-browser"), { recursive: true });
    work(project);
  } finally {
    rmSync(project, { recursive: true });
  }
}

function compile(project, text) {
  writeFileSync(join(project, "use.ts"), text);
  const options = ["--strict", "--noEmit", "--target", "esnext", "--module", "nodenext", "--lib", "esnext,dom", "--types", ""];
  const tsc = join(here, "node_modules/typescript/bin/tsc");
  writeFileSync(join(project, "package.json"), '{"type": "module"}');
  try {
    execFileSync(process.execPath, [tsc, ...options, "use.ts"], { cwd: project, encoding: "utf8" });
  } catch (error) {
    assert.fail(`${error.stdout}\n${text}`);
  }
}
