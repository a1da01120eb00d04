// Which addresses this page may speak to: its own files, and one gateway, if the page's address names one.
//
// A policy in a <meta> element is fixed when it is read, but the gateway is the user's choice. So the static policy in
// index.html says everything but `connect-src`, and this module, the first of all to run, adds a second policy with the
// one origin in `?gateway=`. Policies only ever narrow each other, and nothing takes one back: choosing another gateway
// means loading the page anew.

/** The gateway's origin, or `null`. */
export const gateway = originOf(new URLSearchParams(location.search).get("gateway"));

const meta = document.createElement("meta");
meta.httpEquiv = "Content-Security-Policy";
meta.content = `connect-src 'self'${gateway ? ` ${gateway}` : ""}`;
document.head.append(meta);

/** The origin of an address that HTTP can reach; `null` for anything else. */
export function originOf(address) {
  if (!address || !URL.canParse(address)) return null;
  const { protocol, origin } = new URL(address);
  return ["http:", "https:"].includes(protocol) ? origin : null;
}
