// Retrieval order beside the chosen order: two lists, and a line from a document's rank to its place.

import { byId, counted, element, shape } from "../dom.js";

export function showOrder({ documents, order, report }) {
  const isReused = (place) => place < report.matched;
  const placeOf = new Map(order.map((rank, place) => [rank, place]));
  const retrieved = documents.map(({ title }, rank) => row(rank + 1, title, isReused(placeOf.get(rank))));
  const chosen = order.map((rank, place) => row(rank + 1, documents[rank].title, isReused(place)));
  byId("order").replaceChildren(
    element("h3", {}, "As retrieved"),
    element("span"),
    element("h3", {}, "As ordered"),
    element("ol", { "aria-label": "Retrieval order" }, ...retrieved),
    lines(order, isReused),
    element("ol", { "aria-label": "Chosen order" }, ...chosen),
  );
  byId("order-note").textContent =
    `${counted(report.matched, "document")} in the cache, ${report.moved} moved` +
    (report.hinted ? ", the model is told the ranking" : "");
}

function row(rank, title, isReused) {
  return element(
    "li",
    { class: isReused ? "reused" : "computed" },
    element("span", { class: "rank" }, String(rank)),
    element("span", {}, title, element("span", { class: "visually-hidden" }, isReused ? ", in the cache" : ", to compute")),
  );
}

/** A curve for each document; heights are in rows. */
function lines(order, isReused) {
  const curves = order.map((rank, place) => {
    const [from, to] = [rank + 0.5, place + 0.5];
    return shape("path", { d: `M4 ${from}C50 ${from} 50 ${to} 96 ${to}`, class: isReused(place) ? "reused" : "computed" });
  });
  const viewBox = `0 0 100 ${order.length}`;
  return shape("svg", { viewBox, preserveAspectRatio: "none", "aria-hidden": "true" }, ...curves);
}
