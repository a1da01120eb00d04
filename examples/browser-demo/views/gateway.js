// The gateway's card: connecting, the streamed answer, and what was measured, beside what was expected.

import { byId, element, grouped, percent } from "../dom.js";
import { Gateway } from "../gateway.js";
import * as policy from "../policy.js";

/** Requests of which the figures are shown. */
const SHOWN = 8;

export class GatewayView {
  #gateway = null;
  #models = [];
  #rows = [];

  constructor() {
    byId("gateway").value = policy.gateway ?? "";
    byId("gateway-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#choose(byId("gateway").value.trim());
    });
  }

  /** The gateway, once it answers. */
  get connected() {
    return this.#gateway;
  }

  /** Connects to the gateway of the page's address, if there is one. */
  async connect() {
    if (!policy.gateway) return;
    byId("gateway-note").textContent = "connecting…";
    const gateway = new Gateway(policy.gateway);
    try {
      this.#models = await gateway.models();
      this.#gateway = gateway;
      byId("gateway-note").textContent = `connected, ${this.#models.join(", ") || "no model named"}`;
      this.#problem(null);
    } catch (error) {
      byId("gateway-note").textContent = "not connected";
      this.#problem(error.message);
    }
  }

  /** Sends a body and shows the answer as it comes. Failures are shown, not thrown. */
  async send({ body, question, report }) {
    const answer = byId("answer");
    answer.hidden = false;
    answer.textContent = "";
    this.#problem(null);
    try {
      const model = byId("model").value.trim() || this.#models[0] || "demo";
      const maxTokens = Number(byId("max-tokens").value);
      const measured = await this.#gateway.chat(body, { model, maxTokens }, (text) => answer.append(text));
      this.#rows.unshift({ question, report, measured });
      this.#rows.length = Math.min(this.#rows.length, SHOWN);
      this.#table();
    } catch (error) {
      this.#problem(error.message);
    }
  }

  /** Another gateway needs another policy, and so another page. */
  #choose(address) {
    const origin = policy.originOf(address);
    if (address && !origin) {
      this.#problem(`“${address}” is no address of the form http://host:port`);
      return;
    }
    if (origin && origin === policy.gateway) {
      this.connect();
      return;
    }
    const url = new URL(location.href);
    if (origin) url.searchParams.set("gateway", origin);
    else url.searchParams.delete("gateway");
    location.assign(url);
  }

  #problem(words) {
    byId("gateway-problem").hidden = !words;
    byId("gateway-problem").textContent = words ?? "";
  }

  #table() {
    const head = ["question", "cached", "of prompt", "first token"].map((name) => element("th", { scope: "col" }, name));
    const rows = this.#rows.map(({ question, measured }) => {
      const { cachedTokens, promptTokens, firstTokenMs } = measured;
      const share = cachedTokens !== null && promptTokens ? percent(cachedTokens / promptTokens, 0) : "–";
      return element(
        "tr",
        { title: measured.foreword ?? "" },
        element("td", {}, question),
        element("td", {}, cachedTokens === null ? "–" : grouped(cachedTokens)),
        element("td", {}, share),
        element("td", {}, firstTokenMs === null ? "–" : `${firstTokenMs.toFixed(0)} ms`),
      );
    });
    byId("measured").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
  }
}
