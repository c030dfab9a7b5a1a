// A table of thousands of rows, of which only the visible ones are in the document.
import {
  elementScroll,
  observeElementOffset,
  observeElementRect,
  Virtualizer,
  type VirtualizerOptions,
} from "@tanstack/virtual-core";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useMemo, useReducer, useRef, useState } from "preact/hooks";

export interface Column<T> {
  key: string;
  title: string;
  width: string; // of a CSS grid
  compare?: (a: T, b: T) => number; // without it, the column does not sort
  cell: (row: T) => ComponentChildren;
  narrow?: boolean; // also shown on a phone
  isWide?: boolean; // only shown on a wide page
}

interface Props<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  keyOf: (row: T) => string;
  filter: string; // the rows begin at the top when it changes
  sort: string; // key of a column, with "-" for the opposite order; "" = as given
  onSort: (sort: string) => void;
  onOpen?: (row: T) => void;
  tone?: (row: T) => string;
  empty: ComponentChildren;
}

const ROW_HEIGHT = 44;
const PHONE_ROW_HEIGHT = 76;
const phone = matchMedia("(max-width: 720px)");

export function Table<T>(props: Props<T>) {
  const { rows, columns, keyOf } = props;
  const scroller = useRef<HTMLDivElement>(null);
  const [isHeld, setHeld] = useState(false);
  const [active, setActive] = useState("");
  const ordered = useHeldOrder(useSorted(rows, columns, props.sort), keyOf, isHeld, props.sort);
  const height = phone.matches ? PHONE_ROW_HEIGHT : ROW_HEIGHT;
  const virtual = useVirtualizer({
    count: ordered.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => height,
    overscan: 8,
  });
  useLayoutEffect(() => void (scroller.current!.scrollTop = 0), [props.filter, props.sort]);
  const grid = { gridTemplateColumns: columns.map((column) => column.width).join(" ") };
  const activeIndex = Math.max(0, ordered.findIndex((row) => keyOf(row) === active));

  const move = (to: number) => {
    const index = Math.max(0, Math.min(ordered.length - 1, to));
    const row = ordered[index];
    if (!row) return;
    setActive(keyOf(row));
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
      End: ordered.length - 1,
    };
    if (event.key in steps) {
      event.preventDefault();
      move(steps[event.key]!);
    } else if (event.key === "Enter" && props.onOpen && (event.target as HTMLElement).role === "row") {
      props.onOpen(ordered[activeIndex]!);
    }
  };

  return (
    <div class="table" role="table" aria-label={props.label} aria-rowcount={ordered.length + 1}>
      <div class="table-head" role="rowgroup">
        <div role="row" aria-rowindex={1} style={grid}>
          {columns.map((column) => (
            <HeadCell column={column} sort={props.sort} onSort={props.onSort} />
          ))}
        </div>
      </div>
      <div
        class="table-body"
        role="rowgroup"
        ref={scroller}
        onPointerEnter={() => setHeld(true)}
        onPointerLeave={() => setHeld(false)}
        onFocusCapture={() => setHeld(true)}
        onBlurCapture={() => setHeld(false)}
        onKeyDown={onKeyDown}
      >
        {ordered.length === 0 && props.empty}
        <div class="table-space" role="presentation" style={{ height: `${virtual.getTotalSize()}px` }}>
          {virtual.getVirtualItems().map((item) => {
            const row = ordered[item.index]!;
            return (
              <div
                key={keyOf(row)}
                role="row"
                class={`row ${props.tone?.(row) ?? ""}`}
                aria-rowindex={item.index + 2}
                data-index={item.index}
                tabIndex={item.index === activeIndex ? 0 : -1}
                style={{ ...grid, height: `${height}px`, transform: `translateY(${item.start}px)` }}
                onFocus={() => setActive(keyOf(row))}
                onClick={(event) => {
                  const isControl = (event.target as HTMLElement).closest("a, button, code");
                  if (!isControl && !String(getSelection())) props.onOpen?.(row);
                }}
              >
                {columns.map((column) => (
                  <div role="cell" class={`cell at-${column.key} ${column.narrow ? "narrow" : ""}`}>
                    {column.cell(row)}
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

function HeadCell<T>({ column, sort, onSort }: { column: Column<T>; sort: string; onSort: (sort: string) => void }) {
  const isSorted = sort.replace("-", "") === column.key;
  const direction = !isSorted ? "none" : sort.startsWith("-") ? "descending" : "ascending";
  const next = !isSorted ? column.key : sort.startsWith("-") ? "" : `-${column.key}`;
  return (
    <div role="columnheader" aria-sort={direction} class={`cell ${column.narrow ? "narrow" : ""}`}>
      {column.compare ? (
        <button type="button" onClick={() => onSort(next)}>
          {column.title}
          <span class="sort" aria-hidden="true">
            {direction === "ascending" ? "↑" : direction === "descending" ? "↓" : ""}
          </span>
        </button>
      ) : (
        column.title
      )}
    </div>
  );
}

function useSorted<T>(rows: T[], columns: Column<T>[], sort: string): T[] {
  return useMemo(() => {
    const compare = columns.find((column) => column.key === sort.replace("-", ""))?.compare;
    if (!compare) return rows;
    const sign = sort.startsWith("-") ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(a, b));
  }, [rows, sort]);
}

/** No row moves under the pointer or the focus: their order stays, and new rows come at the end. */
function useHeldOrder<T>(rows: T[], keyOf: (row: T) => string, isHeld: boolean, sort: string): T[] {
  const held = useRef<{ order: Map<string, number>; sort: string }>({ order: new Map(), sort: "" });
  return useMemo(() => {
    const before = held.current;
    if (isHeld && before.sort === sort && before.order.size) {
      const last = before.order.size;
      const place = (row: T) => before.order.get(keyOf(row)) ?? last;
      rows = [...rows].sort((a, b) => place(a) - place(b));
    }
    held.current = { order: new Map(rows.map((row, index) => [keyOf(row), index])), sort };
    return rows;
  }, [rows, isHeld, sort]);
}

type Options = Pick<
  VirtualizerOptions<HTMLDivElement, HTMLDivElement>,
  "count" | "getScrollElement" | "estimateSize" | "overscan"
>;

function useVirtualizer(options: Options): Virtualizer<HTMLDivElement, HTMLDivElement> {
  const [, rerender] = useReducer((n: number) => n + 1, 0);
  const [virtual] = useState(
    () =>
      new Virtualizer<HTMLDivElement, HTMLDivElement>({
        ...options,
        scrollToFn: elementScroll,
        observeElementRect,
        observeElementOffset,
        onChange: () => rerender(0),
      }),
  );
  virtual.setOptions({
    ...options,
    scrollToFn: elementScroll,
    observeElementRect,
    observeElementOffset,
    onChange: () => rerender(0),
  });
  useLayoutEffect(() => virtual._didMount(), []);
  useLayoutEffect(() => virtual._willUpdate());
  return virtual;
}
