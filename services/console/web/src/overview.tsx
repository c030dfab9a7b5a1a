// Is it well, and if not, where: the services as a picture, and what needs attention.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { Health, ServiceStatus } from "./model";
import { Age, Card, Empty, Mark } from "./parts";
import { nodeHref } from "./router";
import { clock, hasData, isConnected, nodes, overview, rates, revision } from "./store";
import { compareByUrgency } from "./nodes";

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
  label?: string;
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
  { from: "kubernetes", to: "watcher", kinds: ["observed"], label: "watch" },
  { from: "watcher", to: "metadata", kinds: ["observed"] },
  { from: "machines", to: "metadata", kinds: ["enriched"] },
  { from: "metadata", to: "labeler", kinds: ["enriched"] },
  { from: "metadata", to: "csr", kinds: ["enriched_csr"] },
  { from: "metadata", to: "ipam", kinds: ["enriched"] },
  { from: "metadata", to: "lifecycle", kinds: ["enriched"] },
  { from: "clouds", to: "lifecycle", kinds: ["cloud"] },
];
const WORST: Health[] = ["bad", "warning"];

export function Overview() {
  return (
    <div class="view">
      <h1>Overview</h1>
      <Verdict />
      <Card title="Flow" class="flow-card" note="messages per second, over 5 s">
        <Picture />
        <ServiceList />
      </Card>
      <div class="columns wide-first">
        <Attention />
        <Figures />
      </div>
    </div>
  );
}

function Verdict() {
  const { services, states, problems } = overview.value;
  if (!hasData.value) return <div class="verdict off">Waiting for the console …</div>;
  const worst = services.find((each) => each.health === "bad") ?? services.find((each) => each.health === "warning");
  const stuck = states.stuck ?? 0;
  let [tone, title, text]: [Health, string, string] = ["ok", "All is well", ""];
  if (!isConnected.value || problems.length) {
    [tone, title, text] = ["bad", "The data may be outdated", problems[0] ?? "The console does not answer."];
  } else if (worst?.health === "bad") {
    [tone, title, text] = ["bad", `${worst.service} is not well`, worst.text];
  } else if (stuck) {
    [tone, title, text] = ["bad", `${format.plural(stuck, "Node")} ${stuck === 1 ? "is" : "are"} stuck`, "The list below says why, and what to do."];
  } else if (worst) {
    [tone, title, text] = ["warning", `${worst.service}: ${worst.text}`, ""];
  } else if (states.joining) {
    [tone, title, text] = ["busy", `${format.plural(states.joining, "Node")} ${states.joining === 1 ? "joins" : "join"}`, "No service has a problem."];
  } else if (!nodes.size) {
    [tone, title, text] = ["off", "No Node yet", "A Node appears here when its kubelet registers it."];
  } else {
    text = `${format.plural(nodes.size, "Node")}, every service works, and nothing waits.`;
  }
  return (
    <div class={`verdict ${tone}`} role="status">
      <Mark tone={tone} />
      <div>
        <p class="verdict-title">{title}</p>
        {text && <p>{text}</p>}
      </div>
    </div>
  );
}

function statusOf(name: string): ServiceStatus {
  const services = overview.value.services;
  if (name === "clouds") {
    const accounts = services.filter((each) => each.service.startsWith("cloud-"));
    const failed = accounts.find((each) => each.health !== "ok");
    if (!accounts.length) return { service: name, health: "off", text: "none configured" };
    return { service: name, health: failed?.health ?? "ok", text: failed?.text ?? format.plural(accounts.length, "account") };
  }
  if (name === "kubernetes") {
    const watcher = services.find((each) => each.service === "watcher");
    const text = `${format.count(nodes.size)} Nodes`;
    return { service: name, health: watcher?.health === "bad" ? "off" : "ok", text };
  }
  if (name === "machines") {
    const metadata = services.find((each) => each.service === "metadata");
    return { service: name, health: metadata?.health ?? "off", text: "over the Talos API" };
  }
  return services.find((each) => each.service === name) ?? { service: name, health: "off", text: "nothing is known yet" };
}

