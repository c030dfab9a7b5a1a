// Is it well, and if not, where: the services as a picture, and what needs attention.
import { useMemo } from "preact/hooks";
import { Flow } from "./flow";
import * as format from "./format";
import { compareByUrgency } from "./nodes";
import { Age, Card, colorOf, Empty, Item, Mark, Usage, View } from "./parts";
import { nodeHref } from "./router";
import { isConnected, nodes, overview, problems, revision } from "./store";

const MAX_STUCK = 8; // in the list
const MAX_DEAD_LETTERS = 3;
const MAX_BALANCERS = 3;
const DISCONNECTED = { health: "bad", title: "The data may be outdated" } as const;

export function Overview() {
  return (
    <View title="Overview">
      <Verdict />
      <Card title="Flow" note="messages per second, over 5 s">
        <Flow />
      </Card>
      <div class="columns lg:grid-cols-[minmax(0,1.7fr)_minmax(0,1fr)]">
        <Attention />
        <Figures />
      </div>
    </View>
  );
}

function Verdict() {
  const { health, title, text } = isConnected.value
    ? overview.value.verdict
    : { ...DISCONNECTED, text: problems.value[0] };
  return (
    <div class={`flex items-center gap-3.5 rounded-xl bg-current/11 px-5 py-4 ${colorOf(health)}`} role="status">
      <Mark health={health} size="size-8" />
      <div class="min-w-0 wrap-anywhere">
        <p class="text-base font-semibold">{title}</p>
        <p class="text-plain">{text}</p>
      </div>
    </div>
  );
}

function Attention() {
  const stuck = useMemo(
    () => [...nodes.values()].filter((row) => row.state === "stuck").sort(compareByUrgency),
    [revision.value],
  );
  const { services, dead_letters: dead, balancers } = overview.value;
  const troubled = services.filter((each) => each.trouble);
  const blocked = balancers.filter((each) => each.state === "blocked").slice(0, MAX_BALANCERS);
  const all = stuck.length > MAX_STUCK && (
    <a href="#/nodes?state=stuck">all {format.count(stuck.length)} stuck Nodes</a>
  );
  return (
    <Card title="Needs attention" note={all}>
      {!troubled.length && !stuck.length && !dead.length && !blocked.length && (
        <Empty title="Nothing">No Node or load balancer is stuck, and no service reports a problem.</Empty>
      )}
      <ul>
        {troubled.map(({ service, health, trouble }) => (
          <Item key={service} health={health === "bad" ? "bad" : "warning"} name={<b>{service}</b>}>
            {trouble}
          </Item>
        ))}
        {stuck.slice(0, MAX_STUCK).map((row) => (
          <Item key={row.name} health="bad" name={<a href={nodeHref(row.name)}>{row.name}</a>}>
            {row.what && <b class="font-semibold text-plain">{format.capitalize(row.what)}. </b>}
            {row.why}
          </Item>
        ))}
        {blocked.map(({ name, reason }) => (
          <Item key={`balancer ${name}`} health="bad" name={<a href="#/clouds">Load balancer of {name}</a>}>
            {reason}
          </Item>
        ))}
        {dead.slice(-MAX_DEAD_LETTERS).map(({ service, kind, name, reason, at }) => (
          <Item
            key={service + kind + name}
            health="bad"
            name={<b>{`Dead letter of ${service} about ${kind} ${name}`}</b>}
          >
            {reason} <Age since={format.secondsOf(at)} /> ago
          </Item>
        ))}
      </ul>
    </Card>
  );
}

function Figures() {
  const { states, requests, stream } = overview.value;
  const { pending, denied = 0, failed = 0, issued } = requests;
  return (
    <Card title="In figures">
      <div class="mb-5 grid grid-cols-3 gap-x-3 gap-y-4">
        <Figure href="#/nodes?state=ready" value={states.ready} label="Nodes ready" />
        <Figure href="#/nodes?state=joining" value={states.joining} label="joining" />
        <Figure href="#/nodes?state=stuck" value={states.stuck} label="stuck" isBad />
        <Figure href="#/certificates?state=issued" value={issued} label="certificates issued" />
        <Figure href="#/certificates?state=pending" value={pending} label="pending" />
        <Figure href="#/certificates?state=denied" value={denied + failed} label="denied" isBad />
      </div>
      {stream && (
        <Usage
          label="Stream"
          used={stream.bytes}
          most={stream.max_bytes}
          note={`${format.plural(stream.messages, "message")}, ${format.bytes(stream.bytes)}`}
        />
      )}
    </Card>
  );
}

function Figure({ href, value = 0, label, isBad }: { href: string; value?: number; label: string; isBad?: boolean }) {
  return (
    <a class="flex flex-col text-xs text-muted" href={href}>
      <span class={`text-2xl font-semibold ${isBad && value ? "text-bad" : "text-plain"}`}>{format.count(value)}</span>
      {label}
    </a>
  );
}
