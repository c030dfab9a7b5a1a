// A view of a table, with a search, a filter by state and a pause, which the address keeps.
import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import * as format from "./format";
import { Empty, View } from "./parts";
import { route, setQuery } from "./router";
import { clock } from "./store";
import { type Row, Table, type TableProps } from "./table";

/** Columns that several tables have, without their content. */
export const nodeColumn = { key: "name", title: "Node", width: "minmax(140px, 1.2fr)", from: 0 };
export const stateColumn = { key: "state", title: "State", width: "104px", from: 0 };
export const ageColumn = { key: "age", title: "Age", width: "60px" };
export const reasonColumn = (title: string) => ({ key: "why", title, width: "minmax(220px, 3.2fr)", from: 0 });

interface Props<T> extends TableProps<T> {
  one: string; // of the rows, such as "Node"
  counts: Partial<Record<string, number>>; // rows by state
  labels: Record<string, string>; // of the states that are a filter
  searched: string; // placeholder of the search
  textOf: (row: T) => string; // what the search reads
  hint: string; // why there may be no row
  children?: ComponentChildren;
}

export function ListView<T extends Row>(props: Props<T>) {
  const { rows: live, one, counts } = props;
  const state = route.value.query.get("state") ?? "";
  const search = route.value.query.get("q") ?? "";
  const [paused, setPaused] = useState<{ rows: T[]; at: number } | null>(null);
  const rows = paused?.rows ?? live;
  const shown = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = (row: T) => {
      const text = props.textOf(row).toLowerCase();
      return (!state || row.state === state) && words.every((word) => text.includes(word));
    };
    return rows.filter(matches);
  }, [rows, state, search]);
  const isFiltered = Boolean(state || search);

  return (
    <View title={props.title} isWide>
      <div class="flex flex-wrap items-center gap-2.5">
        <input
          type="search"
          class="min-w-0 flex-[1_1_16rem] rounded-lg border bg-surface px-3 py-1.5 placeholder:text-muted md:max-w-105"
          placeholder={props.searched}
          aria-label={`Search ${props.title}`}
          value={search}
          onInput={(event) => setQuery({ q: event.currentTarget.value })}
        />
        <button
          class="button md:order-last"
          aria-pressed={paused !== null}
          onClick={() => setPaused(paused ? null : { rows, at: clock.peek() })}
        >
          {paused ? "Resume" : "Pause"}
        </button>
        <div
          class="flex gap-1.5 overflow-x-auto [scrollbar-width:none] max-md:w-full"
          role="group"
          aria-label="Filter by state"
        >
          {Object.entries({ "": "All", ...props.labels }).map(([key, label]) => (
            <button
              key={key}
              class="button chip rounded-full font-normal"
              aria-pressed={state === key}
              onClick={() => setQuery({ state: state === key ? "" : key })}
            >
              {label} {format.count(key ? (counts[key] ?? 0) : live.length)}
            </button>
          ))}
        </div>
      </div>
      <div class="-my-1.5 flex min-h-6 flex-wrap items-center gap-x-4 text-xs text-muted">
        <p class="summary" role="status">
          {paused
            ? `Paused: the table shows ${format.plural(rows.length, one)} of ${format.time(paused.at)}.`
            : `${format.count(shown.length)} of ${format.plural(live.length, one)}`}
        </p>
        {props.children}
      </div>
      <Table
        {...props}
        rows={shown}
        columns={props.columns.filter(({ isOptional, by }) => !isOptional || (by && rows.some(by)))}
      >
        <Empty title={isFiltered ? `No ${one} matches` : `No ${one} yet`}>
          {!isFiltered && props.hint}
          {isFiltered && (
            <button class="button" onClick={() => setQuery({ q: "", state: "" })}>
              Clear search and filter
            </button>
          )}
        </Empty>
      </Table>
    </View>
  );
}
