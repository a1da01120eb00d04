// A dropped log: read piece by piece, then replayed under every policy, slice by slice.

import { Replay, Trace, policies } from "../foreword/foreword.js";

/** Points of a curve. */
const POINTS = 120;

/** Reads `file`; throws when it holds no request. */
export async function readLog(file, tell, isStopped) {
  const trace = new Trace();
  const reader = file.stream().getReader();
  let read = 0;
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      trace.push(value);
      read += value.length;
      tell({ phase: "reading", done: read, count: file.size });
      if (await isStopped()) throw new Error("stopped");
    }
    const summary = trace.finish();
    if (summary.requests === 0) throw new Error(whyEmpty(file.name, summary));
    return { trace, summary };
  } catch (error) {
    trace.free();
    throw error;
  }
}

function whyEmpty(name, { lines, bad, badLines }) {
  const first = badLines[0] ? `; line ${badLines[0].line}: ${badLines[0].message}` : "";
  return `${name} has no request with documents (${lines} lines, ${bad} of them not understood${first})`;
}

/** Reuse over time under every policy, and what none exceeds. */
export async function compare(trace, { cacheTokens }, tell, isStopped) {
  const names = policies();
  const { requests } = trace;
  const step = Math.max(1, Math.ceil(requests / POINTS));
  const replays = names.map((policy) => new Replay({ policy, cacheTokens: cacheTokens ?? null, pageTokens: 1 }));
  const at = [];
  const curve = [];
  try {
    for (let done = 0; done < requests; ) {
      const row = [];
      for (const replay of replays) {
        const reuse = replay.advance(trace, step);
        row.push(reuse.reusedTokens / Math.max(1, reuse.documentTokens));
        done = reuse.requests;
        if (await isStopped()) throw new Error("stopped");
      }
      at.push(done);
      curve.push(row);
      tell({ phase: "replaying", done, count: requests });
    }
  } finally {
    for (const replay of replays) replay.free();
  }
  return { policies: names, at, curve, bound: trace.upperBound() };
}
