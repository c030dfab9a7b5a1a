// The last hour as plots.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import * as format from "./format";
import type { HistoryStep } from "../generated/state";
import { Card, Empty, View } from "./parts";
import { history } from "./store";

type Key = Exclude<keyof HistoryStep, "at">;

interface Plot {
  title: string;
  unit: string;
  lines: [key: Key, label: string, color: string][];
  isSparse?: boolean; // steps without a value are left out, not 0
}

const HEIGHT = 180;
const PLOTS: Plot[] = [
  {
    title: "Messages",
    unit: "per second",
    lines: [
      ["observed", "observed", "accent"],
      ["enriched", "enriched", "second"],
      ["decided", "decided", "warning"],
    ],
  },
  { title: "Nodes initialized", unit: "in 10 s", lines: [["joined", "Nodes", "accent"]] },
  {
    title: "From registration to initialization",
    unit: "seconds",
    isSparse: true,
    lines: [
      ["p50", "median", "accent"],
      ["p99", "99 %", "warning"],
    ],
  },
  {
    title: "Problems",
    unit: "count",
    lines: [
      ["stuck", "Nodes stuck", "bad"],
      ["unreachable", "machines silent", "second"],
      ["dead", "dead letters", "warning"],
    ],
  },
];

export function History() {
  const hasSteps = history.value.length > 1;
  return (
    <View title="History">
      {!hasSteps && (
        <Empty title="Not enough data yet">
          The console keeps the last hour in memory, in steps of 10 s, from its start.
        </Empty>
      )}
      <div class="columns items-stretch">
        {hasSteps && PLOTS.map((plot) => <PlotCard key={plot.title} plot={plot} />)}
      </div>
    </View>
  );
}

function PlotCard({ plot }: { plot: Plot }) {
  const host = useRef<HTMLDivElement>(null);
  const shown = useRef<uPlot>();
  const data = dataOf(plot);
  useEffect(() => {
    const element = host.current!;
    const size = () => ({ width: element.clientWidth, height: HEIGHT });
    const made = new uPlot({ ...size(), ...optionsOf(plot, element) }, data, element);
    shown.current = made;
    const observer = new ResizeObserver(() => made.setSize(size()));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => shown.current?.setData(data), [history.value]);
  const now = plot.lines.map(([, label], index) => `${label} ${data[index + 1]!.at(-1) ?? "none"}`).join(", ");
  return (
    <Card title={plot.title} note={plot.unit}>
      <div class="min-h-52" ref={host} role="img" aria-label={`${plot.title}, ${plot.unit}: ${now}`} />
    </Card>
  );
}

function optionsOf(plot: Plot, element: HTMLElement): Omit<uPlot.Options, "width" | "height"> {
  const color = (name: string) => resolve(element, name);
  const axis: uPlot.Axis = {
    stroke: color("muted"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui",
  };
  // Without a cursor, the legend has the last values.
  const value = (self: uPlot, at: number | null, series: number) => at ?? self.data[series]!.at(-1) ?? null;
  return {
    padding: [8, 28, 0, 0],
    cursor: { sync: { key: "history" } },
    scales: { y: { range: (_self, _low, high) => [0, Math.max(1, high * 1.1)] } },
    series: [
      { label: "Time", value: (self: uPlot, at: number | null) => format.time(value(self, at, 0) ?? 0) },
      ...plot.lines.map(([, label, name]) => ({
        label,
        value: (self: uPlot, at: number | null, index: number) => format.decimal(value(self, at, index)),
        stroke: color(name),
        width: 2,
        // One value between two gaps has no line.
        points: { show: plot.isSparse ?? false, fill: color(name) },
        spanGaps: true,
      })),
    ],
    axes: [
      { ...axis, space: 90, values: (_self, times) => times.map(format.time) },
      { ...axis, size: 44 },
    ],
  };
}

/** A canvas does not know light-dark(): the element resolves it. */
function resolve(element: HTMLElement, name: string): string {
  element.style.color = `var(--color-${name})`;
  return getComputedStyle(element).color;
}

function dataOf(plot: Plot): uPlot.AlignedData {
  const steps = history.value;
  const absent = plot.isSparse ? null : 0;
  const lines = plot.lines.map(([key]) => steps.map((step) => step[key] ?? absent));
  return [steps.map((step) => step.at), ...lines];
}
