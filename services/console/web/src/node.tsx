// One Node: its hops, what is wrong with it, every decision, and what has changed.
import { useEffect, useState } from "preact/hooks";
import * as format from "./format";
import type { Decision, KubeNode, NodeDetail } from "./model";
import { Age, Badge, Card, Command, Empty, RequestBadge, StateBadge, WithCommands } from "./parts";
import { nodes, settings } from "./store";

// key, who, what, and the hop that it follows
const HOPS: [string, string, string, string][] = [
  ["registered", "kubelet", "registers the Node", ""],
  ["observed", "watcher", "publishes it", "registered"],
  ["queried", "metadata", "queries its machine", "observed"],
  ["enriched", "metadata", "publishes the facts", "queried"],
  ["initialized", "labeler", "has written the Node", "enriched"],
  ["untainted", "watcher", "sees no taint", "initialized"],
  ["allocated", "ipam", "allocates pod CIDRs", "enriched"],
  ["ready", "kubelet", "is ready", "registered"],
  ["requested", "kubelet", "requests a certificate", "registered"],
  ["approved", "csr", "approves the request", "requested"],
  ["issued", "signer", "issues the certificate", "approved"],
];
const NEXT: Record<string, string> = { observed: "enriched", queried: "enriched", enriched: "initialized" };
const UNINITIALIZED = "node.cloudprovider.kubernetes.io/uninitialized";
const OPTIONAL = new Set(["allocated", "ready", "requested", "approved", "issued"]);
const REFRESH_MS = 1_000;

export function NodeView({ name }: { name: string }) {
  const [detail, problem] = useDetail(name);
  const row = nodes.get(name) ?? detail?.row;
  if (!row) {
    return (
      <div class="view">
        <BackLink />
        <h1>{name}</h1>
        <Empty title={problem || "Loading"}>{problem && "Check the name, or wait until its kubelet registers it."}</Empty>
      </div>
    );
  }
  return (
    <div class="view">
      <BackLink />
      <div class="title">
        <h1>{name}</h1>
        <StateBadge state={row.state} what={row.what} />
        {!nodes.has(name) && <Badge tone="off">deleted</Badge>}
      </div>
      <dl class="facts">
        <Fact term="Platform">{row.platform}</Fact>
        <Fact term="Zone">{row.zone || row.region}</Fact>
        <Fact term="Type">{row.type}</Fact>
        <Fact term="Role">{row.role || "worker"}</Fact>
        <Fact term="Age">
          <Age since={row.created} />
        </Fact>
        <Fact term="Addresses">{row.addresses?.join(", ")}</Fact>
        <Fact term="Pod CIDRs">{row.cidrs?.join(", ")}</Fact>
        <Fact term="Instance">{row.instance && `${row.instance}, ${row.instance_why}`}</Fact>
        <Fact term="Route">{row.route}</Fact>
        <Fact term="Rules">{row.rules?.join(", ")}</Fact>
        <Fact term="Initialized after">{row.took ? format.duration(row.took) : ""}</Fact>
      </dl>
      {detail && <Details detail={detail} name={name} />}
      {!detail && problem && <Empty title={problem} />}
    </div>
  );
}

function BackLink() {
  return (
    <a class="back" href="#/nodes">
      ← All Nodes
    </a>
  );
}

function Fact({ term, children }: { term: string; children?: preact.ComponentChildren }) {
  if (!children) return null;
  return (
    <div>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Fetches the details, and again when the row of the Node changes, at most once a second. */
function useDetail(name: string): [NodeDetail | undefined, string] {
  const [detail, setDetail] = useState<NodeDetail>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let row: unknown = null;
    let isOpen = true;
    const refresh = async () => {
      const current = nodes.get(name);
      if (!isOpen || (row === current && row !== null)) return;
      try {
        const answer = await fetch(`api/nodes/${encodeURIComponent(name)}`);
        if (!isOpen) return;
        if (answer.ok) {
          setDetail((await answer.json()) as NodeDetail);
          setProblem("");
          row = current;
        } else {
          setProblem(answer.status === 404 ? "There is no Node of this name." : `The console answers ${answer.status}.`);
        }
      } catch {
        if (isOpen) setProblem("The console does not answer.");
      }
    };
    void refresh();
    const timer = setInterval(refresh, REFRESH_MS);
    return () => {
      isOpen = false;
      clearInterval(timer);
    };
  }, [name]);
  return [detail?.row.name === name ? detail : undefined, problem];
}

