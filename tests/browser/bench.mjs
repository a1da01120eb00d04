// Orders in headless Chromium: k = 15 documents against 10,000 stored paths. Prints medians; `cargo xtask browser --bench`.

import { launch, named, serve } from "./support.mjs";

const server = await serve(named("FOREWORD_PACKAGE"));
const { browser, close } = await launch();
try {
  const page = await browser.newPage();
  await page.goto(`${server.origin}/README.md`);
  const measured = await page.evaluate(measure);
  console.log(`Chromium ${browser.browser()?.version() ?? ""}, ${measured.nodes} nodes of ${measured.paths} paths, k = ${measured.k}`);
  for (const [name, { median, p99 }] of Object.entries(measured.results)) {
    console.log(`${name.padEnd(28)} median ${median.toFixed(1)} µs, p99 ${p99.toFixed(1)} µs`);
  }
} finally {
  await close();
  await server.close();
}

/** Runs in the page. */
async function measure() {
  const PATHS = 10_000;
  const K = 15;
  const ROUNDS = 4_000;
  /** Orders between two looks at the clock, which a page sees in steps of 100 µs. */
  const TOGETHER = 20;
  const { default: init, Orderer } = await import("/web/foreword.js");
  await init();

  let state = 8;
  const below = (limit) => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  };
  // Topics of 100 documents, as retrieval over a corpus of 5,000 would give.
  const documents = () => {
    const topic = 100 * below(50);
    const chosen = new Set();
    while (chosen.size < K) chosen.add(topic + Math.floor(100 * Math.random() ** 2 * 0.999));
    return [...chosen].map((number) => ({ id: `d${number}`, text: `text of document ${number} `.repeat(40) }));
  };
  const bodyOf = (list) => JSON.stringify({ model: "m", messages: [{ role: "user", content: "Why?" }], documents: list });
  const results = {};
  let nodes = 0;
  for (const policy of ["longest", "foresight"]) {
    const ways = { order: (orderer, list) => orderer.order(list), rewrite: (orderer, body) => orderer.rewrite(body) };
    for (const [name, way] of Object.entries(ways)) {
      const orderer = new Orderer({ policy, tree: { max_nodes: 1_000_000 } });
      const given = () => (name === "order" ? documents() : bodyOf(documents()));
      for (let path = 0; path < PATHS; path += 1) way(orderer, given());
      nodes = orderer.nodes;
      const times = [];
      for (let round = 0; round < ROUNDS; round += TOGETHER) {
        const batch = Array.from({ length: TOGETHER }, given);
        const began = performance.now();
        for (const each of batch) way(orderer, each);
        times.push(((performance.now() - began) * 1000) / TOGETHER);
      }
      times.sort((a, b) => a - b);
      results[`${policy}, ${name}`] = { median: times[times.length >> 1], p99: times[Math.floor(times.length * 0.99)] };
      orderer.free();
    }
  }
  return { paths: PATHS, k: K, nodes, results };
}
