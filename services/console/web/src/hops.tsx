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
      {HOPS.map((hop) => {
        const at = hops[hop.key];
        if (!at) {
          const hasHappened = isInitialized || (hop.next && hops[hop.next]);
          return hop.isOptional ? null : <Absent key={hop.key} hop={hop} text={hasHappened ? "not seen" : "not yet"} />;
        }
        const from = Math.min(endOf(hop.after), at);
        const left = Math.min(99, ((from - start) / seconds) * 100);
        const width = Math.min(100 - left, ((at - from) / seconds) * 100);
        return (
          <li key={hop.key} class="hop" title={format.time(at)}>
            <Name hop={hop} />
            <span class="track rounded-full bg-raised">
              <span
                class="absolute inset-y-0 min-w-1 rounded-full bg-accent"
                style={{ left: `${left}%`, width: `${width}%` }}
              />
            </span>
            <span class="text-right text-xs">{hop.after ? `+${format.duration(at - from)}` : format.time(at)}</span>
          </li>
        );
      })}
      <li class="pt-3 text-xs text-muted">
        Kubernetes stores the registration as a whole second. "Not seen": the console started later; the stream keeps
        the last message of each subject only.
      </li>
    </ol>
  );
}

function Name({ hop }: { hop: Hop }) {
  return (
    <span class="text-xs text-muted">
      <b class="font-semibold text-plain">{hop.who}</b> {hop.what}
    </span>
  );
}

function Absent({ hop, text }: { hop: Hop; text: string }) {
  return (
    <li class="hop">
      <Name hop={hop} />
      <span class="track h-0 border-t-2 border-dotted" />
      <span class="text-right text-xs text-muted">{text}</span>
    </li>
  );
}
