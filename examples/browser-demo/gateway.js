// A Foreword gateway, or any OpenAI-compatible server: models, embeddings, and an answer as it streams.

/** Texts embedded at once. */
const BATCH = 64;

export class Gateway {
  #origin;

  constructor(origin) {
    this.#origin = origin;
  }

  /** Names of the models served. */
  async models() {
    const { data } = await this.#json("GET", "/v1/models");
    return (data ?? []).map(({ id }) => String(id));
  }

  /** Vectors of `texts`; `null` when the server has no embeddings. */
  async embeddings(texts, tell = () => {}) {
    const vectors = [];
    for (let from = 0; from < texts.length; from += BATCH) {
      let answer;
      try {
        answer = await this.#json("POST", "/v1/embeddings", { input: texts.slice(from, from + BATCH) });
      } catch {
        return null;
      }
      const batch = (answer.data ?? []).map(({ embedding }) => embedding);
      if (!batch.every((vector) => Array.isArray(vector) && vector.length > 0)) return null;
      vectors.push(...batch);
      tell(vectors.length / texts.length);
    }
    return vectors.length === texts.length ? vectors : null;
  }

  /**
   * Sends a chat body and streams the answer: `tell` gets each piece of text. Resolves to what was measured:
   * `{firstTokenMs, totalMs, promptTokens, cachedTokens, foreword}`, with `null` for what the server does not say.
   */
  async chat(body, { model, maxTokens }, tell) {
    const request = { ...JSON.parse(body), model, max_tokens: maxTokens, stream: true, stream_options: { include_usage: true } };
    const began = performance.now();
    const response = await this.#send("POST", "/v1/chat/completions", request);
    let firstTokenMs = null;
    let usage = null;
    for await (const data of events(response.body)) {
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message ?? "the answer broke off");
      const text = event.choices?.[0]?.delta?.content;
      if (text) {
        firstTokenMs ??= performance.now() - began;
        tell(text);
      }
      usage = event.usage ?? usage;
    }
    return {
      firstTokenMs,
      totalMs: performance.now() - began,
      promptTokens: usage?.prompt_tokens ?? null,
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? null,
      foreword: response.headers.get("x-foreword"),
    };
  }

  async #json(method, path, body) {
    return (await this.#send(method, path, body)).json();
  }

  async #send(method, path, body) {
    let response;
    try {
      response = await fetch(`${this.#origin}${path}`, {
        method,
        credentials: "omit",
        headers: body ? { "content-type": "application/json" } : {},
        body: body ? JSON.stringify(body) : undefined,
      });
    } catch {
      // A browser does not tell a page which of these it was.
      throw new Error(`${this.#origin} cannot be reached, or does not allow pages of ${location.origin} (CORS)`);
    }
    if (!response.ok) throw new Error(`${path} answered ${response.status}${await reason(response)}`);
    return response;
  }
}

/** The server's words in OpenAI's shape, if it has any. */
async function reason(response) {
  try {
    const { error } = await response.json();
    return error?.message ? `: ${error.message}` : "";
  } catch {
    return "";
  }
}

/** The data of server-sent events. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      rest += done ? "\n\n" : value;
      const parts = rest.split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const lines = part.split(/\r?\n/).filter((line) => line.startsWith("data:"));
        if (lines.length > 0) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
