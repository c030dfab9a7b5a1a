// The services as a picture, with the messages between them; on a phone, as a list.
import * as format from "./format";
import type { ServiceStatus } from "../generated/state";
import { colorOf, Item } from "./parts";
import { nodes, overview, rates } from "./store";
import { describeErrors, findWait } from "./trouble";

interface Place {
  name: string;
  title?: string;
  x: number;
  y: number;
  href?: string;
}

interface Edge {
  from: string;
  to: string;
  kinds: string[]; // of messages, whose rates are added
  isQuery?: boolean; // a query of the service, and no message to it
}

const WIDTH = 184;
const HEIGHT = 58;
const PLACES: Place[] = [
  { name: "kubernetes", title: "kube-apiserver", x: 0, y: 118 },
  { name: "watcher", x: 280, y: 118 },
  { name: "metadata", x: 560, y: 118, href: "#/nodes?state=stuck" },
  { name: "machines", title: "Talos machines", x: 560, y: 8 },
  { name: "labeler", x: 860, y: 8, href: "#/nodes?state=stuck" },
  { name: "csr", x: 860, y: 82, href: "#/certificates" },
  { name: "ipam", x: 860, y: 156, href: "#/networks" },
  { name: "lifecycle", x: 860, y: 230 },
  { name: "clouds", title: "cloud accounts", x: 560, y: 230, href: "#/clouds" },
];
const EDGES: Edge[] = [
  { from: "kubernetes", to: "watcher", kinds: ["observed"] },
  { from: "watcher", to: "metadata", kinds: ["observed"] },
  { from: "machines", to: "metadata", kinds: ["enriched"], isQuery: true },
  { from: "metadata", to: "labeler", kinds: ["enriched"] },
  { from: "metadata", to: "csr", kinds: ["enriched_csr"] },
  { from: "metadata", to: "ipam", kinds: ["enriched"] },
  { from: "metadata", to: "lifecycle", kinds: ["enriched"] },
  { from: "clouds", to: "lifecycle", kinds: ["cloud"], isQuery: true },
];
const QUERY_ERROR = "failed Talos calls";

export function Flow() {
  const at = new Map(PLACES.map((place) => [place.name, place]));
  return (
    <>
      <svg
        class="mx-auto max-w-295 max-md:hidden"
        viewBox="-4 2 1052 292"
        role="group"
        aria-label="Services and the messages between them"
      >
        {EDGES.map((edge) => (
          <EdgeLine key={edge.from + edge.to} edge={edge} from={at.get(edge.from)!} to={at.get(edge.to)!} />
        ))}
        {PLACES.map((place) => (
          <PlaceBox key={place.name} place={place} status={statusOf(place.name)} />
        ))}
      </svg>
      <ul class="md:hidden">
        {PLACES.map(({ name, title = name, href }) => {
          const status = statusOf(name);
          const errors = describeErrors(status);
          return (
            <Item key={name} health={status.health} name={href ? <a href={href}>{title}</a> : <b>{title}</b>}>
              {status.text + details(status)}
              {errors && ". "}
              <span class={status.errors && "text-bad"}>{errors}</span>
            </Item>
          );
        })}
      </ul>
    </>
  );
}

function statusOf(name: string): ServiceStatus {
  const services = overview.value.services;
  const find = (service: string) => services.find((each) => each.service === service);
  if (name === "clouds") {
    const accounts = services.filter((each) => each.service.startsWith("cloud-"));
    if (!accounts.length) return { service: name, health: "off", text: "none configured" };
    const failed = accounts.find((each) => each.health !== "ok");
    return { service: name, health: "ok", text: format.plural(accounts.length, "account"), ...failed };
  }
  if (name === "kubernetes") {
    const isOff = find("watcher")?.health === "bad";
    return { service: name, health: isOff ? "off" : "ok", text: format.plural(nodes.size, "Node") };
  }
  if (name === "machines") {
    return { service: name, health: find("metadata")?.health ?? "off", text: "over the Talos API" };
  }
  return find(name) ?? { service: name, health: "off", text: "nothing is known yet" };
}

