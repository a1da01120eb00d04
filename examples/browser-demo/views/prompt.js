// The prompt that is sent: bars by tokens, as retrieved and as ordered, and the words part by part.

import { byId, element, grouped, percent } from "../dom.js";

export function showPrompt({ parts, plainParts, documents, order }) {
  byId("bars").replaceChildren(bar("As retrieved", plainParts), bar("As ordered", parts));
  const titles = order.map((rank) => documents[rank].title);
  byId("prompt").replaceChildren(...parts.map((part) => words(part, titles)));
}

function bar(name, parts) {
  const all = sum(parts);
  const reused = sum(parts.filter((part) => part.reused));
  const share = percent(reused / all, 0);
  const segments = parts.map(({ kind, tokens, reused }) => {
    const segment = element("span", {
      class: reused ? "reused" : kind,
      title: `${kind}, ${grouped(tokens)} tokens, ${reused ? "from the cache" : "computed"}`,
    });
    segment.style.flexGrow = String(tokens);
    return segment;
  });
  const told = `${name}: ${grouped(reused)} of ${grouped(all)} tokens come from the cache`;
  return element(
    "div",
    {},
    element("p", {}, element("span", {}, name), element("span", {}, element("strong", {}, share), ` of ${grouped(all)} tokens reused`)),
    element("div", { class: "bar", role: "img", "aria-label": told }, ...segments),
  );
}

function words({ kind, text, tokens, reused, document }, titles) {
  const name = { tools: "Tools", system: "System text", moved: "Moved out of the system text", hint: "Order hint", question: "Question" }[kind] ?? titles[document];
  return element(
    "div",
    { class: `part ${kind} ${reused ? "reused" : "computed"}` },
    element("h3", {}, element("span", {}, name), element("span", {}, `${grouped(tokens)} tokens, ${reused ? "from the cache" : "computed"}`)),
    element("p", {}, text),
  );
}

function sum(parts) {
  return parts.reduce((tokens, part) => tokens + part.tokens, 0);
}
