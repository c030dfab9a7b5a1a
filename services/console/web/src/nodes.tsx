// All Nodes: a table with filter, search and sort, which the address keeps.
import { useMemo, useState } from "preact/hooks";
import * as format from "./format";
import type { NodeRow, NodeState } from "./model";
import { Age, Badge, Chip, Empty, RequestBadge, StateBadge } from "./parts";
import { nodeHref, route, setQuery } from "./router";
import { clock, hasData, nodes, overview, revision } from "./store";
import { type Column, Table } from "./table";

const STATES: NodeState[] = ["stuck", "joining", "ready", "foreign"];
const RANK: Record<NodeState, number> = { stuck: 0, joining: 1, foreign: 2, ready: 3 };
const LABELS: Record<NodeState, string> = { stuck: "Stuck", joining: "Joining", ready: "Ready", foreign: "Not managed" };
const INSTANCE_TONES = { exists: "ok", off: "warning", gone: "bad", unknown: "off" } as const;

const wide = matchMedia("(min-width: 1400px)");

const capitalize = (text: string) => text[0]!.toUpperCase() + text.slice(1);

const byText = (get: (row: NodeRow) => string | undefined) => (a: NodeRow, b: NodeRow) =>
  (get(a) ?? "").localeCompare(get(b) ?? "", "en", { numeric: true });

/** Stuck Nodes first, then the newest. */
export function compareByUrgency(a: NodeRow, b: NodeRow): number {
  return RANK[a.state] - RANK[b.state] || b.created - a.created || (a.name < b.name ? -1 : 1);
}

const COLUMNS: Column<NodeRow>[] = [
  {
    key: "name",
    title: "Node",
    width: "minmax(140px, 1.2fr)",
    narrow: true,
    compare: byText((row) => row.name),
    cell: (row) => (
      <>
        <a class="name" href={nodeHref(row.name)} title={row.name}>
          {row.name}
        </a>
        {row.role && <small>{row.role}</small>}
      </>
    ),
  },
  {
    key: "state",
    title: "State",
    width: "100px",
    narrow: true,
    compare: (a, b) => RANK[a.state] - RANK[b.state],
    cell: (row) => <StateBadge state={row.state} />,
  },
  {
    key: "why",
    title: "Last decision, and why",
    width: "minmax(220px, 3.2fr)",
    narrow: true,
    cell: (row) => (
      <span class="clamp" title={row.why}>
        {row.what && <b>{capitalize(row.what)}. </b>}
        {row.step && !row.what && <b>Waits for {row.step}. </b>}
        {row.decided_by && !row.what && <b>{`${row.decided_by}: ${row.outcome}. `}</b>}
        {row.why}
      </span>
    ),
  },
  { key: "age", title: "Age", width: "60px", compare: (a, b) => b.created - a.created, cell: (row) => <Age since={row.created} /> },
  {
    key: "took",
    title: "Took",
    isWide: true,
    width: "68px",
    compare: (a, b) => (a.took ?? Infinity) - (b.took ?? Infinity),
    cell: (row) => <span title="From its registration, a whole second, to its initialization">{row.took ? format.duration(row.took) : ""}</span>,
  },
  { key: "platform", title: "Platform", width: "minmax(74px, .6fr)", compare: byText((row) => row.platform), cell: (row) => row.platform },
  { key: "zone", title: "Zone", width: "minmax(84px, .7fr)", compare: byText((row) => row.zone), cell: (row) => row.zone || row.region },
  {
    key: "address",
    title: "Address",
    width: "minmax(110px, .9fr)",
    compare: byText((row) => row.addresses?.[0]),
    cell: (row) => <More values={row.addresses} />,
  },
  {
    key: "cidrs",
    title: "Pod CIDR",
    width: "minmax(110px, .8fr)",
    compare: byText((row) => row.cidrs?.[0]),
    cell: (row) => <More values={row.cidrs} />,
  },
  {
    key: "certificate",
    title: "Certificate",
    width: "104px",
    compare: byText((row) => row.certificate),
    cell: (row) => row.certificate && <RequestBadge state={row.certificate} />,
  },
  {
    key: "instance",
    title: "Instance",
    width: "96px",
    compare: byText((row) => row.instance),
    cell: (row) => row.instance && <Badge tone={INSTANCE_TONES[row.instance]}>{row.instance}</Badge>,
  },
];

