// The worker, from the document's side: calls by name, progress while they run.

/** Starts the worker. It starts from a blob, so that it inherits this document's Content-Security-Policy. */
export class Engine {
  #worker;
  #waiting = new Map();
  #next = 0;

  constructor() {
    const address = new URL("worker/worker.js", document.baseURI).href;
    const start = new Blob([`import ${JSON.stringify(address)};`], { type: "text/javascript" });
    this.#worker = new Worker(trusted(URL.createObjectURL(start)), { type: "module" });
    this.#worker.addEventListener("message", ({ data }) => this.#received(data));
    this.#worker.addEventListener("error", () => this.#failed("the worker did not start"));
  }

  /** Calls by name; `tell` gets progress. Rejects with the worker's words. */
  call(name, argument, tell = () => {}) {
    const id = this.#next;
    this.#next += 1;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject, tell });
      this.#worker.postMessage({ id, name, argument });
    });
  }

  #received({ id, progress, result, error }) {
    const waiting = this.#waiting.get(id);
    if (!waiting) return;
    if (progress !== undefined) {
      waiting.tell(progress);
      return;
    }
    this.#waiting.delete(id);
    if (error === undefined) waiting.resolve(result);
    else waiting.reject(new Error(error));
  }

  #failed(words) {
    for (const { reject } of this.#waiting.values()) reject(new Error(words));
    this.#waiting.clear();
  }
}

/** The policy lets only this one through: a worker's address is script. */
function trusted(address) {
  if (!window.trustedTypes) return address;
  const policy = window.trustedTypes.createPolicy("foreword", { createScriptURL: (blob) => blob });
  return policy.createScriptURL(address);
}
