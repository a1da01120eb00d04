// The package decides as the core does natively: the vectors of wasm-module/browser/tests, in Node and in Chromium.

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { launch, named, serve } from "./support.mjs";

const [head, ...lines] = (await readFile(new URL("../../wasm-module/browser/tests/vectors.jsonl", import.meta.url), "utf8"))
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

/** The outcomes of all requests, and the digests of all texts' vectors; runs in Node and in a page. */
function decide({ embed, Orderer }, configs, requests, texts) {
  const orderers = configs.map((config) => new Orderer(config));
  const idOf = (number) => `d${number}`;
  const textOf = (number) => `"Où" ${number}? `.repeat(1 + (number % 7));
  const digestOf = (bytes) => bytes.reduce((hash, byte) => Math.imul(hash ^ byte, 0x01000193), 0x811c9dc5) >>> 0;
  const digest = (text) => digestOf(new TextEncoder().encode(text));

  function bodyOf({ form, turns }) {
    const messages = [{ content: "Be brief.", role: "system" }];
    turns.forEach((documents, at) => {
      if (at > 0) messages.push({ content: "So it is.", role: "assistant" });
      const spans = form === "tags" ? documents.map((n) => `<document id="${idOf(n)}">${textOf(n)}</document>\n`) : [];
      messages.push({ content: `${spans.join("")}And ${at}?`, role: "user" });
    });
    if (form === "tags") return JSON.stringify({ messages, model: "m" });
    const documents = turns.at(-1).map((n) => ({ id: idOf(n), text: textOf(n) }));
    return JSON.stringify({ documents, messages, model: "m" });
  }

  const embeddings = texts.map((text) => digestOf(new Uint8Array(embed(text, 64).buffer)));
  const outcomes = requests.map((request) => {
    const orderer = orderers[request.config];
    if (request.form === "plain") {
      const documents = request.turns.at(-1).map((n) => ({ id: idOf(n), text: textOf(n) }));
      const options = { before: "Be brief.", tenant: request.tenant, model: "m" };
      const { order, matched, dropped, hint } = orderer.order(documents, options);
      return [order, matched, dropped, hint === null ? null : digest(hint)];
    }
    const { body, report: r } = orderer.rewrite(bodyOf(request), request.tenant);
    return [
      [r.documents, r.matched, r.moved, r.dropped, r.deduplicated],
      [r.pinned, r.replayed, Number(r.hinted)],
      [r.documentTokens, r.matchedTokens],
      digest(body),
    ];
  });
  return { outcomes, embeddings };
}

const requests = lines.map(({ request }) => request);
const texts = head.embeddings.map(([text]) => text);
const expected = { outcomes: lines.map(({ outcome }) => outcome), embeddings: head.embeddings.map(([, digest]) => digest) };

test("1,000 requests are decided in Node as they are natively", async () => {
  const { default: init, ...foreword } = await import(join(named("FOREWORD_PACKAGE"), "web/foreword.js"));
  await init({ module_or_path: await readFile(join(named("FOREWORD_PACKAGE"), "web/foreword_bg.wasm")) });
  assert.equal(requests.length, 1000);
  assert.deepEqual(decide(foreword, head.configs, requests, texts), expected);
});

test("1,000 requests are decided in Chromium as they are natively", async () => {
  const server = await serve(named("FOREWORD_PACKAGE"));
  const { browser, close } = await launch();
  try {
    const page = await browser.newPage();
    await page.goto(`${server.origin}/README.md`);
    const outcomes = await page.evaluate(
      async ([decide, ...given]) => {
        const { default: init, ...foreword } = await import("/web/foreword.js");
        await init();
        return new Function(`return ${decide}`)()(foreword, ...given);
      },
      [decide.toString(), head.configs, requests, texts],
    );
    assert.deepEqual(outcomes, expected);
  } finally {
    await close();
    await server.close();
  }
});
