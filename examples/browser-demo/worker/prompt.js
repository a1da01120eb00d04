// A prompt as the page shows it: a chat body out of documents and a question, and a rewritten body in parts.

const SYSTEM = "You answer questions of the staff from the handbook. Say so when the handbook does not answer.";
const MODEL = "demo";

/** The OpenAI chat body with `documents` as tagged spans before the question. */
export function bodyOf(documents, question) {
  const blocks = documents.map((document) => blockOf(document));
  return JSON.stringify({
    model: MODEL,
    messages: [
      { role: "system", content: SYSTEM },
      { role: "user", content: `${blocks.join("\n\n")}\n\n${question}` },
    ],
  });
}

/** A document as it stands in the prompt. It depends on the document alone, or prefixes would never match. */
function blockOf({ id, title, text }) {
  return `<document id="${attribute(id)}" title="${attribute(title)}">\n${text.replaceAll("</document", "<\\/document")}\n</document>`;
}

function attribute(value) {
  return value.replaceAll("&", "&amp;").replaceAll('"', "&quot;").replaceAll("<", "&lt;");
}

/**
 * The parts of a body's prompt, in order: `{kind, text, tokens, document}`, where `document` is the place among the
 * documents. `matched` of them are in the engine's cache, and what stands before them, if the engine has `seen` it.
 */
export function partsOf(body, matched, seen) {
  const [system, user] = JSON.parse(body).messages;
  const parts = [part("system", system.content, seen)];
  let rest = user.content;
  for (let place = 0; ; place += 1) {
    const found = rest.match(BLOCK);
    if (!found) break;
    parts.push({ ...part("document", found[0], place < matched), document: place });
    rest = rest.slice(found[0].length).replace(/^\s+/, "");
  }
  const lines = rest.split("\n\n");
  const question = lines.pop();
  for (const line of lines) parts.push(part("hint", line, false));
  parts.push(part("question", question, false));
  return parts;
}

const BLOCK = /^<document id="[^"]*" title="[^"]*">\n[^]*?\n<\/document>/;

function part(kind, text, reused) {
  return { kind, text, reused, tokens: estimateTokens(text) };
}

/** As the core does: four bytes a token. */
export function estimateTokens(text) {
  return Math.ceil(new TextEncoder().encode(text).length / 4);
}

export { MODEL };
