// Which rule of --cloud-config matches which Nodes.
import { useMemo } from "preact/hooks";
import * as format from "./format";
import { Card, Command, Empty, View } from "./parts";
import { nodeHref } from "./router";
import { nodes, revision } from "./store";

const SHOWN = 6; // Nodes of one rule

export function Rules() {
  const rules = useMemo(groupByRule, [revision.value]);
  return (
    <View title="Rules">
      {rules.length === 0 && (
        <Empty title="No rule matches a Node">
          Rules are under transformations in the --cloud-config file. <Command text="talos-ccm render --help" />
        </Empty>
      )}
      {rules.map(([rule, names]) => (
        <Card key={rule} title={rule} note={`${format.count(names.length)} of ${format.plural(nodes.size, "Node")}`}>
          <p class="flex flex-wrap gap-x-4 gap-y-1">
            {names.slice(0, SHOWN).map((name) => (
              <a key={name} href={nodeHref(name)}>
                {name}
              </a>
            ))}
            {names.length > SHOWN && (
              <a href={`#/nodes?q=${encodeURIComponent(rule)}`}>and {format.count(names.length - SHOWN)} more</a>
            )}
          </p>
        </Card>
      ))}
    </View>
  );
}

function groupByRule(): [rule: string, names: string[]][] {
  const matches = [...nodes.values()].flatMap(({ name, rules = [] }) => rules.map((rule) => ({ rule, name })));
  const groups = [...Map.groupBy(matches, (each) => each.rule)];
  return groups
    .map(([rule, found]): [string, string[]] => [rule, found.map((each) => each.name).sort(format.compareText)])
    .sort((a, b) => b[1].length - a[1].length || format.compareText(a[0], b[0]));
}
