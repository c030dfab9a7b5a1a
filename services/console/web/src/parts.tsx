// Small parts that several views use.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import * as format from "./format";
import type { Health, NodeState, RequestState } from "../generated/state";
import { nodeHref } from "./router";
import { clock } from "./store";

type Part = { children?: ComponentChildren };

// The colour of a health, and a shape beside it for those who cannot tell the colours apart.
const TONES: Record<Health, { color: string; shape: string }> = {
  ok: { color: "text-ok", shape: "M3.5 8.5l3 3 6-7" },
  busy: { color: "text-accent", shape: "M8 4v4l2.5 2" },
  warning: { color: "text-warning", shape: "M8 3.5v5.5M8 12v.2" },
  bad: { color: "text-bad", shape: "M4.5 4.5l7 7m0-7l-7 7" },
  off: { color: "text-muted", shape: "M4 8h8" },
};
const STATE_HEALTH: Record<NodeState | RequestState, Health> = {
  stuck: "bad",
  joining: "busy",
  ready: "ok",
  foreign: "off",
  pending: "busy",
  denied: "bad",
  failed: "bad",
  approved: "busy",
  issued: "ok",
};

export const colorOf = (health: Health) => TONES[health].color;
export const healthOf = (state: NodeState | RequestState) => STATE_HEALTH[state];

export function Mark({ health, size = "size-4" }: { health: Health; size?: string }) {
  return (
    <svg class={`flex-none ${size} ${colorOf(health)}`} viewBox="0 0 16 16" aria-hidden="true">
      <circle cx="8" cy="8" r="8" class="fill-current/16" />
      <path d={TONES[health].shape} class="fill-none stroke-current stroke-2" stroke-linecap="round" />
    </svg>
  );
}

export function Badge({ health, children }: Part & { health: Health }) {
  return (
    <span
      class={`inline-flex max-w-full items-center gap-1.5 rounded-full bg-current/11 py-0.5 pr-2.5 pl-1 text-xs font-semibold ${colorOf(health)}`}
    >
      <Mark health={health} />
      <span class="truncate">{children}</span>
    </span>
  );
}

export function StateBadge({ state, what }: { state: NodeState | RequestState; what?: string }) {
  return <Badge health={healthOf(state)}>{what || (state === "foreign" ? "not managed" : state)}</Badge>;
}

export function NodeLink({ name }: { name: string }) {
  return (
    <a class="name font-semibold" href={nodeHref(name)} title={name}>
      {name}
    </a>
  );
}

/** What is the case and why, in a cell of a table. */
export function Reason({ what, why }: { what?: string; why?: string }) {
  return (
    <span class="line-clamp-2 text-xs wrap-anywhere whitespace-normal text-muted" title={why}>
      {what && <b class="font-semibold text-plain">{what}. </b>}
      {why}
    </span>
  );
}

export function Age({ since }: { since: number }) {
  if (!since) return <span class="text-muted">unknown</span>;
  const date = new Date(since * 1_000);
  return (
    <time dateTime={date.toISOString()} title={date.toLocaleString()}>
      {format.age(clock.value - since)}
    </time>
  );
}

/** A view; its table, if any, fills the rest of the window. */
export function View({ title, isWide, children }: Part & { title?: string; isWide?: boolean }) {
  return (
    <div class={`mx-auto flex w-full flex-1 flex-col gap-4 px-3 py-4 md:p-6 ${isWide ? "" : "max-w-370"}`}>
      {title && <h1>{title}</h1>}
      {children}
    </div>
  );
}

interface CardProps extends Part {
  title: ComponentChildren;
  note?: ComponentChildren;
  class?: string;
}

export function Card({ title, note, class: extra = "", children }: CardProps) {
  return (
    <section class={`card min-w-0 rounded-xl border bg-surface p-4 wrap-anywhere md:p-5 ${extra}`}>
      <header class="mb-3.5 flex flex-wrap items-baseline justify-between gap-x-3">
        <h2 class="min-w-0 font-semibold">{title}</h2>
        <div class="text-xs text-muted">{note}</div>
      </header>
      {children}
    </section>
  );
}

export function Empty({ title, children }: Part & { title: string }) {
  return (
    <div class="empty stack items-center gap-2 px-4 py-7 text-center text-muted">
      <p class="font-semibold text-plain">{title}</p>
      {children && <div>{children}</div>}
    </div>
  );
}

interface ItemProps extends Part {
  health: Health;
  name: ComponentChildren;
  state?: string; // the word for its health, if not that of all services
}

/** An entry of a list: how something is, its name, and a sentence. */
export function Item({ health, name, state, children }: ItemProps) {
  return (
    <li class="flex gap-3 border-t py-2.5 first:border-0 first:pt-0">
      <Mark health={health} size="mt-0.5 size-4" />
      <div class="min-w-0 wrap-anywhere">
        {name}
        {state ? <span class="text-muted"> {state}</span> : <span class="sr-only"> ({health})</span>}
        <p class="text-muted">{children}</p>
      </div>
    </li>
  );
}

/** Terms and their values; those without a value are left out. */
export function Facts({ of }: { of: [term: string, value: ComponentChildren][] }) {
  return (
    <dl class="facts flex flex-wrap gap-x-8 gap-y-3">
      {of.map(
        ([term, value], index) =>
          value && (
            <div key={index} class="min-w-0">
              <dt class="text-xs text-muted">{term}</dt>
              <dd class="wrap-anywhere">{value}</dd>
            </div>
          ),
      )}
    </dl>
  );
}

/** How much of something is used. */
export function Usage({ label, used, most, note }: { label: string; used: number; most: number; note: string }) {
  const percent = most > 0 ? Math.min(100, (used / most) * 100) : 0;
  const share = most > 0 ? `, ${percent.toFixed(percent < 10 ? 1 : 0)} % used` : "";
  return (
    <div>
      <p class="mb-1.5 flex flex-wrap justify-between gap-x-3 text-xs">
        {label}
        <span class="text-muted">{note + share}</span>
      </p>
      <div class="h-2 overflow-hidden rounded-full bg-raised">
        <div class={`h-full rounded-full ${percent > 90 ? "bg-bad" : "bg-accent"}`} style={{ width: `${percent}%` }} />
      </div>
    </div>
  );
}

export function Command({ text }: { text: string }) {
  const [copied, setCopied] = useState("");
  const copy = () =>
    navigator.clipboard.writeText(text).then(
      () => setCopied("Copied"),
      () => setCopied("Select and copy"),
    );
  return (
    <span class="my-0.5 inline-flex max-w-full overflow-hidden rounded-lg border bg-raised align-middle">
      <code tabIndex={0} class="px-2.5 py-1 -outline-offset-2">
        {text}
      </code>
      <button
        class="flex-none cursor-pointer border-l bg-surface px-2.5 text-xs font-medium -outline-offset-2 hover:bg-raised"
        onClick={copy}
        onBlur={() => setCopied("")}
        aria-label={`Copy ${text}`}
      >
        <span aria-live="polite">{copied || "Copy"}</span>
      </button>
    </span>
  );
}

const COMMANDS = /\b((?:kubectl|talosctl|talos-ccm) [^;:]*?)(?=(?:[.;:,)](?:\s|$)|$))/g;

/** A text in which commands can be copied. */
export function WithCommands({ text }: { text: string }) {
  // The command is every second part. A full stop after it would look like a piece of it.
  const parts = text
    .split(COMMANDS)
    .map((part, index) => (index % 2 ? <Command text={part} /> : part.replace(/^\.$/, "")));
  return <p>{parts}</p>;
}