function EdgeLine({ edge, from, to }: { edge: Edge; from: Place; to: Place }) {
  const isOff = statusOf(edge.to).health === "off" || statusOf(edge.from).health === "off";
  const value = edge.kinds.reduce((sum, kind) => sum + (rates.value[kind] ?? 0), 0);
  const seconds = Math.max(0.25, 1.6 / Math.sqrt(value)); // in which a dash moves by its distance to the next
  const { path, label, note } = layOut(from, to, !!edge.isQuery);
  const wait = findWait(edge.isQuery ? { ...statusOf(edge.to), lag: 0 } : statusOf(edge.to));
  const errors = countErrors(edge);
  const notes = [
    wait.text && { text: wait.text, class: wait.isLate ? "fill-warning font-semibold" : "fill-muted" },
    errors && { text: format.plural(errors, "error"), class: "fill-bad font-semibold" },
  ];
  return (
    <g class="fill-none stroke-2">
      <path class="stroke-line" stroke-dasharray={isOff ? "3 6" : undefined} d={path} />
      {value > 0.05 && !isOff && (
        <path
          class="animate-flow stroke-accent motion-reduce:animate-none"
          stroke-linecap="round"
          stroke-dasharray="3 17"
          style={{ animationDuration: `${seconds.toFixed(2)}s` }}
          d={path}
        />
      )}
      {!isOff && (
        <text class="fill-muted stroke-none text-xs" text-anchor="middle" {...label}>
          {format.rate(value)}
        </text>
      )}
      {!isOff &&
        notes
          .filter((each) => !!each)
          .map((each, line) => (
            <text key={line} class={`halo text-xs ${each.class}`} text-anchor="end" x={note.x} y={note.y + 15 * line}>
              {each.text}
            </text>
          ))}
    </g>
  );
}

/** The errors of the last five minutes, each on the edge on which it happened. */
function countErrors({ from, to, isQuery }: Edge): number {
  const accounts = overview.value.services.filter((each) => each.service.startsWith("cloud-"));
  const errors = (from === "clouds" ? accounts : [statusOf(to)]).flatMap((each) => Object.entries(each.errors ?? {}));
  const own = errors.filter(([cause]) => from === "clouds" || (cause === QUERY_ERROR) === !!isQuery);
  return own.reduce((sum, [, count]) => sum + count, 0);
}

type Point = { x: number; y: number };

/** A line from the bottom of a place to the top of another, or from its right side to the left side. */
function layOut(from: Place, to: Place, isQuery: boolean): { path: string; label: Point; note: Point } {
  const isVertical = from.x === to.x;
  const [x1, y1] = isVertical ? [from.x + WIDTH / 2, from.y + HEIGHT] : [from.x + WIDTH, from.y + HEIGHT / 2];
  const [x2, y2] = isVertical ? [to.x + WIDTH / 2, to.y] : [to.x, to.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  if (isVertical) {
    const y = (y1 + y2) / 2 + 4;
    return { path: `M${x1} ${y1}L${x2} ${y2}`, label: { x: x1 + 34, y }, note: { x: x1 - 12, y } };
  }
  return {
    path: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
    label: { x: isQuery ? x1 + 30 : x2 - 44, y: y2 - 9 },
    note: { x: x2 - 9, y: y2 + (isQuery ? 32 : 17) }, // below that of the other edge
  };
}

const BOXES: Record<string, string> = { bad: "alarm", warning: "alarm", off: "fill-raised stroke-line" };

function PlaceBox({ place, status }: { place: Place; status: ServiceStatus }) {
  const { name, title = name, x, y, href } = place;
  const label = [`${title}, ${status.health}: ${status.text}${details(status)}`, describeErrors(status)]
    .filter(Boolean)
    .join(". ");
  const box = (
    <g class={colorOf(status.health)} transform={`translate(${x} ${y})`} role="img" aria-label={label}>
      <title>{label}</title>
      <rect
        class={BOXES[status.health] ?? "fill-surface stroke-line"}
        stroke-dasharray={status.health === "off" ? "4 4" : undefined}
        width={WIDTH}
        height={HEIGHT}
        rx="10"
      />
      <circle class="fill-current" cx="18" cy="21" r="5" />
      <text class="fill-plain text-sm font-semibold" x="32" y="26">
        {title}
      </text>
      <text class="fill-muted text-xs" x="18" y="46">
        {shorten(status)}
      </text>
    </g>
  );
  if (!href) return box;
  return (
    <a href={href} aria-label={label}>
      {box}
    </a>
  );
}

/** What the processes of a service report by themselves, every ten seconds. */
function details(status: ServiceStatus): string {
  const { processes, leader, unready } = status;
  const parts = [
    processes && format.plural(processes, "process", "processes"),
    unready && `${format.count(unready)} not ready: ${status.why_unready}`,
    leader && `leader ${leader}`,
    findWait(status).text,
  ];
  return parts.map((part) => (part ? `; ${part}` : "")).join("");
}

function shorten(status: ServiceStatus): string {
  const { service, health } = status;
  let text = status.text;
  if (service === "watcher" && health === "ok") text = text.split(";")[0]!;
  else if (health === "off" && service !== "clouds") text = "not running";
  return text.length > 23 ? `${text.slice(0, 22)}…` : text;
}
