// Pod CIDRs: which block of the pod networks belongs to which Node.
import { parseCidr } from "cidr-tools";
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { NodeRow } from "../generated/state";
import { Card, Command, Empty, Usage, View } from "./parts";
import { nodeHref } from "./router";
import { nodes, overview, revision } from "./store";

const MAX_CELLS = 1_024;

interface Block {
  text: string;
  version: number; // 4 or 6
  bits: number;
  start: bigint;
  end: bigint;
}

interface Network extends Block {
  blockBits: number;
  owned: (Block & { node: NodeRow })[];
}

export function Networks() {
  const networks = useMemo(findNetworks, [revision.value, overview.value.pod_networks.join()]);
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
      {networks.length > 0 && (
        <Card title="Only the command line knows" note="not in the stream">
          Blocks in quarantine, and claims of Nodes without a block: <Command text="talos-ccm status ipam" />
        </Card>
      )}
    </View>
  );
}

function NetworkCard({ network }: { network: Network }) {
  const { text, owned, blockBits } = network;
  const total = 2 ** (blockBits - network.bits);
  const perCell = Math.max(1, total / MAX_CELLS);
  const filled = Map.groupBy(owned, (block) => {
    const index = (block.start - network.start) / (block.end - block.start + 1n);
    return Math.floor(Number(index) / perCell);
  });
  const used = `${format.count(owned.length)} of ${format.count(total)} belong to Nodes`;
  return (
    <Card title={text} note={`blocks of /${blockBits}`}>
      <Usage label="Blocks" used={owned.length} most={total} note={used} />
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
        <Legend color={USED}>of a Node</Legend>
        <Legend color={STUCK}>of a stuck Node</Legend>
        <Legend color={FREE}>free</Legend>
        {perCell > 1 && <span>one square is {format.count(perCell)} blocks</span>}
      </p>
    </Card>
  );
}

const USED = "border-accent bg-accent";
const STUCK = "border-bad bg-bad";
const FREE = "bg-raised";

function Cell({ blocks }: { blocks: Network["owned"] }) {
  const square = "aspect-square rounded-sm border";
  const [first] = blocks;
  if (!first) return <span class={`${square} ${FREE}`} />;
  const title = blocks.map((block) => `${block.text} ${block.node.name}`).join("\n");
  const color = blocks.some((block) => block.node.state === "stuck") ? STUCK : USED;
  return (
    <a class={`${square} ${color}`} href={nodeHref(first.node.name)} title={title} tabIndex={-1}>
      <span class="sr-only">{title}</span>
    </a>
  );
}

function Legend({ color, children }: { color: string; children: string }) {
  return (
    <span class="flex items-center gap-1.5">
      <span class={`size-3 rounded-sm border ${color}`} />
      {children}
    </span>
  );
}

function findNetworks(): Network[] {
  const owned = [...nodes.values()].flatMap((node) =>
    (node.cidrs ?? []).flatMap(parse).map((block) => ({ ...block, node })),
  );
  return overview.value.pod_networks.flatMap(parse).map((network) => {
    const { version, bits, start, end } = network;
    const own = owned.filter((each) => each.version === version && each.start >= start && each.end <= end);
    const [four, six] = overview.value.mask_sizes;
    const mask = version === 4 ? (four ?? 24) : (six ?? Math.min(64, bits + 16));
    return { ...network, blockBits: Math.max(own[0]?.bits ?? mask, bits), owned: own };
  });
}

function parse(text: string): Block[] {
  try {
    const { version, prefix, start, end } = parseCidr(text);
    return [{ text, version, bits: Number(prefix), start, end }];
  } catch {
    return []; // not a network: nothing to draw
  }
}
