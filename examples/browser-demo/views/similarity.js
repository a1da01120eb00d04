// The similarity cache over the questions asked so far: hits and false hits at every tolerance, and at the chosen one.

import { byId, counted, element, grouped } from "../dom.js";
import { axes, Chart, colour } from "./chart.js";

/** False hits that are named. */
const NAMED = 4;

export class SimilarityView {
  #chart;
  #points = [];
  #titles = new Map();

  constructor() {
    this.#chart = new Chart(byId("similarity-chart"), () => this.#options());
    byId("tolerance").addEventListener("input", () => this.#chosen());
  }

  /** The tolerances that the slider can take. */
  get tolerances() {
    const { min, max, step } = byId("tolerance");
    const count = Math.round((max - min) / step);
    return Array.from({ length: count + 1 }, (_, at) => Number((Number(min) + at * step).toFixed(4)));
  }

  /** `points`: one for each tolerance; `titles`: of documents, by id. */
  show(points, titles) {
    this.#points = points;
    this.#titles = titles;
    const lookups = Math.max(1, points[0]?.lookups ?? 0);
    const share = (count) => points.map(({ hits }) => count(hits) / lookups);
    this.#chart.show([
      points.map(({ tolerance }) => tolerance),
      share((hits) => hits.length),
      share((hits) => hits.filter(({ isFalse }) => isFalse).length),
    ]);
    byId("tolerance").disabled = points.length === 0;
    byId("similarity-note").textContent = points.length === 0 ? "ask some questions first" : "the questions asked so far";
    this.#chosen();
  }

  #options() {
    const line = (name, stroke, width) => ({ stroke: colour(stroke), width, label: name, points: { show: false } });
    return {
      axes: axes("tolerance (cosine distance)"),
      scales: { x: { time: false }, y: { range: [0, 1] } },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      series: [{}, { ...line("hits", "held", 2.5), fill: colour("held-soft") }, { ...line("false hits", "wrong", 2.5), fill: colour("wrong-soft") }],
      hooks: { draw: [(plot) => this.#mark(plot)] },
    };
  }

  /** A line at the chosen tolerance. */
  #mark(plot) {
    const x = plot.valToPos(Number(byId("tolerance").value), "x", true);
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([4 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  #chosen() {
    const tolerance = Number(byId("tolerance").value);
    byId("tolerance-value").textContent = tolerance.toFixed(2);
    this.#chart.redraw();
    const point = this.#points.find((point) => Math.abs(point.tolerance - tolerance) < 1e-6);
    if (!point) return;
    const wrong = point.hits.filter(({ isFalse }) => isFalse);
    byId("figure-lookups").textContent = grouped(point.lookups);
    byId("figure-hits").textContent = grouped(point.hits.length);
    byId("figure-false").textContent = grouped(wrong.length);
    const named = wrong.slice(0, NAMED).map(({ question, wanted, distance }) =>
      element("li", {}, element("b", {}, question), ` would miss “${this.#titles.get(wanted) ?? wanted}” (distance ${distance.toFixed(2)})`),
    );
    if (wrong.length > NAMED) named.push(element("li", {}, `and ${counted(wrong.length - NAMED, "more false hit")}`));
    byId("false-hits").replaceChildren(...named);
  }
}
