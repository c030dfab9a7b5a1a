// The services as a picture, with the messages between them; on a phone, as a list.
import type { Edge, ServiceStatus } from "../generated/state";
import * as format from "./format";
import { colorOf, Mark } from "./parts";
import { clock, overview } from "./store";

interface Position {
  title?: string;
  x: number;
  y: number;
  href?: string;
}

const [WIDTH, HEIGHT] = [1052, 300]; // of the picture
const [BOX_WIDTH, BOX_HEIGHT] = [184, 66];
const POSITIONS: Record<string, Position> = {
  kubernetes: { title: "kube-apiserver", x: 0, y: 117 },
  watcher: { x: 280, y: 117 },
  metadata: { x: 560, y: 117, href: "#/nodes?state=stuck" },
  machines: { title: "Talos machines", x: 560, y: 0 },
  labeler: { x: 868, y: 0, href: "#/nodes?state=stuck" },
  csr: { x: 868, y: 78, href: "#/certificates" },
  ipam: { x: 868, y: 156, href: "#/networks" },
  lifecycle: { x: 868, y: 234 },
  clouds: { title: "cloud accounts", x: 560, y: 234, href: "#/clouds" },
};

export function Flow() {
  const { places, edges } = overview.value;
  return (
    <div class="relative mx-auto max-w-295 lg:aspect-1052/300">
      <svg
        class="absolute size-full overflow-visible max-lg:hidden"
        viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
        role="group"
        aria-label="Messages between the services"
      >
        {edges.map((edge) => (
          <EdgeLine key={edge.source + edge.target} edge={edge} />
        ))}
      </svg>
      <ul class="stack gap-2">
        {places.map((place) => (
          <PlaceBox key={place.service} place={place} position={POSITIONS[place.service]!} />
        ))}
      </ul>
    </div>
  );
}

function PlaceBox({ place, position }: { place: ServiceStatus; position: Position }) {
  const { service, health, text, details } = place;
  const { title = service, x, y, href } = position;
  const label = `${title}, ${health}: ${text}${details ? `. ${details}` : ""}`;
  return (
    <li
      class={`place ${health} ${colorOf(health)}`}
      style={{ left: `${(x / WIDTH) * 100}%`, top: `${(y / HEIGHT) * 100}%` }}
      title={label}
    >
      <p class="flex items-center gap-2 font-semibold text-plain">
        <Mark health={health} />
        {href ? (
          <a class="truncate after:absolute after:inset-0" href={href} aria-label={label}>
            {title}
          </a>
        ) : (
          <span class="truncate">{title}</span>
        )}
        <span class="sr-only">{health}</span>
      </p>
      <p class="text-xs text-muted wrap-anywhere lg:line-clamp-2 lg:leading-4">
        {text}
        {details && <span class="lg:sr-only">. {details}</span>}
      </p>
    </li>
  );
}

function EdgeLine({ edge }: { edge: Edge }) {
  const { is_off: isOff, rate = 0, lag, lag_since: since, is_late: isLate, errors } = edge;
  const seconds = Math.max(0.25, 1.6 / Math.sqrt(rate)); // in which a dash moves by its distance to the next
  const { path, label, note } = layOut(edge);
  const wait = lag && `${format.count(lag)} ${lag === 1 ? "waits" : "wait"}`;
  const age = since ? `, ${format.age(clock.value - since)}` : "";
  return (
    <g class="fill-none stroke-2">
      <path class="stroke-line" stroke-dasharray={isOff ? "3 6" : undefined} d={path} />
      {rate > 0.05 && !isOff && (
        <path
          class="animate-flow stroke-accent motion-reduce:animate-none"
          stroke-linecap="round"
          stroke-dasharray="3 17"
          style={{ animationDuration: `${seconds.toFixed(2)}s` }}
          d={path}
        />
      )}
      {!isOff && <Text at={label} text={format.rate(rate)} color="fill-muted" />}
      {wait && <Text at={note} text={wait + age} color={isLate ? "fill-warning font-semibold" : "fill-muted"} />}
      {errors && (
        <Text
          at={{ ...note, y: note.y + (wait ? 15 : 0) }}
          text={format.plural(errors, "error")}
          color="fill-bad font-semibold"
        />
      )}
    </g>
  );
}

type Point = { x: number; y: number };

function Text({ at, text, color }: { at: Point; text: string; color: string }) {
  return (
    <text class={`halo text-xs ${color}`} text-anchor="end" {...at}>
      {text}
    </text>
  );
}

/** A line from the bottom of a place to the top of another, or from its right side to the left side. */
function layOut({ source, target, is_query: isQuery }: Edge): { path: string; label: Point; note: Point } {
  const [from, to] = [POSITIONS[source]!, POSITIONS[target]!];
  if (from.x === to.x) {
    const [x, top, bottom] = [from.x + BOX_WIDTH / 2, from.y + BOX_HEIGHT, to.y];
    const y = (top + bottom) / 2 + 4;
    return { path: `M${x} ${top}V${bottom}`, label: { x: x + 50, y }, note: { x: x - 12, y } };
  }
  const [x1, y1, x2, y2] = [from.x + BOX_WIDTH, from.y + BOX_HEIGHT / 2, to.x, to.y + BOX_HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  return {
    path: `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`,
    label: { x: isQuery ? x1 + 44 : x2 - 28, y: y2 - 9 },
    note: { x: x2 - 9, y: y2 + (isQuery ? 32 : 17) }, // below that of the other edge
  };
}