function More({ values = [] }: { values?: string[] }) {
  return (
    <span title={values.join("\n")}>
      {values[0]}
      {values.length > 1 && <small> +{values.length - 1}</small>}
    </span>
  );
}

function matches(row: NodeRow, words: string[]): boolean {
  const text = [row.name, row.why, row.platform, row.zone, row.region, row.type, row.role, row.what, row.instance, ...(row.addresses ?? []), ...(row.cidrs ?? []), ...(row.rules ?? [])]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

export function Nodes() {
  const query = route.value.query;
  const state = query.get("state") ?? "";
  const search = query.get("q") ?? "";
  const [paused, setPaused] = useState<NodeRow[] | null>(null);
  const live = useMemo(() => [...nodes.values()].sort(compareByUrgency), [revision.value]);
  const all = paused ?? live;
  const shown = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    return all.filter((row) => (!state || row.state === state) && matches(row, words));
  }, [all, state, search]);
  const counts = overview.value.states;
  const hasBlocks = all.some((row) => row.cidrs?.length);
  const hasInstances = all.some((row) => row.instance);
  const columns = useMemo(
    () => COLUMNS.filter(({ key, isWide }) => (key !== "cidrs" || (hasBlocks && (wide.matches || !hasInstances))) && (key !== "instance" || hasInstances) && (!isWide || wide.matches)),
    [hasBlocks, hasInstances, wide.matches],
  );

  return (
    <div class="view fill">
      <h1>Nodes</h1>
      <div class="toolbar">
        <input
          type="search"
          placeholder="Search names, reasons, zones, addresses"
          aria-label="Search Nodes"
          value={search}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <div class="chips" role="group" aria-label="Filter by state">
          <Chip active={!state} onClick={() => setQuery({ state: "" })}>
            All <b>{format.count(nodes.size)}</b>
          </Chip>
          {STATES.map((each) => (
            <Chip active={state === each} onClick={() => setQuery({ state: state === each ? "" : each })}>
              {LABELS[each]} <b>{format.count(counts[each] ?? 0)}</b>
            </Chip>
          ))}
        </div>
        <button type="button" class="button" aria-pressed={paused !== null} onClick={() => setPaused(paused ? null : live)}>
          {paused ? "Resume" : "Pause"}
        </button>
      </div>
      <p class="summary" role="status">
        {paused
          ? `Paused: the table shows ${format.plural(paused.length, "Node")} of ${format.time(clock.peek())}.`
          : `${format.count(shown.length)} of ${format.plural(nodes.size, "Node")}`}
      </p>
      <Table
        label="Nodes"
        rows={shown}
        columns={columns}
        keyOf={(row) => row.name}
        filter={`${state} ${search}`}
        sort={query.get("sort") ?? ""}
        onSort={(sort) => setQuery({ sort })}
        onOpen={(row) => (location.hash = nodeHref(row.name))}
        tone={(row) => row.state}
        empty={<NoRows hasFilter={Boolean(state || search)} />}
      />
    </div>
  );
}

function NoRows({ hasFilter }: { hasFilter: boolean }) {
  if (!hasData.value) return <Empty title="Waiting for the console">The first data arrives within a second.</Empty>;
  if (!hasFilter) return <Empty title="No Node yet">A Node appears here when its kubelet registers it.</Empty>;
  return (
    <Empty title="No Node matches">
      <button type="button" class="button" onClick={() => setQuery({ q: "", state: "" })}>
        Clear search and filter
      </button>
    </Empty>
  );
}
