// The last hour as plots.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import * as format from "./format";
import type { HistoryStep } from "./model";
import { Card, Empty } from "./parts";
import { history } from "./store";
import { theme } from "./theme";

interface Line {
  label: string;
  of: (step: HistoryStep) => number | null;
  color: string; // a CSS variable
}

interface Plot {
  title: string;
  unit: string;
  lines: Line[];
}

const PLOTS: Plot[] = [
  {
    title: "Messages",
    unit: "per second",
    lines: [
      { label: "observed", of: (step) => step.observed ?? 0, color: "--accent" },
      { label: "enriched", of: (step) => step.enriched ?? 0, color: "--second" },
      { label: "decided", of: (step) => step.decided ?? 0, color: "--warning" },
    ],
  },
  { title: "Nodes initialized", unit: "in 10 s", lines: [{ label: "Nodes", of: (step) => step.joined ?? 0, color: "--accent" }] },
  {
    title: "From registration to initialization",
    unit: "seconds",
    lines: [
      { label: "median", of: (step) => step.p50 ?? null, color: "--accent" },
      { label: "99 %", of: (step) => step.p99 ?? null, color: "--warning" },
    ],
  },
  {
    title: "Problems",
    unit: "count",
    lines: [
      { label: "Nodes stuck", of: (step) => step.stuck ?? 0, color: "--bad" },
      { label: "machines silent", of: (step) => step.unreachable ?? 0, color: "--second" },
      { label: "dead letters", of: (step) => step.dead ?? 0, color: "--warning" },
    ],
  },
];

export function History() {
  return (
    <div class="view">
      <h1>History</h1>
      {history.value.length < 2 && (
        <Empty title="Not enough data yet">The console keeps the last hour in memory, in steps of 10 s, from its start.</Empty>
      )}
      <div class="plots">
        {history.value.length >= 2 && PLOTS.map((plot) => <PlotCard key={plot.title + theme.value} plot={plot} />)}
      </div>
    </div>
  );
}

function PlotCard({ plot }: { plot: Plot }) {
  const host = useRef<HTMLDivElement>(null);
  const shown = useRef<uPlot | null>(null);
  const steps = history.value;
  useEffect(() => {
    const element = host.current!;
    const color = (name: string) => resolve(element, name);
    const axis = { stroke: color("--muted"), grid: { stroke: color("--border"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const options: uPlot.Options = {
      width: element.clientWidth,
      height: 180,
      padding: [8, 28, 0, 0],
      cursor: { sync: { key: "history" } },
      scales: { y: { range: (_self, _low, high) => [0, Math.max(1, high * 1.1)] } },
      series: [
        { label: "Time", value: (_self: uPlot, at: number | null) => (at === null ? "" : format.time(at)) },
        ...plot.lines.map((line) => ({
          label: line.label,
          value: (_self: uPlot, value: number | null) => (value === null ? "" : String(Math.round(value * 100) / 100)),
          stroke: color(line.color),
          width: 2,
          points: { show: false },
          spanGaps: true,
        })),
      ],
      axes: [{ ...axis, space: 90, values: (_self, times) => times.map(format.time) }, { ...axis, size: 44 }],
    };
    const made = new uPlot(options, dataOf(plot, history.peek()), element);
    shown.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height: 180 }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      made.destroy();
    };
  }, []);
  useEffect(() => shown.current?.setData(dataOf(plot, steps)), [steps]);
  const last = steps.at(-1);
  return (
    <Card title={plot.title} note={plot.unit}>
      <div class="plot" ref={host} role="img" aria-label={`${plot.title}, ${plot.unit}: ${describe(plot, last)}`} />
    </Card>
  );
}

/** A canvas does not know light-dark(): the element resolves it. */
function resolve(element: HTMLElement, name: string): string {
  element.style.color = `var(${name})`;
  return getComputedStyle(element).color;
}

function dataOf(plot: Plot, steps: HistoryStep[]): uPlot.AlignedData {
  return [steps.map((step) => step.at), ...plot.lines.map((line) => steps.map(line.of))] as uPlot.AlignedData;
}

function describe(plot: Plot, step: HistoryStep | undefined): string {
  return step ? plot.lines.map((line) => `${line.label} ${line.of(step) ?? "none"}`).join(", ") : "no data";
}