function Picture() {
  const at = new Map(PLACES.map((place) => [place.name, place]));
  return (
    <svg class="picture" viewBox="-4 2 1052 292" role="group" aria-label="Services and the messages between them">
      {EDGES.map((edge) => (
        <EdgeLine key={edge.from + edge.to} edge={edge} from={at.get(edge.from)!} to={at.get(edge.to)!} />
      ))}
      {PLACES.map((place) => (
        <PlaceBox key={place.name} place={place} status={statusOf(place.name)} />
      ))}
    </svg>
  );
}

function EdgeLine({ edge, from, to }: { edge: Edge; from: Place; to: Place }) {
  const value = edge.kinds.reduce((sum, kind) => sum + (rates.value[kind] ?? 0), 0);
  const isOff = statusOf(edge.to).health === "off" || statusOf(edge.from).health === "off";
  const isVertical = from.x === to.x;
  const [x1, y1] = isVertical ? [from.x + WIDTH / 2, from.y + HEIGHT] : [from.x + WIDTH, from.y + HEIGHT / 2];
  const [x2, y2] = isVertical ? [to.x + WIDTH / 2, to.y] : [to.x, to.y + HEIGHT / 2];
  const middle = (x1 + x2) / 2;
  const path = isVertical ? `M${x1} ${y1}L${x2} ${y2}` : `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  const speed = value > 0.05 ? Math.max(0.25, 1.6 / Math.sqrt(value)) : 0;
  const [labelX, labelY] = isVertical ? [x1 + 34, (y1 + y2) / 2 + 4] : [x2 - 44, y2 - 9];
  return (
    <g class={isOff ? "edge off" : speed ? "edge moving" : "edge"}>
      <path class="line" d={path} />
      {speed > 0 && !isOff && <path class="pulse" d={path} style={{ animationDuration: `${speed.toFixed(2)}s` }} />}
      {!isOff && (
        <text x={labelX} y={labelY} text-anchor="middle">
          {format.rate(value)}
        </text>
      )}
    </g>
  );
}

function PlaceBox({ place, status }: { place: Place; status: ServiceStatus }) {
  const label = `${place.title ?? place.name}, ${status.health}: ${status.text}${details(status)}`;
  const box = (
    <g class={`place ${status.health}`} transform={`translate(${place.x} ${place.y})`} role="img" aria-label={label}>
      <title>{label}</title>
      <rect class="box" width={WIDTH} height={HEIGHT} rx="10" />
      <circle class="light" cx="18" cy="21" r="5" />
      <text class="place-name" x="32" y="26">
        {place.title ?? place.name}
      </text>
      <text class="place-text" x="18" y="46">
        {shorten(status)}
      </text>
    </g>
  );
  return place.href ? (
    <a href={place.href} aria-label={label}>
      {box}
    </a>
  ) : (
    box
  );
}

/** What the processes of a service report by themselves, every ten seconds. */
function details(status: ServiceStatus): string {
  const processes = status.processes ? `; ${format.plural(status.processes, "process", "processes")}` : "";
  return processes + (status.leader ? `; leader ${status.leader}` : "");
}

function shorten(status: ServiceStatus): string {
  let text = status.text;
  if (status.service === "watcher" && status.health === "ok") text = text.split(";")[0]!;
  else if (status.waiting) {
    const since = status.oldest ? `, oldest ${format.age(clock.value - status.oldest)}` : "";
    text = `${format.count(status.waiting)} waiting${since}`;
  } else if (status.health === "off" && status.service !== "clouds" && hasData.value) text = "not running";
  return text.length > 25 ? `${text.slice(0, 24)}…` : text;
}

/** The same as the picture, on a phone. */
function ServiceList() {
  return (
    <ul class="services">
      {PLACES.map((place) => {
        const status = statusOf(place.name);
        return (
          <li key={place.name}>
            <Mark tone={status.health} />
            <div>
              {place.href ? <a href={place.href}>{place.title ?? place.name}</a> : <b>{place.title ?? place.name}</b>}
              <span class="visually-hidden"> ({status.health})</span>
              <p>
                {status.text}
                {details(status)}
              </p>
            </div>
          </li>
        );
      })}
    </ul>
  );
}

function Attention() {
  const stuck = useMemo(
    () => [...nodes.values()].filter((row) => row.state === "stuck").sort(compareByUrgency).slice(0, 8),
    [revision.value],
  );
  const { services, states, dead_letters: dead } = overview.value;
  const troubled = services.filter((each) => WORST.includes(each.health));
  const total = states.stuck ?? 0;
  return (
    <Card title="Needs attention" note={total > stuck.length && <a href="#/nodes?state=stuck">all {format.count(total)} stuck Nodes</a>}>
      {!troubled.length && !stuck.length && !dead.length && <Empty title="Nothing">{hasData.value ? "No Node is stuck, and no service reports a problem." : ""}</Empty>}
      <ul class="attention">
        {troubled.map((each) => (
          <li key={each.service}>
            <Mark tone={each.health} />
            <div>
              <b>{each.service}</b>
              <p>{each.text}</p>
            </div>
          </li>
        ))}
        {stuck.map((row) => (
          <li key={row.name}>
            <Mark tone="bad" />
            <div>
              <a href={nodeHref(row.name)}>{row.name}</a> <span class="muted">{row.what}</span>
              <p>{row.why}</p>
            </div>
          </li>
        ))}
        {dead.slice(-3).map((letter) => (
          <li key={letter.service + letter.kind + letter.name}>
            <Mark tone="bad" />
            <div>
              <b>Dead letter of {letter.service}</b> about {letter.kind} {letter.name}, <Age since={letter.at} /> ago
              <p>{letter.reason}</p>
            </div>
          </li>
        ))}
      </ul>
    </Card>
  );
}

function Figures() {
  const { states, requests, messages, bytes, max_bytes: most } = overview.value;
  const pending = requests.pending ?? 0;
  const denied = (requests.denied ?? 0) + (requests.failed ?? 0);
  return (
    <Card title="In figures">
      <div class="figures">
        <Figure href="#/nodes?state=ready" value={states.ready} label="Nodes ready" />
        <Figure href="#/nodes?state=joining" value={states.joining} label="joining" />
        <Figure href="#/nodes?state=stuck" value={states.stuck} label="stuck" tone={states.stuck ? "bad" : ""} />
        <Figure href="#/certificates?state=issued" value={requests.issued} label="certificates issued" />
        <Figure href="#/certificates?state=pending" value={pending} label="pending" />
        <Figure href="#/certificates?state=denied" value={denied} label="denied" tone={denied ? "bad" : ""} />
      </div>
      <Usage label="Stream" used={bytes} most={most} note={`${format.plural(messages, "message")}, ${format.bytes(bytes)}`} />
    </Card>
  );
}

function Figure(props: { href: string; value?: number; label: string; tone?: string }) {
  return (
    <a class={`figure ${props.tone ?? ""}`} href={props.href}>
      <span class="figure-value">{format.count(props.value ?? 0)}</span>
      <span>{props.label}</span>
    </a>
  );
}

export function Usage({ label, used, most, note }: { label: string; used: number; most: number; note: string }) {
  const share = most > 0 ? Math.min(1, used / most) : 0;
  return (
    <div class="usage">
      <div class="usage-text">
        <span>{label}</span>
        <span class="muted">
          {note}
          {most > 0 && `, ${(share * 100).toFixed(share < 0.1 ? 1 : 0)} % used`}
        </span>
      </div>
      <div class="meter" role="meter" aria-label={`${label} used`} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
        <span class={share > 0.9 ? "bad" : ""} style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
