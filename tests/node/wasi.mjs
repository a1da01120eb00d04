// Runs a test that was built for wasm32-wasip1 in Node's V8, as `cargo xtask test` does:
//
//   CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $PWD/tests/node/wasi.mjs" \
//     cargo test -p foreword-similarity --target wasm32-wasip1 --lib
//
// Tests read their files by absolute paths. They write none.
import { readFile } from "node:fs/promises";
import { argv, env } from "node:process";
import { WASI } from "node:wasi";

const [, , file, ...rest] = argv;
const wasi = new WASI({ version: "preview1", args: [file, ...rest], env, preopens: { "/": "/" } });
const module = await WebAssembly.compile(await readFile(file));
process.exitCode = wasi.start(await WebAssembly.instantiate(module, wasi.getImportObject()));
