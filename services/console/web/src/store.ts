// The state of the page: follows the server's events, and survives its restarts.
import { computed, signal } from "@preact/signals";
import type { Frame, HistoryStep, NodeRow, Overview, RequestRow } from "../generated/state";

const STALE_MS = 5_000; // the server sends something every second
const RETRY_MS = 1_000;
const HISTORY_STEPS = 360;

export const nodes = new Map<string, NodeRow>();
export const requests = new Map<string, RequestRow>();
export const revision = signal(0); // grows when a row of `nodes` or `requests` changes
export const overview = signal({} as Overview); // no view is shown before the first frame
export const history = signal<HistoryStep[]>([]);
export const clock = signal(Date.now() / 1000); // of the server, in seconds
export const hasData = signal(false);
export const isConnected = signal(false);
export const settings = signal({ namespace: "kube-system", traces: "", user: "" });

const SILENT = "The console does not answer. It reconnects by itself.";
const CROWDED = "The console sends no data, as too many pages are open. It reconnects by itself.";
const silence = signal(SILENT); // why no data comes

/** Why the data may be outdated. */
export const problems = computed<string[]>(() => {
  if (!isConnected.value) return [silence.value];
  return overview.value.problems;
});

let source: EventSource | undefined;
let lastFrameAt = performance.now();
let clockOffset = 0;

export function start(): void {
  connect();
  loadSettings();
  setInterval(tick, 1_000);
}

function loadSettings(): void {
  fetchSettings().catch(() => setTimeout(loadSettings, RETRY_MS));
}

async function fetchSettings(): Promise<void> {
  const answer = await fetch("api/settings");
  if (answer.status === 401) location.assign("login");
  // An EventSource tells no status, such as that of a session whose rights the API server does not confirm.
  if (!answer.ok) throw new Error((silence.value = await answer.text()));
  settings.value = await answer.json();
}

function connect(): void {
  source?.close();
  source = new EventSource("api/events");
  source.onmessage = (message) => apply(JSON.parse(message.data) as Frame);
  source.onerror = () => {
    isConnected.value = false;
    // The browser retries a broken connection, but not a refused one.
    if (source?.readyState !== EventSource.CLOSED) return;
    setTimeout(connect, RETRY_MS);
    fetchSettings().then(
      () => (silence.value = CROWDED),
      () => {},
    );
  };
}

function tick(): void {
  clock.value = Date.now() / 1000 + clockOffset;
  if (performance.now() - lastFrameAt > STALE_MS && isConnected.value) {
    isConnected.value = false;
    connect();
  }
}

export function apply(frame: Frame): void {
  lastFrameAt = performance.now();
  clockOffset = frame.now - Date.now() / 1000;
  if (frame.is_complete) {
    nodes.clear();
    requests.clear();
  }
  for (const row of frame.nodes) nodes.set(row.name, row);
  for (const name of frame.removed_nodes) nodes.delete(name);
  for (const row of frame.requests) requests.set(row.name, row);
  for (const name of frame.removed_requests) requests.delete(name);
  const changed =
    frame.nodes.length + frame.removed_nodes.length + frame.requests.length + frame.removed_requests.length;
  if (frame.is_complete || changed) revision.value++;
  overview.value = frame.overview;
  if (frame.is_complete) history.value = frame.history;
  else if (frame.history.length) history.value = [...history.value, ...frame.history].slice(-HISTORY_STEPS);
  clock.value = frame.now;
  silence.value = SILENT;
  isConnected.value = true;
  hasData.value = true;
}
