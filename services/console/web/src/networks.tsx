// Pod CIDRs: which block of the pod networks belongs to which Node, which is in quarantine, and which is free.
import { parseCidr } from "cidr-tools";
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { Quarantine, QuarantinedBlock } from "../generated/state";
import { Card, Command, Empty, Item, Usage, View } from "./parts";
import { nodeHref } from "./router";
import { nodes, overview, revision } from "./store";

const MAX_CELLS = 1_024;
// What a square shows: the worst of its blocks, which is the last of these.
const KINDS: Record<string, [title: string, color: string]> = {
  free: ["free", "border-muted/45 bg-raised"],
  node: ["of a Node", "border-accent bg-accent"],
  quarantined: ["in quarantine", "border-dashed border-warning bg-warning/35"],
  stuck: ["of a stuck Node", "border-bad bg-bad"],
};
const FREE = ["free", KINDS.free!] as const;

type Network = ReturnType<typeof findNetworks>[number];
type Block = Network["blocks"][number];

export function Networks() {
  const { quarantine, networks: observed } = overview.value;
  const listed = quarantine?.blocks.map((each) => each.block + each.until);
  const networks = useMemo(findNetworks, [revision.value, observed?.pod_cidrs?.join(), listed?.join()]);
  return (
    <View title="Pod CIDRs">
      {networks.length === 0 && (
        <Empty title="No pod network is known">
          metadata publishes the networks of the cluster where certificates are approved or pod CIDRs allocated.
        </Empty>
      )}
      {networks.map((network) => (
        <NetworkCard key={network.text} network={network} />
      ))}
      {quarantine && <QuarantineCard quarantine={quarantine} />}
      {networks.length > 0 && (
        <Card title="Only the command line knows" note="not in the stream">
          {!quarantine && "Blocks in quarantine, which no ipam reports. "}
          Pools of the configuration, and claims of Nodes without a block: <Command text="talos-ccm status ipam" />
        </Card>
      )}
    </View>
  );
}

function NetworkCard({ network }: { network: Network }) {
  const { text, blocks, blockBits } = network;
  const total = 2 ** (blockBits - network.bits);
  const perCell = Math.max(1, total / MAX_CELLS);
  const filled = Map.groupBy(blocks, (block) => {
    const index = (block.start - network.start) / (block.end - block.start + 1n);
    return Math.floor(Number(index) / perCell);
  });
  const resting = blocks.filter(({ kind }) => kind === "quarantined").length;
  const owned = blocks.length - resting;
  const inQuarantine = resting ? `, ${format.count(resting)} in quarantine` : "";
  const used = `${format.count(owned)} of ${format.count(total)} belong to Nodes${inQuarantine}`;
  return (
    <Card title={text} note={`blocks of /${blockBits}`}>
      <Usage label="Blocks" used={blocks.length} most={total} note={used} />
      <div
        class="my-4 grid grid-cols-[repeat(auto-fill,minmax(1rem,1fr))] gap-0.75"
        role="group"
        aria-label={`Map of ${text}: ${used}`}
      >
        {Array.from({ length: total / perCell }, (_, cell) => (
          <Cell key={cell} blocks={filled.get(cell) ?? []} />
        ))}
      </div>
      <p class="flex flex-wrap items-center gap-x-4 text-xs text-muted">
        {Object.values(KINDS).map(([title, color]) => (
          <span key={title} class="flex items-center gap-1.5">
            <span class={`size-3 rounded-sm border ${color}`} />
            {title}
          </span>
        ))}
        {perCell > 1 && <span>one square is {format.count(perCell)} blocks</span>}
      </p>
    </Card>
  );
}

function Cell({ blocks }: { blocks: Block[] }) {
  const [kind, [, color]] = Object.entries(KINDS).findLast(([key]) => blocks.some((each) => each.kind === key)) ?? FREE;
  const shown = blocks.find((block) => block.kind === kind);
  if (!shown) return <span class={`square ${color}`} />;
  const title = blocks.map((block) => block.title).join("\n");
  const props = { class: `square ${color}`, title, "aria-label": title };
  if (kind === "quarantined") return <span role="img" {...props} />;
  return <a href={nodeHref(shown.name)} tabIndex={-1} {...props} />;
}

function QuarantineCard({ quarantine: { count, blocks } }: { quarantine: Quarantine }) {
  const first = count > blocks.length ? `the first ${blocks.length} of ${format.count(count)} to end` : "";
  return (
    <Card title="In quarantine" note={first || format.plural(count, "block")}>
      {!count && <Empty title="No block">A block rests after its Node is deleted, before another Node gets it.</Empty>}
      <ul>
        {blocks.map((each) => (
          <Item
            key={each.block}
            health="warning"
            name={<b>{each.block}</b>}
            state={`until ${format.timeOf(each.until)} at the earliest`}
          >
            {explain(each)}
          </Item>
        ))}
      </ul>
    </Card>
  );
}

const explain = ({ node, since }: QuarantinedBlock) =>
  `Its Node ${node || "(without a valid name)"} is gone since ${format.timeOf(since)}; its pods may still use the block.`;

function listBlocks() {
  const owned = [...nodes.values()].flatMap(({ name, state, cidrs = [] }) =>
    cidrs.map((text) => ({ text, name, kind: state === "stuck" ? state : "node", title: `${text} ${name}` })),
  );
  const resting = (overview.value.quarantine?.blocks ?? []).map((each) => ({
    text: each.block,
    name: each.node,
    kind: "quarantined",
    title: `${each.block} in quarantine until ${format.timeOf(each.until)}. ${explain(each)}`,
  }));
  return [...owned, ...resting].map((each) => ({ ...each, ...parseCidr(each.text) }));
}

function findNetworks() {
  const all = listBlocks();
  const {
    pod_cidrs: texts = [],
    node_cidr_mask_size_ipv4: four,
    node_cidr_mask_size_ipv6: six,
  } = overview.value.networks ?? {};
  return texts.map((text) => {
    const { version, prefix, start, end } = parseCidr(text);
    const bits = Number(prefix);
    const blocks = all.filter((each) => each.version === version && each.start >= start && each.end <= end);
    const mask = version === 4 ? (four ?? 24) : (six ?? Math.min(64, bits + 16));
    return { text, bits, start, blockBits: Math.max(Number(blocks[0]?.prefix ?? mask), bits), blocks };
  });
}
