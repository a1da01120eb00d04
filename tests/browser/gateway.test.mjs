// The demo page with a gateway: a scripted one for what can happen, and the real one, Envoy before the host.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { launch, listening, named, serve } from "./support.mjs";

let server;
let chromium;
let page;

before(async () => {
  server = await serve(named("FOREWORD_PAGE"));
  chromium = await launch();
});

after(async () => {
  await chromium?.close();
  await server?.close();
});

beforeEach(async () => {
  page = await chromium.browser.newPage();
});

afterEach(() => page.close());

/** Opens the page and waits until it is ready for questions. */
async function open(gateway) {
  await page.goto(`${server.origin}/?gateway=${encodeURIComponent(gateway)}`);
  await page.locator("#status.ready").waitFor();
}

async function ask(question) {
  await page.fill("#question", question);
  await page.click("#ask");
  await page.locator("#ask:not(:disabled)").waitFor();
}

/**
 * An OpenAI-compatible server that pages may speak to. `chat(request, response)` answers; `embeds` says whether it has
 * embeddings: the number of letters a to h of a text.
 */
async function scripted({ chat, embeds = false, allowed = "*" }) {
  const seen = [];
  const gateway = createServer(async (request, response) => {
    response.setHeader("access-control-allow-origin", allowed);
    response.setHeader("access-control-allow-headers", "content-type");
    response.setHeader("access-control-expose-headers", "x-foreword");
    if (request.method === "OPTIONS") return response.end();
    let text = "";
    for await (const piece of request) text += piece;
    const body = text ? JSON.parse(text) : null;
    seen.push({ path: request.url, body });
    if (request.url === "/v1/models") return response.end('{"data": [{"id": "scripted"}]}');
    if (request.url === "/v1/embeddings" && embeds) {
      const count = (words) => [..."abcdefgh"].map((letter) => words.toLowerCase().split(letter).length - 1);
      return response.end(JSON.stringify({ data: body.input.map((words) => ({ embedding: count(words) })) }));
    }
    if (request.url === "/v1/chat/completions") return chat(body, response);
    response.statusCode = 404;
    response.end("{}");
  });
  return { ...(await listening(gateway)), seen };
}

const event = (response, data) => response.write(`data: ${JSON.stringify(data)}\r\n\r\n`);
const piece = (content) => ({ choices: [{ delta: { content } }] });

test("an answer streams in, and what was measured is shown", async () => {
  let goOn;
  const gateway = await scripted({
    chat: async (_, response) => {
      response.setHeader("x-foreword", "ordered; policy=foresight");
      event(response, piece("Twelve "));
      await new Promise((resolve) => (goOn = resolve));
      event(response, piece("<b>weeks</b>."));
      event(response, { choices: [], usage: { prompt_tokens: 1200, prompt_tokens_details: { cached_tokens: 900 } } });
      response.end("data: [DONE]\n\n");
    },
  });
  await open(gateway.origin);
  assert.match(await page.locator("#status").textContent(), new RegExp(gateway.origin));
  await page.fill("#max-tokens", "7");
  await page.fill("#question", "How long is sick pay paid?");
  await page.click("#ask");
  await page.locator("#answer", { hasText: /^Twelve $/ }).waitFor();
  goOn();
  await page.locator("#answer", { hasText: "Twelve <b>weeks</b>." }).waitFor();
  await page.locator("#measured tbody tr").waitFor();
  const cells = await page.locator("#measured tbody td").allTextContents();
  assert.deepEqual(cells.slice(0, 3), ["How long is sick pay paid?", "900", "75 %"]);
  assert.match(cells[3], /^\d+ ms$/);
  assert.equal(await page.locator("#measured tbody tr").getAttribute("title"), "ordered; policy=foresight");

  // The request goes as it was retrieved: ordering is the gateway's.
  const { body } = gateway.seen.find(({ path }) => path === "/v1/chat/completions");
  assert.deepEqual([body.model, body.max_tokens, body.stream], ["scripted", 7, true]);
  assert.doesNotMatch(body.messages[1].content, /priority order/);
  await gateway.close();
});

