// The services as a picture, with the messages between them; on a phone, as a list.
import type { Edge, ServiceStatus } from "../generated/state";
import * as format from "./format";
import { colorOf, Mark } from "./parts";
import { clock, overview } from "./store";

type Point = { x: number; y: number };

const WIDTH = 1052; // of the picture
const [BOX_WIDTH, BOX_HEIGHT, GAP] = [184, 66, 12];
// x, and y as a share of what the picture is higher than a box. Every other service is in a column at the right.
const FIXED: Record<string, [x: number, share: number]> = {
  kubernetes: [0, 0.5],
  watcher: [280, 0.5],
  metadata: [560, 0.5],
  machines: [560, 0],
  clouds: [560, 1],
};
const COLUMN = 868;
const TITLES: Record<string, string> = {
  kubernetes: "kube-apiserver",
  machines: "Talos machines",
  clouds: "cloud accounts",
};
const LINKS: Record<string, string> = {
  metadata: "#/nodes?state=stuck",
  labeler: "#/nodes?state=stuck",
  csr: "#/certificates",
  ipam: "#/networks",
  clouds: "#/clouds",
};

export function Flow() {
  const { places, edges } = overview.value;
  const { height, positions } = arrange(places.map((place) => place.service));
  return (
    <div
      class="relative mx-auto max-w-295 lg:aspect-[1052/var(--picture-height)]"
      style={{ "--picture-height": `${height}` }}
    >
      <svg
        class="absolute size-full overflow-visible max-lg:hidden"
        viewBox={`0 0 ${WIDTH} ${height}`}
        role="group"
        aria-label="Messages between the services"
      >
        {edges.map((edge) => (
          <EdgeLine
            key={edge.source + edge.target}
            edge={edge}
            from={positions.get(edge.source)!}
            to={positions.get(edge.target)!}
          />
        ))}
      </svg>
      <ul class="stack gap-2">
        {places.map((place) => {
          const { x, y } = positions.get(place.service)!;
          const style = { left: `${(x / WIDTH) * 100}%`, top: `${(y / height) * 100}%` };
          return <PlaceBox key={place.service} place={place} style={style} />;
        })}
      </ul>
    </div>
  );
}

/** The upper left corner of each place; the picture is as high as its column. */
function arrange(names: string[]): { height: number; positions: Map<string, Point> } {
  const column = names.filter((name) => !FIXED[name]);
  const height = column.length * (BOX_HEIGHT + GAP) - GAP;
  const positions = new Map<string, Point>();
  for (const [name, [x, share]] of Object.entries(FIXED)) positions.set(name, { x, y: share * (height - BOX_HEIGHT) });
  for (const [row, name] of column.entries()) positions.set(name, { x: COLUMN, y: row * (BOX_HEIGHT + GAP) });
  return { height, positions };
}

function PlaceBox({ place, style }: { place: ServiceStatus; style: { left: string; top: string } }) {
  const { service, health, text, details } = place;
  const [title, href] = [TITLES[service] ?? service, LINKS[service]];
  const label = `${title}, ${health}: ${text}${details ? `. ${details}` : ""}`;
  return (
    <li class={`place ${health} ${colorOf(health)}`} style={style} title={label}>
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

function EdgeLine({ edge, from, to }: { edge: Edge; from: Point; to: Point }) {
  const { is_off: isOff, rate = 0, lag, lag_since: since, is_late: isLate, errors } = edge;
  const seconds = Math.max(0.25, 1.6 / Math.sqrt(rate)); // in which a dash moves by its distance to the next
  const { path, label, note } = layOut(from, to, edge.is_query);
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

function Text({ at, text, color }: { at: Point; text: string; color: string }) {
  return (
    <text class={`halo text-xs ${color}`} text-anchor="end" {...at}>
      {text}
    </text>
  );
}

/** A line from the bottom of a place to the top of another, or from its right side to the left side. */
function layOut(from: Point, to: Point, isQuery?: boolean): { path: string; label: Point; note: Point } {
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
