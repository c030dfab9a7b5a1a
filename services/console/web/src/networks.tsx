// Pod CIDRs: which block of the pod networks belongs to which Node.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { NodeRow } from "./model";
import { Card, Command, Empty } from "./parts";
import { nodeHref } from "./router";
import { hasData, nodes, overview, revision } from "./store";
import { Usage } from "./overview";

const MAX_CELLS = 1_024;

interface Block {
  first: bigint;
  bits: number;
  node: NodeRow;
  text: string;
}

interface Network {
  text: string;
  bits: number;
  first: bigint;
  mask: number; // of a block
  blocks: Block[];
}

export function parseCidr(text: string): { first: bigint; bits: number; width: number } | null {
  const [address = "", length = ""] = text.split("/");
  const width = address.includes(":") ? 128 : 32;
  const value = width === 32 ? parse4(address) : parse6(address);
  const bits = Number(length);
  if (value === null || !length || !Number.isInteger(bits) || bits < 0 || bits > width) return null;
  const host = BigInt(width - bits);
  return { first: (value >> host) << host, bits, width };
}

function parse4(address: string): bigint | null {
  const parts = address.split(".").map(Number);
  if (parts.length !== 4 || parts.some((part) => !(part >= 0 && part < 256))) return null;
  return parts.reduce((sum, part) => (sum << 8n) + BigInt(part), 0n);
}

function parse6(address: string): bigint | null {
  const [head = "", tail] = address.split("::", 2);
  const left = head ? head.split(":") : [];
  const right = tail ? tail.split(":") : [];
  const missing = tail === undefined ? 0 : 8 - left.length - right.length;
  const parts = [...left, ...Array<string>(Math.max(0, missing)).fill("0"), ...right];
  if (parts.length !== 8 || parts.some((part) => !/^[0-9a-f]{1,4}$/i.test(part))) return null;
  return parts.reduce((sum, part) => (sum << 16n) + BigInt(`0x${part}`), 0n);
}

function findNetworks(): Network[] {
  const blocks: Block[] = [];
  for (const node of nodes.values()) {
    for (const text of node.cidrs ?? []) {
      const parsed = parseCidr(text);
      if (parsed) blocks.push({ ...parsed, node, text });
    }
  }
  const { pod_networks: pods, mask_sizes: masks } = overview.value;
  return pods.flatMap((text) => {
    const parsed = parseCidr(text);
    if (!parsed) return [];
    const size = BigInt(parsed.width - parsed.bits);
    const family = text.includes(":");
    const own = blocks.filter((block) => block.text.includes(":") === family && block.first >> size === parsed.first >> size);
    const mask = own[0]?.bits ?? masks[family ? 1 : 0] ?? (family ? Math.min(64, parsed.bits + 16) : 24);
    return [{ text, bits: parsed.bits, first: parsed.first, mask: Math.max(mask, parsed.bits), blocks: own }];
  });
}

export function Networks() {
  const networks = useMemo(findNetworks, [revision.value, overview.value.pod_networks.join()]);
  const isFound = networks.length > 0;
  return (
    <div class="view">
      <h1>Pod CIDRs</h1>
      {!isFound && (
        <Empty title={hasData.value ? "No pod network is known" : "Waiting for the console"}>
          metadata publishes the networks of the cluster where certificates are approved or pod CIDRs allocated.
        </Empty>
      )}
      {networks.map((network) => (
        <NetworkCard key={network.text} network={network} />
      ))}
      {isFound && (
        <Card title="Only the command line knows" note="not in the stream">
          <p class="with-commands">
            Blocks in quarantine, and claims of Nodes without a block: <Command text="talos-ccm status ipam" />
          </p>
        </Card>
      )}
    </div>
  );
}

function NetworkCard({ network }: { network: Network }) {
  const width = network.text.includes(":") ? 128 : 32;
  const total = 2 ** (network.mask - network.bits);
  const cells = Math.min(total, MAX_CELLS);
  const perCell = total / cells;
  const filled = useMemo(() => {
    const found = new Map<number, Block[]>();
    for (const block of network.blocks) {
      const index = Number((block.first - network.first) >> BigInt(width - network.mask));
      const cell = Math.floor(index / perCell);
      found.set(cell, [...(found.get(cell) ?? []), block]);
    }
    return found;
  }, [network]);
  return (
    <Card title={network.text} note={`blocks of /${network.mask}`}>
      <Usage
        label="Blocks"
        used={network.blocks.length}
        most={total}
        note={`${format.count(network.blocks.length)} of ${format.count(total)} belong to Nodes`}
      />
      <div class="blocks" role="group" aria-label={`Map of ${network.text}: ${network.blocks.length} of ${total} blocks belong to Nodes`}>
        {Array.from({ length: cells }, (_, cell) => {
          const own = filled.get(cell);
          if (!own) return <span key={cell} />;
          const title = own.map((block) => `${block.text} ${block.node.name}`).join("\n");
          const tone = own.some((block) => block.node.state === "stuck") ? "stuck" : "used";
          return (
            <a key={cell} class={tone} href={nodeHref(own[0]!.node.name)} title={title} tabIndex={-1}>
              <span class="visually-hidden">{title}</span>
            </a>
          );
        })}
      </div>
      <p class="legend">
        <span class="swatch used" /> of a Node <span class="swatch stuck" /> of a stuck Node <span class="swatch" /> free
        {perCell > 1 && `; one square is ${format.count(perCell)} blocks`}
      </p>
    </Card>
  );
}
