// The hops of a Node, from its registration to its certificate, on a common time axis.
import * as format from "./format";
import type { NodeDetail } from "../generated/state";

interface Hop {
  key: string;
  who: string;
  what: string;
  after?: string; // the hop that it follows
  isOptional?: boolean; // shown only when it has happened
  next?: string; // the hop that proves that it has happened
}

const HOPS: Hop[] = [
  { key: "registered", who: "kubelet", what: "registers the Node" },
  { key: "observed", who: "watcher", what: "publishes it", after: "registered", next: "enriched" },
  { key: "queried", who: "metadata", what: "queries its machine", after: "observed", next: "enriched" },
  { key: "enriched", who: "metadata", what: "publishes the facts", after: "queried", next: "initialized" },
  { key: "initialized", who: "labeler", what: "has written the Node", after: "enriched" },
  { key: "untainted", who: "watcher", what: "sees no taint", after: "initialized" },
  { key: "allocated", who: "ipam", what: "allocates pod CIDRs", after: "enriched", isOptional: true },
  { key: "ready", who: "kubelet", what: "is ready", after: "registered", isOptional: true },
  { key: "requested", who: "kubelet", what: "requests a certificate", after: "registered", isOptional: true },
  { key: "approved", who: "csr", what: "approves the request", after: "requested", isOptional: true },
  { key: "issued", who: "signer", what: "issues the certificate", after: "approved", isOptional: true },
];

export function Hops({ detail }: { detail: NodeDetail }) {
  const { hops, is_initialized: isInitialized } = detail;
  const start = hops.registered ?? 0;
  const seconds = Math.max(...Object.values(hops), start + 0.001) - start;
  const endOf = (key?: string): number =>
    key ? hops[key] || endOf(HOPS.find((hop) => hop.key === key)?.after) : start;
  return (
    <ol class="waterfall">
      {HOPS.map(({ key, who, what, after, next = "", isOptional }) => {
        const at = hops[key];
        if (!at && isOptional) return null;
        const from = Math.min(endOf(after), at ?? start);
        const lapse = at && (after ? `+${format.duration(at - from)}` : format.time(at));
        const left = Math.min(99, ((from - start) / seconds) * 100);
        const width = at && Math.min(100 - left, ((at - from) / seconds) * 100);
        return (
          <li key={key} class="hop" title={at ? format.time(at) : undefined}>
            <span class="text-muted">
              <b class="font-semibold text-plain">{who}</b> {what}
            </span>
            <span class={`track ${at ? "rounded-full bg-raised" : "h-0 border-t-2 border-dotted"}`}>
              {at && <span class="span" style={{ left: `${left}%`, width: `${width}%` }} />}
            </span>
            <span class="text-right">{lapse || (isInitialized || hops[next] ? "not seen" : "not yet")}</span>
          </li>
        );
      })}
      <li class="pt-3 text-xs text-muted">
        Kubernetes stores the registration as a whole second. "Not seen": the console started later.
      </li>
    </ol>
  );
}
