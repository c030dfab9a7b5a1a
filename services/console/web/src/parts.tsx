// Small parts that several views use.
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import * as format from "./format";
import type { Health, NodeState, RequestState } from "./model";
import { clock } from "./store";

type Tone = "ok" | "busy" | "warning" | "bad" | "off";

const NODE_TONES: Record<NodeState, Tone> = { stuck: "bad", joining: "busy", ready: "ok", foreign: "off" };
const REQUEST_TONES: Record<RequestState, Tone> = {
  pending: "busy",
  denied: "bad",
  failed: "bad",
  approved: "busy",
  issued: "ok",
};
// A shape beside the colour, for those who cannot tell the colours apart.
const SHAPES: Record<Tone, JSX.Element> = {
  ok: <path d="M3.5 8.5l3 3 6-7" />,
  busy: <path d="M8 4v4l2.5 2" />,
  warning: <path d="M8 3.5v5.5M8 12v.2" />,
  bad: <path d="M4.5 4.5l7 7m0-7l-7 7" />,
  off: <path d="M4 8h8" />,
};

export function Mark({ tone }: { tone: Tone | Health }) {
  return (
    <svg class={`mark ${tone}`} viewBox="0 0 16 16" aria-hidden="true">
      <circle cx="8" cy="8" r="8" />
      {SHAPES[tone]}
    </svg>
  );
}

export function StateBadge({ state, what }: { state: NodeState; what?: string }) {
  return <Badge tone={NODE_TONES[state]}>{what || (state === "foreign" ? "not managed" : state)}</Badge>;
}

export function RequestBadge({ state }: { state: RequestState }) {
  return <Badge tone={REQUEST_TONES[state]}>{state}</Badge>;
}

export function Badge({ tone, children }: { tone: Tone; children: ComponentChildren }) {
  return (
    <span class={`badge ${tone}`}>
      <Mark tone={tone} />
      <span>{children}</span>
    </span>
  );
}

export function Age({ since }: { since: number }) {
  if (!since) return <span class="muted">unknown</span>;
  return (
    <time dateTime={new Date(since * 1_000).toISOString()} title={new Date(since * 1_000).toLocaleString()}>
      {format.age(clock.value - since)}
    </time>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <p>{children}</p>}
    </div>
  );
}

export function Card(props: { title: string; note?: ComponentChildren; class?: string; children: ComponentChildren }) {
  return (
    <section class={`card ${props.class ?? ""}`}>
      <header>
        <h2>{props.title}</h2>
        {props.note && <div class="note">{props.note}</div>}
      </header>
      {props.children}
    </section>
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
    <span class="command">
      <code tabIndex={0}>{text}</code>
      <button type="button" onClick={copy} onBlur={() => setCopied("")} aria-label={`Copy ${text}`}>
        <span aria-live="polite">{copied || "Copy"}</span>
      </button>
    </span>
  );
}

const COMMANDS = /\b((?:kubectl|talosctl|talos-ccm) [^;:]*?)(?=(?:[.;:,)](?:\s|$)|$))/g;

/** A text in which commands can be copied. */
export function WithCommands({ text }: { text: string }) {
  const parts: ComponentChildren[] = [];
  let from = 0;
  for (const match of text.matchAll(COMMANDS)) {
    parts.push(text.slice(from, match.index), <Command text={match[1]!} />);
    from = match.index + match[0].length;
  }
  parts.push(text.slice(from));
  return <p class="with-commands">{parts}</p>;
}

export function Chip(props: { active: boolean; onClick: () => void; children: ComponentChildren }) {
  return (
    <button type="button" class="chip" aria-pressed={props.active} onClick={props.onClick}>
      {props.children}
    </button>
  );
}
