// What stands before the documents: the same in every request, or with what clients change in it from one to the next.

/** What a client may change, by the names of the page's boxes. */
export const BREAKS = ["tools", "clock", "session", "user"];

const SYSTEM = "You answer questions of the staff from the handbook. Say so when the handbook does not answer.";

/**
 * The head of request `number`, with everything in `breaks` another than in the request before: `{tools, system}`, where
 * `tools` is absent unless their order is broken. Nothing of it is random: a session can be played again.
 */
export function headOf(breaks, number) {
  const lines = [SYSTEM];
  if (breaks.includes("clock")) lines.push(`Current date and time: ${clock(number)}`);
  if (breaks.includes("session")) lines.push(`Session id: ${hexadecimal(number)}`);
  if (breaks.includes("user")) lines.push(`The user's name is ${user(number)}.`);
  const head = { system: lines.join("\n") };
  return breaks.includes("tools") ? { tools: shuffled(TOOLS, number), ...head } : head;
}

/** How long the longest beginning is that a text has in common with one before it. */
export class Beginnings {
  #texts = [];

  /** The length in common with a text added before; then adds this one. */
  add(text) {
    const lengths = this.#texts.map((other) => common(text, other));
    if (!this.#texts.includes(text)) this.#texts.push(text);
    if (this.#texts.length > KEPT) this.#texts.shift();
    return Math.max(0, ...lengths);
  }
}

/** Texts that are compared with: more than the corpus has questions. */
const KEPT = 1_000;

function common(one, other) {
  const end = Math.min(one.length, other.length);
  let at = 0;
  while (at < end && one[at] === other[at]) at += 1;
  return at;
}

/** A working day's time, some seconds later each time. */
function clock(number) {
  const time = new Date(Date.UTC(2026, 10, 23, 8, 30, 5) + 37_000 * number);
  return time.toISOString().replace("T", " ").slice(0, 19);
}

function hexadecimal(number) {
  return [1, 2].map((seed) => mixed(seed, number).toString(16).padStart(8, "0")).join("");
}

function user(number) {
  return `${USERS[number % USERS.length]}, desk ${1 + (mixed(3, number) % 90)}`;
}

const USERS = ["Anna Berg", "Jonas Lind", "Mira Castellan", "Tom Okafor", "Edith Brandt", "Yusuf Demir", "Clara Novak"];

/** Fisher and Yates. */
function shuffled(list, number) {
  const out = [...list];
  for (let at = out.length - 1; at > 0; at -= 1) {
    const other = mixed(at, number) % (at + 1);
    [out[at], out[other]] = [out[other], out[at]];
  }
  return out;
}

/** 32 bits of a seed and a number (the finaliser of MurmurHash3). */
function mixed(seed, number) {
  let bits = Math.imul(seed, 0x9e3779b1) ^ Math.imul(number + 1, 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 16), 0x85ebca6b);
  bits = Math.imul(bits ^ (bits >>> 13), 0xc2b2ae35);
  return (bits ^ (bits >>> 16)) >>> 0;
}

const TOOLS = [
  tool("search_handbook", "Searches the staff handbook and returns the passages that answer best.", {
    query: ["string", "What to look for, in a few words."],
    limit: ["integer", "Most passages to return."],
  }),
  tool("book_leave", "Books days of leave for a member of staff, after their manager has agreed.", {
    from: ["string", "First day, as YYYY-MM-DD."],
    to: ["string", "Last day, as YYYY-MM-DD."],
    kind: ["string", "annual, parental, sick or unpaid."],
  }),
  tool("show_roster", "Shows who works on which sailing, on the day given.", {
    day: ["string", "The day, as YYYY-MM-DD."],
    ship: ["string", "Name of the ship; empty: all of them."],
  }),
  tool("submit_expense", "Submits an expense with its receipt for approval.", {
    amount: ["number", "The amount in euros."],
    purpose: ["string", "What it was spent on."],
    receipt: ["string", "Number of the uploaded receipt."],
  }),
  tool("find_colleague", "Finds a colleague by name, desk or duty.", {
    text: ["string", "A part of the name, a desk or a duty."],
  }),
  tool("open_ticket", "Opens a ticket with the IT desk.", {
    title: ["string", "One line."],
    words: ["string", "What happened, and what was expected."],
    urgent: ["boolean", "Whether work has stopped."],
  }),
];

function tool(name, description, fields) {
  const entries = Object.entries(fields);
  const properties = Object.fromEntries(entries.map(([field, [type, description]]) => [field, { type, description }]));
  const parameters = { type: "object", properties, required: [entries[0][0]] };
  return { type: "function", function: { name, description, parameters } };
}
