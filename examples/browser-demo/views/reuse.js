// Reuse over time under every policy: a chart, and a table with the last values whose boxes show and hide the lines.

import { byId, element, percent } from "../dom.js";
import { axes, Chart, colour } from "./chart.js";

export class ReuseView {
  #chart;
  #policies = [];
  #hidden = new Set(["random", "recency"]);
  #shown = null;

  constructor() {
    this.#chart = new Chart(byId("reuse-chart"), () => this.#options());
  }

  /** `curve` has a row of shares, one for each policy, after every number of requests in `at`. */
  show({ policies, at, curve, bound = null }) {
    this.#shown = { policies, at, curve, bound };
    this.#policies = policies;
    const columns = [at, ...policies.map((_, policy) => curve.map((row) => row[policy]))];
    this.#chart.show(columns, policies.join());
    this.#table(curve.at(-1) ?? [], bound);
  }

  /** What is shown. */
  get shown() {
    return this.#shown;
  }

  /** By policy: whether its line is drawn. */
  get drawn() {
    return Object.fromEntries(this.#policies.map((policy, at) => [policy, this.#chart.isDrawn(at + 1)]));
  }

  #options() {
    return {
      axes: axes("requests"),
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, Math.max(0.1, Math.min(1, high * 1.1))] } },
      cursor: { drag: { x: false, y: false }, points: { show: false } },
      series: [
        {},
        ...this.#policies.map((policy) => ({
          label: policy,
          stroke: colour(`policy-${policy}`),
          width: policy === "longest" || policy === "foresight" ? 2.5 : 1.5,
          dash: policy === "retrieval" ? [5, 4] : undefined,
          show: !this.#hidden.has(policy),
          points: { show: false },
        })),
      ],
    };
  }

  #table(shares, bound) {
    const best = Math.max(...shares);
    const retrieval = shares[this.#policies.indexOf("retrieval")] ?? 0;
    const rows = this.#policies.map((policy, at) => {
      const share = shares[at] ?? 0;
      const box = element("input", { type: "checkbox", checked: !this.#hidden.has(policy), "data-policy": policy });
      box.addEventListener("change", () => this.#toggle(policy, at + 1, box.checked));
      const swatch = element("span", { class: "swatch" });
      swatch.style.background = `var(--policy-${policy})`;
      return element(
        "tr",
        { class: share === best && best > 0 ? "best" : "" },
        element("td", {}, element("label", {}, box, swatch, policy)),
        element("td", {}, percent(share)),
        element("td", {}, retrieval > 0 ? `${(share / retrieval).toFixed(2)} ×` : "–"),
      );
    });
    if (bound) {
      const words = bound.sampled ? "no order exceeds (estimated)" : "no order exceeds";
      rows.push(element("tr", {}, element("td", {}, words), element("td", {}, percent(bound.share)), element("td")));
    }
    const head = ["policy", "reused", "vs. retrieval"].map((name) => element("th", { scope: "col" }, name));
    const focused = document.activeElement?.dataset?.policy;
    byId("policies").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
    if (focused) byId("policies").querySelector(`[data-policy="${CSS.escape(focused)}"]`)?.focus();
  }

  #toggle(policy, series, isShown) {
    if (isShown) this.#hidden.delete(policy);
    else this.#hidden.add(policy);
    this.#chart.toggle(series, isShown);
  }
}
