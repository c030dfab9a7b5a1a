// The requests for serving certificates: denied and pending ones first.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import { ageColumn, ListView, nodeColumn, reasonColumn, stateColumn } from "./list_view";
import type { RequestRow, RequestState } from "../generated/state";
import { Age, NodeLink, Reason, StateBadge } from "./parts";
import { overview, requests, revision } from "./store";
import type { Column } from "./table";

const LABELS: Record<RequestState, string> = {
  denied: "Denied",
  failed: "Failed",
  pending: "Pending",
  approved: "Approved",
  issued: "Issued",
};
const rankOf = (row: RequestRow) => Object.keys(LABELS).indexOf(row.state);

const COLUMNS: Column<RequestRow>[] = [
  { ...nodeColumn, by: (row) => row.node, cell: (row) => <NodeLink name={row.node} /> },
  { ...stateColumn, by: rankOf, cell: (row) => <StateBadge state={row.state} /> },
  {
    ...reasonColumn("Checks, as csr reports them"),
    cell: (row) => <Reason what={row.outcome === row.state ? "" : row.outcome} why={explain(row)} />,
  },
  { ...ageColumn, by: (row) => -row.created, cell: (row) => <Age since={row.created} /> },
  {
    key: "decided",
    title: "Decided",
    width: "90px",
    by: (row) => row.decided_at,
    cell: (row) => (row.decided_at && row.state !== "pending" ? format.time(row.decided_at) : ""),
  },
  { key: "request", title: "Request", width: "minmax(120px, 1fr)", by: (row) => row.name },
];

export function Certificates() {
  const rows = useMemo(
    () => [...requests.values()].sort((a, b) => rankOf(a) - rankOf(b) || b.created - a.created),
    [revision.value],
  );
  return (
    <ListView
      title="Certificates"
      one="request"
      rows={rows}
      columns={COLUMNS}
      labels={LABELS}
      counts={overview.value.requests}
      searched="Search names and reasons"
      textOf={(row) => [row.name, row.node, row.reason].join("\n")}
      hint="Kubernetes deletes decided requests after an hour."
    >
      <p>Every check of a request: talos-ccm explain csr NAME.</p>
    </ListView>
  );
}

function explain(row: RequestRow): string {
  if (row.reason || row.state !== "pending") return row.reason ?? "";
  return row.fault ? `The machine attests nothing: ${row.fault}` : "csr has not decided yet";
}
