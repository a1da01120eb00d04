// What the tests share: the built package and page, a static server, Chromium.

import { createServer } from "node:http";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { extname, join, normalize } from "node:path";
import { chromium } from "playwright-core";

/** A folder or program that `cargo xtask` names. */
export function named(variable) {
  const value = process.env[variable];
  if (!value) throw new Error(`${variable} is not set: run the tests by \`cargo xtask browser --test\``);
  return value;
}

const TYPES = {
  ".css": "text/css",
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".md": "text/plain; charset=utf-8",
  ".jsonl": "application/jsonl",
  ".svg": "image/svg+xml",
  ".txt": "text/plain",
  ".wasm": "application/wasm",
};

/** Serves a folder on a free port: `{origin, close}`. */
export async function serve(folder) {
  const server = createServer(async (request, response) => {
    const { pathname } = new URL(request.url, "http://server");
    const path = normalize(pathname.endsWith("/") ? `${pathname}index.html` : pathname);
    try {
      const content = await readFile(join(folder, path));
      response.writeHead(200, { "content-type": TYPES[extname(path)] ?? "application/octet-stream" });
      response.end(content);
    } catch {
      response.writeHead(404).end();
    }
  });
  return listening(server);
}

/** Starts a server on a free port. */
export async function listening(server) {
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const origin = `http://127.0.0.1:${server.address().port}`;
  const close = () =>
    new Promise((resolve) => {
      server.close(resolve);
      server.closeAllConnections();
    });
  return { origin, close };
}

/** Chromium with a profile of its own, which speaks to nobody by itself. */
export async function launch() {
  const profile = await mkdtemp(join(tmpdir(), "foreword-chromium-"));
  const browser = await chromium.launchPersistentContext(profile, {
    executablePath: named("FOREWORD_CHROMIUM"),
    headless: true,
    viewport: { width: 1280, height: 900 },
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const close = async () => {
    await browser.close();
    await rm(profile, { recursive: true, force: true });
  };
  return { browser, close };
}

/** Random numbers below a limit, the same for the same seed (Mulberry32). */
export function random(seed) {
  let state = seed;
  return (limit) => {
    state = (state + 0x6d2b79f5) | 0;
    let bits = Math.imul(state ^ (state >>> 15), 1 | state);
    bits = (bits + Math.imul(bits ^ (bits >>> 7), 61 | bits)) ^ bits;
    return ((bits ^ (bits >>> 14)) >>> 0) % limit;
  };
}
