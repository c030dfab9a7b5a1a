// All Nodes, stuck ones first.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import { ageColumn, ListView, nodeColumn, reasonColumn, stateColumn } from "./list_view";
import type { NodeRow, NodeState } from "../generated/state";
import { Age, Badge, NodeLink, Reason, StateBadge } from "./parts";
import { nodeHref } from "./router";
import { nodes, overview, revision } from "./store";
import { type Column, WIDE } from "./table";

const LABELS: Record<NodeState, string> = {
  stuck: "Stuck",
  joining: "Joining",
  ready: "Ready",
  foreign: "Not managed",
};
const RANK: Record<NodeState, number> = { stuck: 0, joining: 1, foreign: 2, ready: 3 };
const INSTANCE_HEALTH = { exists: "ok", off: "warning", gone: "bad", unknown: "off" } as const;

/** Stuck Nodes first, then the newest. */
export function compareByUrgency(a: NodeRow, b: NodeRow): number {
  return RANK[a.state] - RANK[b.state] || b.created - a.created || (a.name < b.name ? -1 : 1);
}

const COLUMNS: Column<NodeRow>[] = [
  {
    ...nodeColumn,
    by: (row) => row.name,
    cell: (row) => (
      <>
        <NodeLink name={row.name} /> <small>{row.role}</small>
      </>
    ),
  },
  { ...stateColumn, by: (row) => RANK[row.state], cell: (row) => <StateBadge state={row.state} /> },
  { ...reasonColumn("Last decision, and why"), cell: (row) => <Reason what={summarize(row)} why={row.why} /> },
  { ...ageColumn, by: (row) => -row.created, cell: (row) => <Age since={row.created} /> },
  {
    key: "took",
    title: "Took",
    width: "68px",
    from: WIDE,
    by: (row) => row.took ?? Infinity,
    cell: (row) => row.took && format.duration(row.took),
  },
  { key: "platform", title: "Platform", width: "minmax(74px, .6fr)", by: (row) => row.platform },
  { key: "zone", title: "Zone", width: "minmax(84px, .7fr)", by: (row) => row.zone || row.region },
  {
    key: "address",
    title: "Address",
    width: "minmax(110px, .9fr)",
    by: (row) => row.addresses?.[0],
    cell: (row) => <First of={row.addresses} />,
  },
  {
    key: "cidrs",
    title: "Pod CIDR",
    width: "minmax(110px, .8fr)",
    from: WIDE,
    isOptional: true,
    by: (row) => row.cidrs?.[0],
    cell: (row) => <First of={row.cidrs} />,
  },
  {
    key: "certificate",
    title: "Certificate",
    width: "104px",
    by: (row) => row.certificate,
    cell: (row) => row.certificate && <StateBadge state={row.certificate} />,
  },
  {
    key: "instance",
    title: "Instance",
    width: "96px",
    isOptional: true,
    by: (row) => row.instance,
    cell: (row) => row.instance && <Badge health={INSTANCE_HEALTH[row.instance]}>{row.instance}</Badge>,
  },
];

export function Nodes() {
  const rows = useMemo(() => [...nodes.values()].sort(compareByUrgency), [revision.value]);
  return (
    <ListView
      title="Nodes"
      one="Node"
      rows={rows}
      columns={COLUMNS}
      labels={LABELS}
      counts={overview.value.states}
      searched="Search names, reasons, zones, addresses"
      textOf={textOf}
      href={(row) => nodeHref(row.name)}
      hint="A Node appears here when its kubelet registers it."
    />
  );
}

function First({ of = [] }: { of?: string[] }) {
  return (
    <span title={of.join("\n")}>
      {of[0]} {of.length > 1 && <small>+{of.length - 1}</small>}
    </span>
  );
}

function summarize(row: NodeRow): string {
  if (row.what) return format.capitalize(row.what);
  if (row.step) return `Waits for ${row.step}`;
  return row.decided_by ? `${row.decided_by}: ${row.outcome}` : "";
}

function textOf(row: NodeRow): string {
  const { name, why, platform, zone, region, type, role, what, instance, addresses = [], cidrs = [], rules = [] } = row;
  return [name, why, platform, zone, region, type, role, what, instance, ...addresses, ...cidrs, ...rules].join("\n");
}
