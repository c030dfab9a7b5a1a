// Which rule of --cloud-config matches which Nodes.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import type { NodeRow } from "./model";
import { Card, Command, Empty } from "./parts";
import { nodeHref } from "./router";
import { hasData, nodes, revision } from "./store";

const SHOWN = 6; // Nodes of one rule

export function Rules() {
  const rules = useMemo(groupByRule, [revision.value]);
  return (
    <div class="view">
      <h1>Rules</h1>
      {rules.length === 0 && (
        <Empty title={hasData.value ? "No rule matches a Node" : "Waiting for the console"}>
          Rules are under transformations in the --cloud-config file. <Command text="talos-ccm render --help" />
        </Empty>
      )}
      {rules.map(([rule, matched]) => (
        <Card key={rule} title={rule} note={`${format.count(matched.length)} of ${format.plural(nodes.size, "Node")}`}>
          <p class="matched">
            {matched.slice(0, SHOWN).map((row) => (
              <a key={row.name} href={nodeHref(row.name)}>
                {row.name}
              </a>
            ))}
            {matched.length > SHOWN && (
              <a href={`#/nodes?q=${encodeURIComponent(rule)}`}>and {format.count(matched.length - SHOWN)} more</a>
            )}
          </p>
        </Card>
      ))}
      {rules.length > 0 && (
        <p class="muted">A rule that matches no Node is not in the stream. To try one: talos-ccm render FILE --from-cluster NODE.</p>
      )}
    </div>
  );
}

function groupByRule(): [string, NodeRow[]][] {
  const found = new Map<string, NodeRow[]>();
  for (const row of nodes.values()) {
    for (const rule of row.rules ?? []) {
      const matched = found.get(rule);
      if (matched) matched.push(row);
      else found.set(rule, [row]);
    }
  }
  for (const matched of found.values()) matched.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  return [...found].sort((a, b) => b[1].length - a[1].length || (a[0] < b[0] ? -1 : 1));
}
