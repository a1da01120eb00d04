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

/** The outcomes of all requests; runs in Node and in a page. */
function decide(Orderer, configs, requests) {
  const orderers = configs.map((config) => new Orderer(config));
  const idOf = (number) => `d${number}`;
  const textOf = (number) => `"Où" ${number}? `.repeat(1 + (number % 7));
  const digest = (text) =>
    new TextEncoder().encode(text).reduce((hash, byte) => Math.imul(hash ^ byte, 0x01000193), 0x811c9dc5) >>> 0;

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

  return requests.map((request) => {
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
}

const requests = lines.map(({ request }) => request);
const expected = lines.map(({ outcome }) => outcome);

test("1,000 requests are decided in Node as they are natively", async () => {
  const { default: init, Orderer } = await import(join(named("FOREWORD_PACKAGE"), "web/foreword.js"));
  await init({ module_or_path: await readFile(join(named("FOREWORD_PACKAGE"), "web/foreword_bg.wasm")) });
  assert.equal(requests.length, 1000);
  assert.deepEqual(decide(Orderer, head, requests), expected);
});

test("1,000 requests are decided in Chromium as they are natively", async () => {
  const server = await serve(named("FOREWORD_PACKAGE"));
  const { browser, close } = await launch();
  try {
    const page = await browser.newPage();
    await page.goto(`${server.origin}/README.md`);
    const outcomes = await page.evaluate(
      async ([decide, configs, requests]) => {
        const { default: init, Orderer } = await import("/web/foreword.js");
        await init();
        return new Function(`return ${decide}`)()(Orderer, configs, requests);
      },
      [decide.toString(), head, requests],
    );
    assert.deepEqual(outcomes, expected);
  } finally {
    await close();
    await server.close();
  }
});
