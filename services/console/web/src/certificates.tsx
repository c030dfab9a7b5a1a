// The requests for serving certificates: pending and denied ones first.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { RequestRow, RequestState } from "./model";
import { Age, Chip, Command, Empty, RequestBadge } from "./parts";
import { nodeHref, route, setQuery } from "./router";
import { hasData, overview, requests, revision } from "./store";
import { type Column, Table } from "./table";

const STATES: RequestState[] = ["denied", "failed", "pending", "approved", "issued"];
const RANK = new Map(STATES.map((state, index) => [state, index]));

const COLUMNS: Column<RequestRow>[] = [
  {
    key: "node",
    title: "Node",
    width: "minmax(140px, 1fr)",
    narrow: true,
    compare: (a, b) => a.node.localeCompare(b.node, "en", { numeric: true }),
    cell: (row) => (
      <a class="name" href={nodeHref(row.node)}>
        {row.node}
      </a>
    ),
  },
  {
    key: "state",
    title: "State",
    width: "120px",
    narrow: true,
    compare: (a, b) => RANK.get(a.state)! - RANK.get(b.state)!,
    cell: (row) => <RequestBadge state={row.state} />,
  },
  {
    key: "why",
    title: "Checks, as csr reports them",
    width: "minmax(220px, 3fr)",
    narrow: true,
    cell: (row) => (
      <span class="clamp" title={row.reason}>
        {row.outcome && row.outcome !== row.state && <b>{row.outcome}. </b>}
        {row.reason || (row.state === "pending" && (row.fault ? `The machine attests nothing: ${row.fault}` : "csr has not decided yet"))}
      </span>
    ),
  },
  { key: "age", title: "Age", width: "72px", compare: (a, b) => b.created - a.created, cell: (row) => <Age since={row.created} /> },
  {
    key: "took",
    title: "Decided",
    width: "90px",
    cell: (row) => (row.decided_at && row.state !== "pending" ? <span title={format.time(row.decided_at)}>{format.time(row.decided_at)}</span> : ""),
  },
  { key: "request", title: "Request", width: "minmax(120px, 1fr)", cell: (row) => <span title={row.name}>{row.name}</span> },
];

export function Certificates() {
  const query = route.value.query;
  const state = query.get("state") ?? "";
  const search = query.get("q") ?? "";
  const counts = overview.value.requests;
  const rows = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    return [...requests.values()]
      .filter((row) => (!state || row.state === state) && words.every((word) => `${row.name}\n${row.node}\n${row.reason ?? ""}`.toLowerCase().includes(word)))
      .sort((a, b) => RANK.get(a.state)! - RANK.get(b.state)! || b.created - a.created || (a.name < b.name ? -1 : 1));
  }, [revision.value, state, search]);
  const first = rows.find((row) => row.state === "denied" || row.state === "pending");
  return (
    <div class="view fill">
      <h1>Certificates</h1>
      <div class="toolbar">
        <input
          type="search"
          placeholder="Search names and reasons"
          aria-label="Search requests"
          value={search}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <div class="chips" role="group" aria-label="Filter by state">
          <Chip active={!state} onClick={() => setQuery({ state: "" })}>
            All
          </Chip>
          {STATES.map((each) => (
            <Chip active={state === each} onClick={() => setQuery({ state: state === each ? "" : each })}>
              {each[0]!.toUpperCase() + each.slice(1)} <b>{format.count(counts[each] ?? 0)}</b>
            </Chip>
          ))}
        </div>
      </div>
      <p class="summary">
        {first && (
          <>
            Every check of a request: <Command text={`talos-ccm explain csr ${quote(first.name)}`} />
          </>
        )}
      </p>
      <Table
        label="Requests for certificates"
        rows={rows}
        columns={COLUMNS}
        keyOf={(row) => row.name}
        filter={`${state} ${search}`}
        sort={query.get("sort") ?? ""}
        onSort={(sort) => setQuery({ sort })}
        tone={(row) => (row.state === "denied" || row.state === "failed" ? "stuck" : "")}
        empty={
          <Empty title={hasData.value ? (state || search ? "No request matches" : "No request for a certificate") : "Waiting for the console"}>
            {!state && !search && "Kubernetes deletes decided requests after an hour."}
          </Empty>
        }
      />
    </div>
  );
}

/** For a shell: the requester chooses the name. */
function quote(name: string): string {
  return /^[\w.@%+=:,/-]+$/.test(name) ? name : `'${name.replaceAll("'", `'"'"'`)}'`;
}