test("the host's embeddings find the documents, when it has them", async () => {
  const gateway = await scripted({ embeds: true, chat: (_, response) => response.end("data: [DONE]\n\n") });
  await open(gateway.origin);
  assert.match(await page.locator("#corpus").textContent(), /the gateway’s embeddings/);
  await ask("aaaa bbbb");
  await ask("aaaa bbbb");
  const asked = gateway.seen.filter(({ path, body }) => path === "/v1/embeddings" && body.input.length === 1);
  assert.equal(asked.length, 1, "a question is embedded once");
  assert.equal(await page.locator("#figure-asked").textContent(), "2");
  await gateway.close();
});

test("what the gateway refuses is shown, and the page goes on", async () => {
  const answers = [
    [(response) => (response.writeHead(503), response.end('{"error": {"message": "the engine is away"}}')), /answered 503: the engine is away/],
    [(response) => (response.writeHead(500), response.end("<html>")), /answered 500$/],
    [(response) => response.end('data: {"error": {"message": "out of pages"}}\n\n'), /out of pages/],
    [(response) => response.end("data: {nonsense\n\n"), /JSON/],
    [(response) => response.destroy(), /cannot be reached|network/i],
  ];
  let next = 0;
  const gateway = await scripted({ chat: (_, response) => answers[next][0](response) });
  await open(gateway.origin);
  for (const [, words] of answers) {
    await ask(`Question ${next}?`);
    assert.match(await page.locator("#gateway-problem").textContent(), words);
    next += 1;
  }
  assert.equal(await page.locator("#figure-asked").textContent(), String(answers.length));
  await gateway.close();
});

test("a gateway that is away, or lets no page in, is named", async () => {
  const strict = await scripted({ allowed: "http://other.example" });
  await open(strict.origin);
  assert.match(await page.locator("#gateway-problem").textContent(), /cannot be reached, or does not allow pages of http:\/\/127/);
  await strict.close();
  await open(strict.origin);
  assert.match(await page.locator("#gateway-problem").textContent(), /cannot be reached/);
  assert.match(await page.locator("#status").textContent(), /everything stays in this page/);
});

test("the form connects by loading the page with a policy for that gateway alone", async () => {
  const gateway = await scripted({ chat: (_, response) => response.end("data: [DONE]\n\n") });
  const other = await scripted({});
  await page.goto(server.origin);
  await page.locator("#status.ready").waitFor();
  await page.fill("#gateway", "ftp://example");
  await page.click("#gateway-form button");
  assert.match(await page.locator("#gateway-problem").textContent(), /“ftp:\/\/example” is no address/);
  await page.fill("#gateway", `${gateway.origin}/v1`);
  await page.click("#gateway-form button");
  await page.waitForURL(/gateway=/);
  await page.locator("#status.ready").waitFor();
  assert.match(await page.locator("#gateway-note").textContent(), /connected, scripted/);

  const reach = (address) => page.evaluate((address) => fetch(address).then(() => "reached", () => "refused"), `${address}/v1/models`);
  assert.equal(await reach(gateway.origin), "reached");
  assert.equal(await reach(other.origin), "refused");
  assert.equal(other.seen.length, 0);

  await page.fill("#gateway", "");
  await page.click("#gateway-form button");
  await page.waitForURL((url) => !url.search);
  await page.locator("#status.ready").waitFor();
  assert.equal(await reach(gateway.origin), "refused");
  await gateway.close();
  await other.close();
});

test("through Envoy, the host answers and reuses what ordering brought to the front", async (context) => {
  const gateway = process.env.FOREWORD_GATEWAY;
  if (!gateway) return context.skip("FOREWORD_GATEWAY names no running gateway");
  await open(gateway);
  await page.fill("#max-tokens", "4");
  // The same documents for both, by two wordings; the second time most of the prompt is there.
  await ask("How long is sick pay paid?");
  await ask("For how long is sick pay paid?");
  assert.ok(await page.locator("#gateway-problem").isHidden(), await page.locator("#gateway-problem").textContent());
  const rows = await page.locator("#measured tbody tr").all();
  assert.equal(rows.length, 2);
  const [cached, first] = [await rows[0].locator("td").allTextContents(), await rows[1].locator("td").allTextContents()];
  const tokens = (cells) => Number(cells[1].replace(",", ""));
  assert.ok(tokens(cached) > tokens(first), `${cached} after ${first}`);
  assert.match(cached[3], /^\d+ ms$/);
  assert.match(await rows[0].getAttribute("title"), /^(ordered|unchanged); policy=foresight; documents=5; matched=[1-5]/);
});
