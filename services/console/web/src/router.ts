// The view and its filter are in the fragment of the address: #/nodes?state=stuck&q=web.
import { signal } from "@preact/signals";

export const route = signal(parse(location.hash));

addEventListener("hashchange", () => {
  const before = route.value;
  route.value = parse(location.hash);
  if (before.view !== route.value.view || before.name !== route.value.name) scrollTo(0, 0);
});

function parse(hash: string) {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...rest] = path.split("/");
  let name = rest.join("/");
  try {
    name = decodeURIComponent(name);
  } catch {
    // an address that somebody has typed
  }
  return { view: view || "overview", name, query: new URLSearchParams(query) };
}

export function nodeHref(name: string): string {
  return `#/node/${encodeURIComponent(name)}`;
}

/** Changes the filter in the address without an entry in the browser's history. */
export function setQuery(changes: Record<string, string>): void {
  const { view, query } = route.value;
  const next = new URLSearchParams(query);
  for (const [key, value] of Object.entries(changes)) {
    if (value) next.set(key, value);
    else next.delete(key);
  }
  const text = next.toString();
  window.history.replaceState(null, "", `#/${view}${text ? `?${text}` : ""}`);
  route.value = { ...route.value, query: next };
}
