// A prompt as the page shows it: a chat body out of a head, documents and a question, and a rewritten body in parts.

const MODEL = "demo";

/** The OpenAI chat body with `documents` as tagged spans before the question. */
export function bodyOf({ system, tools }, documents, question) {
  const blocks = documents.map((document) => blockOf(document));
  return JSON.stringify({
    model: MODEL,
    tools,
    messages: [
      { role: "system", content: system },
      { role: "user", content: `${blocks.join("\n\n")}\n\n${question}` },
    ],
  });
}

/** `body` with the head of `other`. */
export function withHeadOf(other, body) {
  const { tools, messages } = JSON.parse(other);
  const own = JSON.parse(body);
  return JSON.stringify({ ...own, tools, messages: [messages[0], ...own.messages.slice(1)] });
}

/** A document as it stands in the prompt. It depends on the document alone, or prefixes would never match. */
function blockOf({ id, title, text }) {
  return `<document id="${attribute(id)}" title="${attribute(title)}">\n${text.replaceAll("</document", "<\\/document")}\n</document>`;
}

function attribute(value) {
  return value.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
}

/** What stands before the documents of a body, as one text, in the order of most templates. */
export function headText(body) {
  const { tools, messages } = JSON.parse(body);
  return toolsText(tools) + messages[0].content;
}

/** One tool a line. */
function toolsText(tools = []) {
  return tools.map((tool) => `${JSON.stringify(tool)}\n`).join("");
}

/**
 * The parts of a body's prompt, in order: `{kind, text, tokens, reused, document}`, where `document` is the place among the
 * documents. `matched` of them are in the engine's cache, and `shared` characters of what stands before them.
 */
export function partsOf(body, matched, shared) {
  const { tools, messages } = JSON.parse(body);
  const [system, user] = messages;
  const parts = [];
  let left = shared;
  for (const [kind, text] of [["tools", toolsText(tools)], ["system", system.content]]) {
    parts.push(part(kind, text.slice(0, left), true), part(kind, text.slice(left), false));
    left = Math.max(0, left - text.length);
  }
  let rest = user.content;
  for (let place = 0; ; place += 1) {
    const found = rest.match(BLOCK);
    if (!found) break;
    parts.push({ ...part("document", found[0], place < matched), document: place });
    rest = rest.slice(found[0].length).replace(/^\s+/, "");
  }
  const moved = rest.match(MOVED);
  if (moved) {
    parts.push(part("moved", moved[1], false));
    rest = rest.replace(MOVED, "");
  }
  const lines = rest.trim().split("\n\n");
  const question = lines.pop();
  for (const line of lines) parts.push(part("hint", line, false));
  parts.push(part("question", question, false));
  return parts.filter(({ text }) => text !== "");
}

const BLOCK = /^<document id="[^"]*" title="[^"]*">\n[^]*?\n<\/document>/;

/** Words of the system text that the core has moved behind the documents. */
const MOVED = /<context>\n([^]*?)\n<\/context>\n*/;

function part(kind, text, reused) {
  return { kind, text, reused, tokens: estimateTokens(text) };
}

/** As the core does: four bytes a token. */
export function estimateTokens(text) {
  return Math.ceil(new TextEncoder().encode(text).length / 4);
}

export { MODEL };
