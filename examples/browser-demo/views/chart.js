// Lines over a number, drawn by uPlot in the page's colours. Everything that a chart shows stands beside it in words or
// in a table, so to assistive technology it is one image.

import uPlot from "../vendor/uplot.js";

const HEIGHT = 240;

export class Chart {
  #host;
  #describe;
  #plot = null;
  #shown = null;

  /** Into `host`; `describe` gives uPlot's options for the series of what is shown. */
  constructor(host, describe) {
    this.#host = host;
    this.#describe = describe;
    new ResizeObserver(() => this.#resize()).observe(host);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
  }

  /** Shows columns of numbers, the first one being x. What `key` tells apart is drawn anew, the rest updated. */
  show(columns, key = "") {
    const isNew = this.#shown?.key !== key;
    this.#shown = { columns, key };
    if (isNew || !this.#plot) this.#draw();
    else this.#plot.setData(columns);
  }

  /** Shows or hides a series, the first one being 1. */
  toggle(series, isShown) {
    this.#plot?.setSeries(series, { show: isShown });
  }

  /** Draws what is shown again. */
  redraw() {
    this.#plot?.redraw(false);
  }

  /** Whether a series is drawn. */
  isDrawn(series) {
    return this.#plot?.series[series]?.show === true;
  }

  #draw() {
    if (!this.#shown) return;
    this.#plot?.destroy();
    const options = { width: this.#width(), height: HEIGHT, legend: { show: false }, ...this.#describe() };
    this.#plot = new uPlot(options, this.#shown.columns, this.#host);
  }

  #resize() {
    if (this.#plot && this.#plot.width !== this.#width()) {
      this.#plot.setSize({ width: this.#width(), height: HEIGHT });
    }
  }

  #width() {
    return Math.max(200, Math.floor(this.#host.clientWidth));
  }
}

/** A colour of the style sheet. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Axes in the page's colours; y in percent. */
export function axes(label) {
  const common = {
    stroke: colour("muted"),
    grid: { stroke: colour("line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
    labelFont: "12px system-ui, sans-serif",
  };
  return [
    { ...common, label, labelSize: 18, size: 28, space: 60 },
    { ...common, size: 44, values: (_, values) => values.map((value) => `${Math.round(100 * value)} %`) },
  ];
}
