// A table of thousands of rows, of which only the visible ones are in the document.
import { signal } from "@preact/signals";
import { useVirtualizer } from "@tanstack/react-virtual";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import * as format from "./format";
import type { Health, NodeState, RequestState } from "../generated/state";
import { healthOf } from "./parts";
import { route, setQuery } from "./router";

export interface Column<T> {
  key: string;
  title: string;
  width: string; // of a CSS grid
  by?: (row: T) => string | number | undefined; // what to sort by; without it, the column does not sort
  cell?: (row: T) => ComponentChildren; // by default what it sorts by
  from?: number; // width of the page in pixels from which it is shown; by default not on a phone
  isOptional?: boolean; // shown only when a row has a value
}

export interface Row {
  name: string;
  state: NodeState | RequestState;
}

export interface TableProps<T> {
  title: string;
  rows: T[];
  columns: Column<T>[];
  href?: (row: T) => string; // where a click on a row leads
  children?: ComponentChildren; // instead of rows
}

export const WIDE = 1400;
const PHONE = 768;
const ROW_HEIGHT = 48;
const PHONE_ROW_HEIGHT = 84;
const EDGES: Partial<Record<Health, string>> = {
  bad: "shadow-[inset_3px_0_var(--color-bad)]",
  busy: "shadow-[inset_3px_0_var(--color-accent)]",
};
const pageWidth = signal(innerWidth);

addEventListener("resize", () => (pageWidth.value = innerWidth));

export function Table<T extends Row>(props: TableProps<T>) {
  const { query } = route.value;
  const sort = query.get("sort") ?? ""; // key of a column, with "-" for the opposite order
  const isPhone = pageWidth.value < PHONE;
  const columns = props.columns.filter((column) => pageWidth.value >= (column.from ?? PHONE));
  const grid = {
    gridTemplateColumns: isPhone ? "minmax(0, 1fr) auto" : columns.map((column) => column.width).join(" "),
    columnGap: pageWidth.value < 1280 ? "10px" : "16px",
  };
  const height = isPhone ? PHONE_ROW_HEIGHT : ROW_HEIGHT;
  const scroller = useRef<HTMLDivElement>(null);
  const [isHeld, setHeld] = useState(false);
  const [active, setActive] = useState("");
  const rows = useHeldOrder(useSorted(props.rows, props.columns, sort), isHeld, sort);
  const activeIndex = Math.max(
    0,
    rows.findIndex((row) => row.name === active),
  );
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => height,
    overscan: 8,
  });
  useLayoutEffect(() => virtual.measure(), [height]);
  useLayoutEffect(() => void (scroller.current!.scrollTop = 0), [String(query)]);

  const move = (to: number) => {
    const index = Math.max(0, Math.min(rows.length - 1, to));
    setActive(rows[index]?.name ?? "");
    virtual.scrollToIndex(index);
    requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-index="${index}"]`)?.focus());
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowDown: activeIndex + 1,
      ArrowUp: activeIndex - 1,
      PageDown: activeIndex + 10,
      PageUp: activeIndex - 10,
      Home: 0,
      End: rows.length - 1,
    };
    if (event.key in steps) {
      event.preventDefault();
      move(steps[event.key]!);
    } else if (event.key === "Enter" && (event.target as HTMLElement).role === "row") {
      open(rows[activeIndex]!);
    }
  };
  const open = (row: T) => {
    if (props.href) location.hash = props.href(row);
  };
  const onClick = (event: MouseEvent, row: T) => {
    const isControl = (event.target as HTMLElement).closest("a, button, code");
    if (!isControl && !String(getSelection())) open(row);
  };

  return (
    <div
      class="flex min-h-90 flex-1 flex-col overflow-hidden rounded-xl border bg-surface"
      role="table"
      aria-label={props.title}
      aria-rowcount={rows.length + 1}
    >
      <div class="overflow-hidden border-b bg-raised [scrollbar-gutter:stable] max-md:sr-only" role="rowgroup">
        <div role="row" aria-rowindex={1} class="grid h-10 items-center px-4" style={grid}>
          {columns.map((column) => (
            <HeadCell key={column.key} column={column} sort={sort} />
          ))}
        </div>
      </div>
      <div
        class="table-body flex-1 overflow-auto contain-strict [scrollbar-gutter:stable]"
        role="rowgroup"
        ref={scroller}
        onPointerEnter={() => setHeld(true)}
        onPointerLeave={() => setHeld(false)}
        onFocusCapture={() => setHeld(true)}
        onBlurCapture={() => setHeld(false)}
        onKeyDown={onKeyDown}
      >
        {rows.length === 0 && props.children}
        <div class="relative" role="presentation" style={{ height: `${virtual.getTotalSize()}px` }}>
          {virtual.getVirtualItems().map(({ index, start }) => {
            const row = rows[index]!;
            return (
              <div
                key={row.name}
                role="row"
                class={`row ${EDGES[healthOf(row.state)] ?? ""}`}
                aria-rowindex={index + 2}
                data-index={index}
                tabIndex={index === activeIndex ? 0 : -1}
                style={{ ...grid, height: `${height}px`, transform: `translateY(${start}px)` }}
                onFocus={() => setActive(row.name)}
                onClick={(event) => onClick(event, row)}
              >
                {columns.map((column) => (
                  <div
                    key={column.key}
                    role="cell"
                    class={`at-${column.key} min-w-0 truncate max-md:last:col-span-full`}
                  >
                    {(column.cell ?? column.by)?.(row)}
                  </div>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function HeadCell<T>({ column, sort }: { column: Column<T>; sort: string }) {
  const isSorted = sort.replace("-", "") === column.key;
  const direction = !isSorted ? "none" : sort.startsWith("-") ? "descending" : "ascending";
  const next = { none: column.key, ascending: `-${column.key}`, descending: "" }[direction];
  const arrow = { none: "", ascending: "↑", descending: "↓" }[direction];
  return (
    <div role="columnheader" aria-sort={direction} class="truncate text-xs font-semibold text-muted">
      {column.by ? (
        <button type="button" class="cursor-pointer hover:text-plain" onClick={() => setQuery({ sort: next })}>
          {column.title} <span aria-hidden="true">{arrow}</span>
        </button>
      ) : (
        column.title
      )}
    </div>
  );
}

function useSorted<T>(rows: T[], columns: Column<T>[], sort: string): T[] {
  return useMemo(() => {
    const by = columns.find((column) => column.key === sort.replace("-", ""))?.by;
    if (!by) return rows;
    const sign = sort.startsWith("-") ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(by(a), by(b)));
  }, [rows, sort]);
}

function compare(a: string | number = "", b: string | number = ""): number {
  return typeof a === "number" && typeof b === "number" ? a - b : format.compareText(String(a), String(b));
}

/** No row moves under the pointer or the focus: their order stays, and new rows come at the end. */
function useHeldOrder<T extends Row>(rows: T[], isHeld: boolean, sort: string): T[] {
  const held = useRef({ order: new Map<string, number>(), sort: "" });
  return useMemo(() => {
    const { order, sort: before } = held.current;
    if (isHeld && before === sort && order.size) {
      const place = (row: T) => order.get(row.name) ?? order.size;
      rows = [...rows].sort((a, b) => place(a) - place(b));
    }
    held.current = { order: new Map(rows.map((row, index) => [row.name, index])), sort };
    return rows;
  }, [rows, isHeld, sort]);
}