function Details({ detail, name }: { detail: NodeDetail; name: string }) {
  const { namespace, traces } = settings.value;
  const option = namespace === "kube-system" ? "" : ` --namespace ${namespace}`;
  return (
    <>
      {detail.findings.map((finding) => (
        <section class="finding" key={finding.fault}>
          <h2>
            <Badge tone="bad">{finding.what}</Badge>
          </h2>
          <p>{finding.cause}</p>
          <WithCommands text={finding.fix} />
        </section>
      ))}
      <div class="columns">
        <Card title="Hops" note={traces && <TraceLink template={traces} name={name} />}>
          <Waterfall hops={detail.hops} isInitialized={!detail.after?.spec?.taints?.some((taint) => taint.key === UNINITIALIZED)} />
        </Card>
        <Card title="Decisions">
          {detail.decisions.length === 0 && <Empty title="No decision yet" />}
          <ol class="decisions">
            {detail.decisions.map((each) => (
              <DecisionItem decision={each} key={each.service} />
            ))}
          </ol>
        </Card>
      </div>
      <div class="columns">
        <Card title="Before and after" note={detail.before ? "since its kubelet registered it" : ""}>
          <Changes before={detail.before} after={detail.after} />
        </Card>
        <Card title="Machine">
          <MachineFacts detail={detail} />
        </Card>
      </div>
      <Card title="Certificates">
        {detail.requests.length === 0 && <Empty title="No request for a certificate in the stream" />}
        <ul class="plain">
          {detail.requests.map((each) => (
            <li key={each.name}>
              <RequestBadge state={each.state} /> <code>{each.name}</code> <Age since={each.created} />
              {each.reason && <p class="muted">{each.reason}</p>}
            </li>
          ))}
        </ul>
      </Card>
      <Card title="Only the command line knows" note="not in the stream">
        <ul class="plain">
          <li>
            Its Events, as Kubernetes has them: <Command text={`kubectl get events --field-selector involvedObject.name=${name}`} />
          </li>
          <li>
            Its machine at this moment, its Pods and the Lease: <Command text={`talos-ccm explain node ${name}${option}`} />
          </li>
        </ul>
      </Card>
    </>
  );
}

function TraceLink({ template, name }: { template: string; name: string }) {
  return (
    <a href={template.replaceAll("{node}", encodeURIComponent(name))} target="_blank" rel="noreferrer noopener">
      Traces ↗
    </a>
  );
}

function Waterfall({ hops, isInitialized }: { hops: Record<string, number>; isInitialized: boolean }) {
  const start = hops.registered ?? 0;
  const end = Math.max(...Object.values(hops), start + 0.001);
  const percent = (seconds: number) => (seconds / (end - start)) * 100;
  const beginOf = (after: string): number => (after ? hops[after] || beginOf(HOPS.find(([key]) => key === after)![3]) : start);
  return (
    <ol class="waterfall">
      {HOPS.map(([key, who, what, after]) => {
        const at = hops[key];
        if (!at && OPTIONAL.has(key)) return null;
        const from = Math.min(beginOf(after), at ?? 0);
        const left = Math.min(99, percent(from - start));
        return (
          <li key={key} class={at ? "" : "unseen"} title={at ? format.time(at) : undefined}>
            <span class="hop">
              <b>{who}</b> {what}
            </span>
            <span class="track">
              {at && <span class="span" style={{ left: `${left}%`, width: `${Math.min(100 - left, percent(at - from))}%` }} />}
            </span>
            <span class="lapse">{!at ? (isInitialized || hops[NEXT[key]!] ? "not seen" : "not yet") : after ? `+${format.duration(at - from)}` : format.time(at)}</span>
          </li>
        );
      })}
      <li class="footnote">
        Kubernetes stores the registration as a whole second. "Not seen": the console started later; the stream keeps the last message of
        each subject only.
      </li>
    </ol>
  );
}

