// The demo page in headless Chromium: every control, dropped logs, bad ones, no network, phone and dark.

import assert from "node:assert/strict";
import { mkdir, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { launch, named, random, serve } from "./support.mjs";

const PICTURES = join(dirname(named("FOREWORD_PAGE")), "screenshots");

let server;
let chromium;
let page;
/** What went wrong in the page: exceptions, console errors, violations of its policy. */
let wrong;
let requested;

before(async () => {
  server = await serve(named("FOREWORD_PAGE"));
  chromium = await launch();
  await mkdir(PICTURES, { recursive: true });
});

after(async () => {
  await chromium?.close();
  await server?.close();
});

beforeEach(async () => {
  wrong = [];
  requested = [];
  page = await open();
});

afterEach(async () => {
  await page.close();
  assert.deepEqual(wrong, []);
  const elsewhere = requested.filter((url) => !url.startsWith(`${server.origin}/`) && !url.startsWith(`blob:${server.origin}/`));
  assert.deepEqual(elsewhere, []);
});

/** A page that is ready for questions. */
async function open(query = "") {
  const opened = await chromium.browser.newPage();
  opened.on("pageerror", (error) => wrong.push(error.message));
  opened.on("console", (message) => message.type() === "error" && wrong.push(message.text()));
  opened.on("request", (request) => requested.push(request.url()));
  await opened.goto(`${server.origin}/${query}`);
  await opened.locator("#status.ready").waitFor();
  return opened;
}

const number = async (selector) => Number.parseFloat((await page.locator(selector).textContent()).replace(",", ""));
/** Until the buttons are at rest. */
const rested = () => page.locator("#ask:not(:disabled)").waitFor();
const asked = (count) => page.locator("#figure-asked", { hasText: new RegExp(`^${count}$`) }).waitFor();

async function ask(question) {
  await page.fill("#question", question);
  await page.click("#ask");
  await rested();
}

test("a question shows its documents, its prompt and its path in the tree", async () => {
  await ask("How long is sick pay paid?");
  assert.equal(await page.locator("#order ol").count(), 2);
  assert.equal(await page.locator("#order ol >> nth=0 >> li").count(), 5);
  assert.match(await page.locator("#prompt").innerText(), /How long is sick pay paid\?/);
  assert.equal(await page.locator("#bars .bar").count(), 2);
  assert.equal(await page.locator("#tree .node").count(), 6);
  assert.equal(await page.locator("#tree .on.node").count(), 5);
  assert.match(await page.locator("#tree").getAttribute("aria-label"), /6 nodes\. This prompt: .*Sick pay/);
  assert.equal(await page.locator("#figure-ordered").textContent(), "0.0 %");

  // The same documents in another order: the prompt opens as before, and says how they were ranked.
  await ask("Is sick pay paid for long?");
  assert.ok((await number("#figure-ordered")) > 0);
  assert.ok((await page.locator("#order .reused").count()) >= 2);
});

test("asking on, asking all and stopping", async () => {
  await page.click("#ask-1");
  await asked(1);
  await rested();
  await page.click("#ask-25");
  await asked(26);
  await rested();
  // In one turn, so that the questions cannot all be answered in between.
  await page.evaluate(() => {
    document.getElementById("ask-all").click();
    document.getElementById("stop").click();
  });
  await rested();
  const stopped = await number("#figure-asked");
  assert.ok(stopped >= 26 && stopped < 272, `${stopped}`);
  await page.click("#ask-all");
  await asked(272);
  await rested();
  assert.ok(await page.locator("#ask-all").isDisabled());
  assert.ok((await number("#figure-ordered")) > 1.5 * (await number("#figure-retrieval")));
  const columns = await page.evaluate(() => window.foreword.views.reuse.shown.at.length);
  assert.equal(columns, 272);
});

test("settings start a session over", async () => {
  await page.click("#ask-25");
  await asked(25);
  await rested();
  await page.click("summary");
  await page.selectOption("#policy", "retrieval");
  await page.fill("#documents", "8");
  await page.fill("#cache-tokens", "4000");
  await page.click("#settings button");
  await asked(0);
  await rested();
  await page.click("#ask-25");
  await asked(25);
  await rested();
  assert.equal(await page.locator("#order ol >> nth=0 >> li").count(), 8);
  assert.equal(await page.locator("#figure-ordered").textContent(), await page.locator("#figure-retrieval").textContent());
  const nodes = await number("#figure-nodes");
  assert.ok(nodes < 24, `a cache of 4,000 tokens holds ${nodes} nodes`);
});

/** Has the client change these in each request, and asks `count` questions. */
async function askBroken(breaks, count = 25) {
  for (const name of breaks) await page.check(`[name=breaks][value=${name}]`);
  await page.click("#ask-25");
  await asked(count);
  await rested();
}

const cells = (column) => page.locator(`#diagnoses td[data-name="${column}"]`).allTextContents();

for (const [name, place, cause, done, words] of [
  ["tools", "the tools", /^tool-order$/, /\d tools moved/, null],
  ["clock", "the system text", /^volatile-value \(date-time\)$/, /1 value behind the documents\./, /Current date and time: 2026-11-23 08:/],
  ["session", "the system text", /^volatile-value \(id\)$/, /1 value behind the documents\./, /Session id: [0-9a-f]{16}/],
  ["user", "the system text", /^volatile-value \((value|number)\)$/, /1 value behind the documents \(1 learned\)/, /The user's name is/],
]) {
  test(`a head broken by ${name} is named with its place and cause, and apply wins back what it cost`, async () => {
    await askBroken([name]);
    assert.deepEqual(new Set(await cells("Broke in")), new Set([place]));
    for (const told of await cells("Cause")) assert.match(told, cause);
    assert.match(await page.locator("#diagnosis").innerText(), new RegExp(`The prompt broke in ${place}`));
    const lost = await number("#figure-lost");
    assert.ok(lost > 1_000, `${lost} lost`);
    // The order of documents alone brings nothing behind such a head.
    assert.equal(await page.locator("#figure-ordered").textContent(), "0.0 %");
    assert.equal(await number("#figure-won-report"), 0);
    const won = await number("#figure-won-apply");
    assert.ok(won > lost / 3 && won <= lost, `${won} of ${lost}`);
    assert.match(await page.locator("#head-done").textContent(), /^What apply would do/);
    assert.deepEqual(new Set(await cells("Won back")), new Set(["0"]));
    if (words) assert.equal(await page.locator("#prompt .moved").count(), 0);

    // The switch shows the last question as it is sent then.
    await page.check('[name=mode][value="apply"]');
    await page.locator("#head-done", { hasText: /^Done with the head/ }).waitFor();
    assert.match(await page.locator("#head-done").textContent(), done);
    assert.ok((await number("#figure-ordered")) > 0);
    assert.notDeepEqual(new Set(await cells("Won back")), new Set(["0"]));
    if (words) assert.match(await page.locator("#prompt .moved").innerText(), words);
    assert.equal(await page.locator("#figure-asked").textContent(), "25");
  });
}

test("an unbroken head breaks nothing, and boxes may change between questions", async () => {
  await page.check('[name=mode][value="apply"]');
  await ask("How long is sick pay paid?");
  assert.match(await page.locator("#diagnosis").innerText(), /There was no prompt before/);
  await ask("How long is sick pay paid?");
  assert.match(await page.locator("#diagnosis").innerText(), /Nothing broke/);
  assert.match(await page.locator("#head-done").textContent(), /nothing to do/);
  await page.check("[name=breaks][value=session]");
  await ask("How long is sick pay paid?");
  assert.equal((await cells("Broke in"))[0], "the system text");
  await page.uncheck("[name=breaks][value=session]");
  await ask("How long is sick pay paid?");
  assert.match(await page.locator("#diagnosis").innerText(), /Nothing broke/);
  await page.click("summary");
  await page.click("#settings button");
  await asked(0);
  assert.equal(await page.locator("#figure-lost").textContent(), "–");
  assert.ok(await page.locator('[name=mode][value="apply"]').isChecked());
});

test("the tree is moved and zoomed by buttons, keys, wheel and pointer", async () => {
  await page.click("#ask-25");
  await asked(25);
  await rested();
  const camera = () => page.evaluate(() => window.foreword.views.tree.camera);
  const whole = await camera();
  await page.click("#zoom-in");
  assert.ok((await camera()).width < whole.width);
  await page.click("#zoom-out");
  await page.click("#zoom-fit");
  assert.deepEqual(await camera(), whole);
  await page.focus("#tree");
  await page.keyboard.press("+");
  await page.keyboard.press("ArrowLeft");
  const moved = await camera();
  assert.ok(moved.width < whole.width && moved.x < whole.x + (whole.width - moved.width) / 2);
  await page.keyboard.press("0");
  assert.deepEqual(await camera(), whole);
  await page.locator("#tree").scrollIntoViewIfNeeded();
  const box = await page.locator("#tree").boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.mouse.wheel(0, -200);
  await page.waitForFunction((width) => window.foreword.views.tree.camera.width < width, whole.width);
  const zoomed = await camera();
  await page.mouse.down();
  await page.mouse.move(box.x + box.width / 2 + 60, box.y + box.height / 2, { steps: 3 });
  await page.mouse.up();
  assert.ok((await camera()).x < zoomed.x);
});

test("lines of the chart are shown and hidden by the table's boxes", async () => {
  await page.click("#ask-25");
  await asked(25);
  await rested();
  const drawn = () => page.evaluate(() => window.foreword.views.reuse.drawn);
  const before = await drawn();
  await page.uncheck('[data-policy="longest"]');
  await page.check('[data-policy="random"]');
  const after = await drawn();
  assert.deepEqual([before.longest, before.random, after.longest, after.random], [true, false, false, true]);
});

test("the similarity cache answers more, and more falsely, as its tolerance grows", async () => {
  assert.ok(await page.locator("#tolerance").isDisabled());
  await page.click("#ask-all");
  await asked(272);
  await rested();
  const at = async (tolerance) => {
    await page.locator("#tolerance").fill(String(tolerance));
    return [await number("#figure-hits"), await number("#figure-false")];
  };
  const [none] = await at(0);
  const [some, few] = await at(0.5);
  const [most, many] = await at(1);
  assert.ok(none <= some && some < most && most > 200, `${none} ${some} ${most}`);
  assert.ok(few < many, `${few} ${many}`);
  assert.match(await page.locator("#false-hits").innerText(), /would miss/);
  await page.focus("#tolerance");
  await page.keyboard.press("ArrowLeft");
  assert.equal(await page.locator("#tolerance-value").textContent(), "0.98");
});

test("a dropped log of 5,000 requests is replayed while the page stays responsive", async () => {
  const below = random(5);
  const lines = Array.from({ length: 5_000 }, (_, at) => {
    const topic = 20 * below(40);
    const documents = Array.from({ length: 8 }, () => ({ id: `d${topic + below(20)}`, text: "words of a document ".repeat(8) }));
    const body = { model: "m", messages: [{ role: "user", content: `Question ${at}?` }], documents };
    return JSON.stringify(at % 2 ? body : { docs: documents.map(({ id }) => id), tokens: 200 });
  });
  // How often the page took a turn, whenever there was a sign of progress.
  await page.evaluate(() => {
    window.turns = 0;
    window.seen = [];
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => {
      window.turns += 1;
      port2.postMessage(null);
    };
    port2.postMessage(null);
    new MutationObserver(() => {
      window.seen.push({ turns: window.turns, value: document.getElementById("log-progress").value });
    }).observe(document.getElementById("log-progress"), { attributeFilter: ["value"] });
  });
  await drop("requests.jsonl", lines.join("\n"));
  await page.locator("#log-close:visible").waitFor();
  await rested();
  assert.match(await page.locator("#reuse-source").textContent(), /requests\.jsonl: 5,000 requests/);
  assert.match(await page.locator("#policies").innerText(), /no order exceeds/);
  const seen = await page.evaluate(() => window.seen);
  assert.ok(seen.length > 20, `${seen.length} signs of progress`);
  const turns = seen.at(-1).turns - seen[0].turns;
  assert.ok(turns > 200, `the page took ${turns} turns meanwhile`);

  // Questions can be asked meanwhile, and are shown when the log is put away.
  await page.click("#ask-1");
  await asked(1);
  await rested();
  await page.click("#log-close");
  assert.equal(await page.locator("#reuse-source").textContent(), "questions asked here");
  assert.equal(await page.evaluate(() => window.foreword.views.reuse.shown.at.length), 1);
});

test("a log is chosen by the file control, and its replay can be stopped", async () => {
  const line = '{"docs": ["a", "b", "c"]}\n';
  await page.setInputFiles("#log", { name: "small.jsonl", mimeType: "", buffer: Buffer.from(line.repeat(3)) });
  await page.locator("#log-close:visible").waitFor();
  assert.match(await page.locator("#reuse-source").textContent(), /small\.jsonl: 3 requests, 3 documents/);
  await rested();
  // A large one, so that there is time to stop it.
  await page.setInputFiles("#log", { name: "large.jsonl", mimeType: "", buffer: Buffer.from(line.repeat(300_000)) });
  await page.click("#stop");
  await rested();
  assert.ok(await page.locator("#log-progress").isHidden());
  assert.match(await page.locator("#log-problem").textContent(), /stopped/);
  assert.match(await page.locator("#reuse-source").textContent(), /small\.jsonl/);
});

test("what is wrong with a log is said", async () => {
  for (const [name, content, words] of [
    ["empty.jsonl", "", /empty\.jsonl has no request with documents \(0 lines/],
    ["prose.txt", "Dear diary,\ntoday I…", /prose\.txt has no request with documents \(2 lines, 2 of them not understood; line 1: not a JSON object/],
    ["binary.bin", Buffer.from([0xff, 0xfe, 0, 1, 2, 10, 0x80]), /binary\.bin has no request/],
    ["half.jsonl", '{"docs": ["a"]}\n{"docs": "b"}\n{"docs": ["a"', /2 lines not understood and left out; line 2: `docs` is not a list/],
    ["html.jsonl", '{"messages": [{"role": "user", "content": "<img src=x onerror=alert(1)>"}], "documents": [{"id": 1}]}', /documents\[0\] has no text/],
  ]) {
    await drop(name, content);
    await page.locator("#log-problem:visible", { hasText: words }).waitFor();
    await rested();
  }
});

test("documents and questions stay text", async () => {
  const question = '<img src=x onerror="window.stolen = 1"> & <b>sick pay</b>';
  await ask(question);
  assert.ok((await page.locator("#prompt").innerText()).includes(question));
  assert.equal(await page.locator("main img, main b").count(), 0);
  await page.evaluate(() => {
    try {
      document.body.innerHTML = "<p>taken over</p>";
    } catch (error) {
      window.refused = error.name;
    }
  });
  assert.equal(await page.evaluate(() => window.refused), "TypeError");
  wrong = wrong.filter((words) => !words.includes("TrustedHTML"));
});

test("a question without a word is refused with a reason", async () => {
  await ask("?!");
  assert.match(await page.locator("#problem").textContent(), /no word to search by/);
  await ask("Sick pay?");
  assert.ok(await page.locator("#problem").isHidden());
});

test("the policy lets the page and its worker speak to no one else", async () => {
  const fetched = await page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => "sent", ({ name }) => name));
  assert.equal(fetched, "TypeError");
  assert.match(wrong.join("\n"), /Content Security Policy/);
  wrong = [];
  const inWorker = await page.evaluate(async () => {
    const code = `fetch("http://127.0.0.1:9/").then(() => postMessage("sent"), ({ name }) => postMessage(name));
      self.addEventListener("securitypolicyviolation", ({ violatedDirective }) => postMessage(violatedDirective));`;
    const policy = { createScriptURL: (url) => url };
    let url = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
    try {
      url = trustedTypes.createPolicy("another", policy).createScriptURL(url);
      return "a second policy was made";
    } catch (error) {
      return error.name;
    }
  });
  assert.equal(inWorker, "TypeError");
  wrong = [];
  const violated = await page.evaluate(() => window.foreword.engine.call("reach", { address: "http://127.0.0.1:9/" }).catch(({ message }) => message));
  assert.match(violated, /calls\[name\] is not a function/);
});

test("without a network everything goes on", async () => {
  await chromium.browser.setOffline(true);
  try {
    const count = requested.length;
    await ask("How long is sick pay paid?");
    await page.click("#ask-25");
    await asked(26);
    await rested();
    await drop("log.jsonl", '{"docs": ["a", "b"]}\n'.repeat(50));
    await page.locator("#log-close:visible").waitFor();
    assert.equal(requested.length, count, requested.slice(count).join(" "));
  } finally {
    await chromium.browser.setOffline(false);
  }
});

test("everything can be reached and used by keyboard", async () => {
  const reached = new Set();
  await page.keyboard.press("Tab");
  assert.equal(await page.evaluate(() => document.activeElement.className), "skip");
  await page.keyboard.press("Enter");
  for (let press = 0; press < 60; press += 1) {
    await page.keyboard.press("Tab");
    reached.add(await page.evaluate(() => document.activeElement.id || document.activeElement.tagName));
  }
  for (const id of ["question", "ask", "ask-1", "ask-25", "ask-all", "SUMMARY", "break-tools", "break-clock", "break-session", "break-user", "mode-report", "diagnoses", "prompt", "zoom-out", "zoom-fit", "zoom-in", "tree", "log", "gateway", "model", "max-tokens"]) {
    assert.ok(reached.has(id), `${id} of ${[...reached]}`);
  }
  await page.focus("#question");
  await page.keyboard.type("How long is sick pay paid?");
  await page.keyboard.press("Enter");
  await asked(1);
});

test("every control has a name, every image a text", async () => {
  await page.click("#ask-25");
  await asked(25);
  await rested();
  const nameless = await page.evaluate(() => {
    const named = (element) =>
      element.getAttribute("aria-label") || element.textContent.trim() || [...(element.labels ?? [])].some((label) => label.textContent.trim());
    return [...document.querySelectorAll('button, input, select, summary, [role="img"], [tabindex="0"], progress')]
      .filter((element) => !named(element) && element.getAttribute("aria-hidden") !== "true")
      .map((element) => element.outerHTML);
  });
  assert.deepEqual(nameless, []);
});

test("text stands out from its paper, on light and on dark", async () => {
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    const ratios = await page.evaluate(() => {
      const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
      const luminance = (name) => {
        canvas.fillStyle = getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
        canvas.fillRect(0, 0, 1, 1);
        const linear = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((value) => {
          const share = value / 255;
          return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
      };
      const pairs = [["ink", "card"], ["ink", "paper"], ["muted", "card"], ["muted", "paper"], ["held", "card"], ["work", "work-soft"], ["card", "held"], ["wrong", "wrong-soft"], ["wrong", "card"], ["work", "card"], ["ink", "paper"]];
      return pairs.map(([front, back]) => {
        const [a, b] = [luminance(front), luminance(back)].sort((a, b) => b - a);
        return [`${front} on ${back}`, (a + 0.05) / (b + 0.05)];
      });
    });
    for (const [pair, ratio] of ratios) assert.ok(ratio >= 4.5, `${colorScheme}: ${pair} is ${ratio.toFixed(2)}`);
  }
});

test("motion is left out for who asks for it", async () => {
  await page.emulateMedia({ reducedMotion: "reduce" });
  await ask("How long is sick pay paid?");
  await ask("What is the notice period?");
  const running = await page.evaluate(() => document.getAnimations().filter(({ playState }) => playState === "running").length);
  assert.equal(running, 0);
});

test("it is as wide as the screen, on a phone and on a desk, by day and by night", async () => {
  await page.check('[name=mode][value="apply"]');
  await askBroken(["clock"]);
  await page.uncheck("[name=breaks][value=clock]");
  await page.click("#ask-all");
  await asked(272);
  await rested();
  for (const name of ["tools", "user"]) await page.check(`[name=breaks][value=${name}]`);
  for (const question of ["Who books a hotel?", "Who pays for a hotel?", "How long is sick pay paid?"]) await ask(question);
  await ask("Who decides whether a sailing is cancelled because of the weather?");
  await page.locator("#tolerance").fill("0.5");
  for (const [name, width, height] of [["desk", 1280, 900], ["phone", 390, 844], ["narrow", 320, 700]]) {
    await page.setViewportSize({ width, height });
    for (const colorScheme of ["light", "dark"]) {
      await page.emulateMedia({ colorScheme });
      await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
      const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(overflow, 0, `${name} scrolls sideways by ${overflow}`);
      await writeFile(join(PICTURES, `${name}-${colorScheme}.png`), await page.screenshot({ fullPage: true }));
    }
  }
  // The one in the README, of the cards above the last two.
  await page.setViewportSize({ width: 1280, height: 900 });
  await page.emulateMedia({ colorScheme: "light" });
  const height = await page.evaluate(() => document.querySelector(".similarity").getBoundingClientRect().top + scrollY);
  const clip = { x: 0, y: 0, width: 1280, height: Math.floor(height) };
  await page.screenshot({ path: join(PICTURES, "readme.jpg"), type: "jpeg", quality: 50, fullPage: true, clip });
});

/** Drops a file on the page. */
async function drop(name, content) {
  const bytes = [...Buffer.from(content)];
  const transfer = await page.evaluateHandle(
    async ([name, text]) => {
      const data = new DataTransfer();
      const bytes = Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
      data.items.add(new File([bytes], name));
      return data;
    },
    [name, Buffer.from(bytes).toString("base64")],
  );
  await page.dispatchEvent("body", "dragover", { dataTransfer: transfer });
  assert.ok(await page.locator("#drop").isVisible());
  await page.dispatchEvent("body", "drop", { dataTransfer: transfer });
  assert.ok(await page.locator("#drop").isHidden());
  await transfer.dispose();
}
