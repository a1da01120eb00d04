// Asks through a gateway what the Vercel AI SDK asks, streaming and not, and checks what it makes of the answers.
//
//     ai-sdk.mjs SMOLLM2 TOOLS HANDBOOK
//
// SMOLLM2 is the address of a gateway in front of SmolLM2-135M-Instruct, TOOLS of one in front of a model with random weights whose
// template knows tools, HANDBOOK the folder of the handbook's corpus. The last line that is printed says how many checks passed.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateObject, generateText, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [smollm2, tools, handbook] = process.argv.slice(2);
const apiKey = "sk-test";
const timeout = () => AbortSignal.timeout(60_000);
let checks = 0;

function check(found, expected) {
  assert.deepEqual(found, expected);
  checks += 1;
}

const read = (name) => readFileSync(join(handbook, name), "utf8").trim().split("\n").map((line) => JSON.parse(line));
const documents = new Map(read("documents.jsonl").map((document) => [document.id, document]));
const retrieved = read("retrieved.jsonl");
const [asked, other] = read("questions.jsonl")
  .map((asked, at) => ({ ...asked, wanted: asked.documents, documents: retrieved[at].documents.slice(0, 4) }))
  .filter(({ answer, wanted, documents }) => answer && wanted.every((id) => documents.includes(id)));

function prompt({ question, documents: ids }) {
  const blocks = ids.map((id) => documents.get(id)).map(({ id, title, text }) => `<document id="${id}">\n${title}\n\n${text}\n</document>`);
  return `${blocks.join("\n")}\n\n${question}`;
}

// What the gateway answers to the prompt, read without any framework.
async function answerTo(asked) {
  const body = { model: "m", messages: [{ role: "user", content: prompt(asked) }], temperature: 0, max_tokens: 24 };
  const headers = { "content-type": "application/json", authorization: `Bearer ${apiKey}` };
  const request = { method: "POST", headers, body: JSON.stringify(body), signal: timeout() };
  const response = await fetch(`${smollm2}/v1/chat/completions`, request);
  const { message, finish_reason } = (await response.json()).choices[0];
  assert.ok(message.content.trim(), "the model answered nothing");
  return [message.content, finish_reason];
}

const options = { temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
const compatible = createOpenAICompatible({ name: "foreword", baseURL: `${smollm2}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true });

const answer = await generateText({ ...options, model: compatible("m"), prompt: prompt(asked), abortSignal: timeout() });
check([answer.text, answer.finishReason], await answerTo(asked));
check(answer.response.headers["x-foreword"] !== undefined, true);
const again = { ...asked, documents: [...asked.documents].reverse() };
const streamed = streamText({ ...options, model: compatible("m"), prompt: prompt(again), abortSignal: timeout() });
let text = "";
for await (const piece of streamed.textStream) text += piece;
check(text, await streamed.text);
check((await streamed.response).headers["x-foreword"].startsWith("ordered; policy=foresight; documents=4; matched=4"), true);
const usage = await streamed.usage;
check(usage.cachedInputTokens > usage.inputTokens / 2, true);

const schema = z.object({ isFound: z.boolean() });
const { object } = await generateObject({ ...options, maxOutputTokens: 64, model: compatible("m"), schema, prompt: prompt(other), abortSignal: timeout() });
check(typeof object.isFound, "boolean");
const objects = streamObject({ ...options, maxOutputTokens: 64, model: compatible("m"), schema, prompt: prompt(other), abortSignal: timeout() });
for await (const _ of objects.partialObjectStream);
check(typeof (await objects.object).isFound, "boolean");

// OpenAI's own provider speaks Responses.
const openai = createOpenAI({ baseURL: `${smollm2}/v1`, apiKey });
const response = await generateText({ ...options, model: openai.responses("m"), prompt: prompt(other), abortSignal: timeout() });
check(response.text !== "", true);
const events = streamText({ ...options, model: openai.responses("m"), prompt: prompt(other), abortSignal: timeout() });
check(await events.text, response.text);

const weather = tool({ description: "Tells the weather.", inputSchema: z.object({ city: z.enum(["Oslo", "Lima"]) }) });
const random = createOpenAICompatible({ name: "foreword", baseURL: `${tools}/v1`, apiKey });
const demanded = { ...options, maxOutputTokens: 96, model: random("m"), tools: { weather }, toolChoice: "required", prompt: "Weather?" };
const called = await generateText({ ...demanded, abortSignal: timeout() });
check(called.toolCalls.map(({ toolName, input }) => [toolName, ["Oslo", "Lima"].includes(input.city)]), [["weather", true]]);
const calling = streamText({ ...demanded, abortSignal: timeout() });
for await (const _ of calling.fullStream);
check((await calling.toolCalls).map(({ toolName }) => toolName), ["weather"]);
check(await calling.finishReason, "tool-calls");

console.log(checks, "checks");
