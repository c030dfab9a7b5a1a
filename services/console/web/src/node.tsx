// One Node: what is wrong with it, its hops, every decision, and what has changed.
import { useEffect, useState } from "preact/hooks";
import * as format from "./format";
import { Hops } from "./hops";
import type { Change, Decided, NodeDetail } from "../generated/state";
import { Age, Badge, Card, Command, Empty, Facts, healthOf, Item, StateBadge, View, WithCommands } from "./parts";
import { nodes, settings } from "./store";

const REFRESH_MS = 1_000;

export function NodeView({ name }: { name: string }) {
  const [detail, problem] = useDetail(name);
  const row = nodes.get(name) ?? detail?.row;
  return (
    <View>
      <a href="#/nodes">← All Nodes</a>
      <div class="-mt-4 flex flex-wrap items-center gap-3">
        <h1>{name}</h1>
        {row && <StateBadge state={row.state} what={row.what} />}
        {row && !nodes.has(name) && <Badge health="off">deleted</Badge>}
      </div>
      {row && (
        <Facts
          of={[
            ["Platform", row.platform],
            ["Zone", row.zone || row.region],
            ["Type", row.type],
            ["Role", row.role || "worker"],
            ["Age", <Age since={row.created} />],
            ["Addresses", row.addresses?.join(", ")],
            ["Pod CIDRs", row.cidrs?.join(", ")],
            ["Instance", row.instance && `${row.instance}, ${row.instance_why}`],
            ["Route", row.route],
            ["Rules", row.rules?.join(", ")],
            ["Initialized after", row.took && format.duration(row.took)],
          ]}
        />
      )}
      {detail && <Details detail={detail} name={name} />}
      {!detail && (
        <Empty title={problem || "Loading"}>
          {problem && !row && "Check the name, or wait until its kubelet registers it."}
        </Empty>
      )}
    </View>
  );
}

/** Fetches the details, and again when the row of the Node changes, at most once a second. */
function useDetail(name: string): [NodeDetail | undefined, string] {
  const [detail, setDetail] = useState<NodeDetail>();
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const closing = new AbortController();
    let row: unknown = null;
    const refresh = async () => {
      const current = nodes.get(name);
      if (row === current && row !== null) return;
      try {
        const answer = await fetch(`api/nodes/${encodeURIComponent(name)}`, { signal: closing.signal });
        const problems: Record<number, string> = { 200: "", 404: "There is no Node of this name." };
        setProblem(problems[answer.status] ?? `The console answers ${answer.status}.`);
        if (!answer.ok) return;
        setDetail((await answer.json()) as NodeDetail);
        row = current;
      } catch {
        if (!closing.signal.aborted) setProblem("The console does not answer.");
      }
    };
    void refresh();
    const timer = setInterval(refresh, REFRESH_MS);
    return () => {
      closing.abort();
      clearInterval(timer);
    };
  }, [name]);
  return [detail, problem];
}

function Details({ detail, name }: { detail: NodeDetail; name: string }) {
  const { namespace, traces } = settings.value;
  const option = namespace === "kube-system" ? "" : ` --namespace ${namespace}`;
  const trace = traces && (
    <a href={traces.replaceAll("{node}", encodeURIComponent(name))} target="_blank" rel="noreferrer noopener">
      Traces ↗
    </a>
  );
  return (
    <>
      {detail.findings.map((finding) => (
        <Card key={finding.fault} class="finding border-bad" title={<Badge health="bad">{finding.what}</Badge>}>
          <p>{finding.cause}</p>
          <WithCommands text={finding.fix} />
        </Card>
      ))}
      <div class="columns">
        <div class="stack">
          <Card title="Hops" note={trace}>
            <Hops detail={detail} />
          </Card>
          <Card title="Before and after" note={detail.changes && "since its kubelet registered it"}>
            <Changes changes={detail.changes} name={name} />
          </Card>
        </div>
        <div class="stack">
          <Card title="Decisions">
            {detail.decisions.length === 0 && <Empty title="No decision yet" />}
            <ol class="entries">
              {detail.decisions.map((each) => (
                <DecisionItem key={each.service} decision={each} />
              ))}
            </ol>
          </Card>
          <Events detail={detail} name={name} />
          <Card title="Machine">
            {!detail.machine && <Empty title="metadata has published no facts of it" />}
            <p class="text-bad wrap-anywhere">{detail.machine_problem}</p>
            <Facts of={Object.entries(detail.machine ?? {}).map(describe)} />
          </Card>
          <Card title="Certificates">
            {detail.requests.length === 0 && <Empty title="No request for a certificate in the stream" />}
            <ul>
              {detail.requests.map(({ name, state, reason, created }) => (
                <Item key={name} health={healthOf(state)} name={<code>{name}</code>} state={state}>
                  {reason} <Age since={created} /> ago
                </Item>
              ))}
            </ul>
          </Card>
        </div>
      </div>
      <Card title="Only the command line knows" note="not in the stream">
        Its machine at this moment, its Pods and the Lease: <Command text={`talos-ccm explain node ${name}${option}`} />
      </Card>
    </>
  );
}

const describe = ([term, value]: [string, unknown]): [string, string] => [
  format.capitalize(term.replaceAll("_", " ")),
  typeof value === "string" ? value : JSON.stringify(value),
];

function Events({ detail, name }: { detail: NodeDetail; name: string }) {
  const since = format.time(detail.recorded_since).slice(0, 5);
  return (
    <Card title="Events" note={`recorded by our services since ${since}`}>
      {detail.recorded.length === 0 && <Empty title="No Event since then" />}
      <ul class="events">
        {detail.recorded.map(({ type, component, reason, message, at }) => (
          <Item
            key={component + reason + message}
            health={type === "Warning" ? "warning" : "ok"}
            name={<b>{reason}</b>}
            state={`${component}, ${format.timeOf(at)}`}
          >
            {message}
          </Item>
        ))}
      </ul>
      <p class="mt-3">
        All, as Kubernetes has them:{" "}
        <Command text={`kubectl get events --field-selector involvedObject.name=${name}`} />
      </p>
    </Card>
  );
}

function DecisionItem({ decision }: { decision: Decided }) {
  return (
    <li>
      <p class="flex items-baseline gap-2.5">
        <b>{decision.service}</b> <code class="flex-1">{decision.outcome}</code>
        <time class="text-xs text-muted" title={decision.decided_at}>
          {format.timeOf(decision.decided_at)}
        </time>
      </p>
      <p>{decision.reason}</p>
      <ul class="font-mono text-xs text-muted">
        {decision.changes?.map((line) => (
          <li key={line}>{line}</li>
        ))}
      </ul>
    </li>
  );
}

const SIGNS = {
  removed: { sign: "−", color: "text-bad" },
  added: { sign: "+", color: "text-ok" },
};

function Changes({ changes, name }: { changes: Change[] | null; name: string }) {
  if (!changes) {
    return (
      <Empty title="Not seen before its initialization">
        The console started later. <Command text={`kubectl get node ${name} -o yaml`} />
      </Empty>
    );
  }
  if (!changes.length) return <Empty title="Nothing has changed yet" />;
  return (
    <ul class="diff font-mono text-xs leading-6 wrap-anywhere">
      {changes.map(({ kind, field, value }) => (
        <li key={kind + field} class="flex gap-2.5">
          <span class={SIGNS[kind].color} role="img" aria-label={kind}>
            {SIGNS[kind].sign}
          </span>
          <span class="min-w-0">
            {field} {value && <b class="font-semibold">= {value}</b>}
          </span>
        </li>
      ))}
    </ul>
  );
}
