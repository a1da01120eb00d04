// The head's card: where prompts broke as the client sent them, why, what that cost, and what the gateway wins back.

import { byId, counted, element, grouped } from "../dom.js";

const COLUMNS = ["Question", "Broke in", "Cause", "Lost", "Won back"];

/** What stands in a prompt, by the core's names. */
const SEGMENTS = {
  tools: "the tools",
  system: "the system text",
  history: "the history",
  documents: "the documents",
  hint: "the hint",
  question: "the question",
};

/** What is written into the gateway's `ordering` against a cause; what is not here only the client can mend. */
const MENDS = {
  "tool-order": '"head": {"mode": "apply"}',
  "key-order": '"head": {"mode": "apply"}',
  "tool-set": '"head": {"mode": "apply"}',
  "volatile-value": '"head": {"mode": "apply"}',
  "document-set": '"policy": "foresight"',
  "document-order": '"policy": "foresight"',
  "document-text": '"head": {"mode": "apply"}',
};

/** `head`: of what the session shows; `null` before the first question. */
export function showHead(head) {
  const { mode, done, diagnoses = [], lost } = head ?? {};
  byId("figure-lost").textContent = head ? grouped(lost.tokens) : "–";
  byId("figure-won-report").textContent = head ? signed(lost.report) : "–";
  byId("figure-won-apply").textContent = head ? signed(lost.apply) : "–";
  for (const name of ["report", "apply"]) byId(`figure-won-${name}`).parentElement.classList.toggle("held", name === mode);
  const empty = element("p", { class: "empty" }, "Ask a question to see where its prompt breaks.");
  const [newest] = diagnoses;
  byId("diagnosis").replaceChildren(...(newest ? [sentence(newest), ...remedy(newest), doneWith(done)] : [empty]));
  byId("diagnoses").replaceChildren(...(newest ? [table(diagnoses, mode)] : []));
}

function broke({ cause }) {
  return cause !== "none" && cause !== "first-seen";
}

function causeOf({ cause, volatile }) {
  return volatile ? `${cause} (${volatile})` : cause;
}

function place({ segment, name, index }) {
  if (!segment) return name ? `outside the prompt, ${name}` : "outside the prompt";
  if (segment === "tools") return name ? `${SEGMENTS.tools}, at ${name}` : SEGMENTS.tools;
  if (segment === "documents") return `${SEGMENTS.documents}, at number ${index + 1}`;
  return SEGMENTS[segment] ?? segment;
}

function sentence(diagnosis) {
  if (diagnosis.cause === "first-seen") {
    return element("p", {}, "There was no prompt before that it could begin like.");
  }
  if (!broke(diagnosis)) return element("p", {}, "Nothing broke: the prompt begins like an earlier one as far as that goes.");
  const shape = diagnosis.shape ? [", by words of the form ", element("code", {}, diagnosis.shape)] : [];
  return element(
    "p",
    {},
    "The prompt broke in ",
    element("strong", {}, place(diagnosis)),
    `, ${counted(diagnosis.offset, "byte")} in`,
    ...shape,
    ". Cause: ",
    element("strong", {}, causeOf(diagnosis)),
    `. So ${counted(diagnosis.lostTokens, "token")} had to be computed again of the ${grouped(diagnosis.promptTokens)} sent.`,
  );
}

function remedy(diagnosis) {
  if (!broke(diagnosis)) return [];
  const line = MENDS[diagnosis.cause];
  if (!line) return [element("p", { class: "note" }, "Only the client can mend this: what was sent before should stay as it was.")];
  return [
    element("p", { class: "note" }, "What mends it, in the gateway’s ", element("code", {}, "ordering"), ": ", element("code", { class: "remedy" }, line)),
  ];
}

/** What was done with the head, or would be. */
function doneWith(done) {
  const counts = [
    [done.toolsMoved, "tool moved", "tools moved"],
    [done.toolsReformed, "tool’s keys put in order", "tools’ keys put in order"],
    [done.moved, "value behind the documents", "values behind the documents"],
    [done.frozen, "value kept as first sent", "values kept as first sent"],
    [done.dropped, "value left out", "values left out"],
    [done.left, "value left as it is", "values left as they are"],
  ];
  const words = counts.filter(([count]) => count > 0).map(([count, one, many]) => counted(count, one, many));
  const learned = done.learned > 0 ? ` (${done.learned} learned)` : "";
  const told = words.length === 0 ? "nothing to do" : `${words.join(", ")}${learned}`;
  return element("p", { class: "note", id: "head-done" }, `${done.applied ? "Done with the head" : "What apply would do with the head"}: ${told}.`);
}

function table(diagnoses, mode) {
  const head = COLUMNS.map((name) => element("th", { scope: "col" }, name));
  const rows = diagnoses.map((diagnosis) => {
    const cells = [
      [diagnosis.question, ""],
      [broke(diagnosis) ? (SEGMENTS[diagnosis.segment] ?? "outside it") : "–", ""],
      [causeOf(diagnosis), ""],
      [signed(diagnosis.lostTokens), "lost"],
      [signed(diagnosis.won[mode]), "won"],
    ];
    // A narrow screen has no columns: each value stands behind its name.
    return element("tr", {}, ...cells.map(([words, kind], at) => element("td", { class: kind, "data-name": COLUMNS[at] }, words)));
  });
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

/** −1,234 */
function signed(number) {
  return grouped(number).replace("-", "−");
}