function DecisionItem({ decision }: { decision: Decision }) {
  const at = new Date(decision.decided_at).getTime() / 1_000;
  return (
    <li>
      <p class="decision-head">
        <b>{decision.service}</b> <code>{decision.outcome}</code> <time title={decision.decided_at}>{format.time(at)}</time>
      </p>
      <p>{decision.reason}</p>
      {decision.changes && (
        <ul class="changes">
          {decision.changes.map((line) => (
            <li key={line}>{line}</li>
          ))}
        </ul>
      )}
    </li>
  );
}

function flatten(node: KubeNode): Map<string, string> {
  const found = new Map<string, string>();
  for (const [key, value] of Object.entries(node.metadata.labels ?? {})) found.set(`label ${key}`, value);
  for (const [key, value] of Object.entries(node.metadata.annotations ?? {})) found.set(`annotation ${key}`, value);
  for (const taint of node.spec?.taints ?? []) found.set(`taint ${taint.key}`, `${taint.value ?? ""}:${taint.effect}`);
  for (const each of node.status?.addresses ?? []) found.set(`address ${each.type} ${each.address}`, "");
  for (const cidr of node.spec?.podCIDRs ?? []) found.set(`pod CIDR ${cidr}`, "");
  if (node.spec?.providerID) found.set("providerID", node.spec.providerID);
  return found;
}

function Changes({ before, after }: { before: KubeNode | null; after: KubeNode | null }) {
  if (!after) return <Empty title="The stream has no Node object" />;
  if (!before) {
    return (
      <Empty title="Not seen before its initialization">
        The console started later. <Command text={`kubectl get node ${after.metadata.name} -o yaml`} />
      </Empty>
    );
  }
  const [old, now] = [flatten(before), flatten(after)];
  const removed = [...old].filter(([key, value]) => now.get(key) !== value);
  const added = [...now].filter(([key, value]) => old.get(key) !== value);
  if (!removed.length && !added.length) return <Empty title="Nothing has changed yet" />;
  const lines = [...removed.map((entry) => ["−", ...entry]), ...added.map((entry) => ["+", ...entry])];
  return (
    <ul class="diff">
      {lines.map(([sign, key, value]) => (
        <li key={`${sign}${key}`} class={sign === "+" ? "added" : "removed"}>
          <span class="sign" aria-label={sign === "+" ? "added" : "removed"}>
            {sign}
          </span>
          <span>
            {key}
            {value && <b> = {value}</b>}
          </span>
        </li>
      ))}
    </ul>
  );
}

function MachineFacts({ detail }: { detail: NodeDetail }) {
  const machine = detail.machine;
  if (!machine) return <Empty title="metadata has published nothing about its machine" />;
  const facts = machine.facts ?? machine.last_known;
  const rows: [string, string][] = Object.entries(facts?.platform ?? {}).map(([key, value]) => [
    key.replaceAll("_", " "),
    typeof value === "object" ? JSON.stringify(value) : String(value),
  ]);
  if (facts?.node_name) rows.push(["nodename", facts.node_name]);
  if (facts?.node_ip) rows.push(["answered at", facts.node_ip]);
  for (const each of facts?.addresses ?? []) rows.push([each.link, each.address]);
  return (
    <>
      {machine.fault && (
        <p class="problem">
          {machine.fault.step}: {machine.fault.message}
          {machine.attempt ? ` (attempt ${machine.attempt})` : ""}
        </p>
      )}
      <dl class="pairs">
        {rows.map(([key, value]) => (
          <div key={`${key}${value}`}>
            <dt>{key}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </>
  );
}
