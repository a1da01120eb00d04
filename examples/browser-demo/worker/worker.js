// The page's worker: everything that computes. The document asks by name and gets an answer, an error, or progress
// before either:
//
//   {id, name, argument}  ─▶  {id, progress}*  ─▶  {id, result} or {id, error}
//
// Long work gives way between slices, so that a `stop` gets through.

import init from "../foreword/foreword.js";
import { readLog, compare } from "./log.js";
import { Session } from "./session.js";

let session = null;
let running = null;

const calls = {
  /** Starts the module and a session over a corpus, which forgets the session before. */
  async begin({ documents, questions, settings, vectors }) {
    await init();
    session = new Session(documents, questions, settings, vectors);
    return session.summary();
  },
  /** What the client changes in its heads, and `head.mode`. */
  head: (wanted) => session.setHead(wanted),
  ask: ({ question, vector }) => session.ask(question, vector ?? undefined),
  /** Asks the corpus' next questions. */
  askNext: ({ count }, tell) =>
    long(async (isStopped) => {
      let shown = null;
      let done = 0;
      while (done < count && session.questionsLeft() > 0 && !(await isStopped())) {
        shown = session.ask(session.nextQuestion());
        done += 1;
        tell({ done, count: Math.min(count, done + session.questionsLeft()), shown });
      }
      return { shown, done };
    }),
  /** Reads a log and replays it under every policy. */
  replay: ({ file, settings }, tell) =>
    long(async (isStopped) => {
      const { trace, summary } = await readLog(file, tell, isStopped);
      try {
        return { summary, ...(await compare(trace, settings, tell, isStopped)) };
      } finally {
        trace.free();
      }
    }),
  /** What a similarity cache would have answered, at each of the tolerances. */
  similarity: ({ tolerances }, tell) =>
    long(async (isStopped) => {
      const points = [];
      for (const tolerance of tolerances) {
        if (await isStopped()) break;
        points.push(session.similarity(tolerance));
        tell({ done: points.length, count: tolerances.length });
      }
      return points;
    }),
  /** Ends the long work that runs, if any does, after its slice. */
  stop: () => {
    if (running) running.stopped = true;
    return running !== null;
  },
};

/** Does long work, which gives way whenever it asks whether it was stopped. Longer work before it is stopped. */
async function long(work) {
  if (running) running.stopped = true;
  const own = { stopped: false };
  running = own;
  try {
    return await work(async () => {
      await turn();
      return own.stopped;
    });
  } finally {
    if (running === own) running = null;
  }
}

/** Lets messages through. A timer would wait 4 ms each time. */
function turn() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      port1.close();
      resolve();
    };
    port2.postMessage(null);
  });
}

self.addEventListener("message", async ({ data: { id, name, argument } }) => {
  try {
    const tell = (progress) => self.postMessage({ id, progress });
    const result = await calls[name](argument, tell);
    self.postMessage({ id, result });
  } catch (error) {
    self.postMessage({ id, error: error instanceof Error ? error.message : String(error) });
  }
});
