// Pod CIDRs: which block of the pod networks belongs to which Node.
import { parseCidr } from "cidr-tools";
import { useMemo } from "preact/hooks";
import * as format from "./format";
import { Card, Command, Empty, Usage, View } from "./parts";
import { nodeHref } from "./router";
import { nodes, overview, revision } from "./store";

const MAX_CELLS = 1_024;

type Network = ReturnType<typeof findNetworks>[number];

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

function Cell({ blocks: [first, ...more] }: { blocks: Network["owned"] }) {
  if (!first) return <span class={`square ${FREE}`} />;
  const blocks = [first, ...more];
  const title = blocks.map(({ text, node }) => `${text} ${node.name}`).join("\n");
  const color = blocks.some(({ node }) => node.state === "stuck") ? STUCK : USED;
  return (
    <a class={`square ${color}`} href={nodeHref(first.node.name)} title={title} aria-label={title} tabIndex={-1} />
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

function findNetworks() {
  const owned = [...nodes.values()].flatMap((node) =>
    (node.cidrs ?? []).map((text) => ({ node, text, ...parseCidr(text) })),
  );
  const [four, six] = overview.value.mask_sizes;
  return overview.value.pod_networks.map((text) => {
    const { version, prefix, start, end } = parseCidr(text);
    const bits = Number(prefix);
    const own = owned.filter((each) => each.version === version && each.start >= start && each.end <= end);
    const mask = version === 4 ? (four ?? 24) : (six ?? Math.min(64, bits + 16));
    return { text, bits, start, blockBits: Math.max(Number(own[0]?.prefix ?? mask), bits), owned: own };
  });
}
