// Cloud accounts, and the load balancers of Services.
import * as format from "./format";
import type { AccountRow, Health } from "../generated/state";
import { Age, Card, Empty, Item, View } from "./parts";
import { overview } from "./store";

const HEALTH: Record<string, Health> = { ready: "ok", waiting: "busy", blocked: "bad", deleting: "off" };
const TEXTS: Record<string, string> = { exists: "running", "shut-down": "off", "not-asked": "not asked yet" };

export function Clouds() {
  const { accounts, balancers, balancer_count: all } = overview.value;
  const shown = all > balancers.length ? `${format.count(balancers.length)} of ` : "";
  return (
    <View title="Clouds">
      {!accounts.length && (
        <Empty title="No cloud account">An account reports here within half a minute of its start.</Empty>
      )}
      {accounts.map((each) => (
        <AccountCard key={each.report.account} account={each} />
      ))}
      {balancers.length > 0 && (
        <Card title="Load balancers" note={shown + format.plural(all, "Service")}>
          <ul>
            {balancers.map(({ name, state, addresses = [], reason }) => (
              <Item key={name} health={HEALTH[state]!} name={<b>{name}</b>} state={state}>
                {reason || addresses.join(", ") || "no address yet"}
              </Item>
            ))}
          </ul>
        </Card>
      )}
    </View>
  );
}

function AccountCard({ account: { report, round_at: round } }: { account: AccountRow }) {
  const status = overview.value.services.find((each) => each.service === `cloud-${report.account}`);
  const counts = Object.entries(report.instances ?? {}).filter(([, count]) => count > 0);
  const servers = counts.map(([state, count]) => `${count} ${TEXTS[state] ?? state}`).join(", ");
  const left = `Requests left: ${format.count(report.requests_left ?? 0)} of ${format.count(report.rate_limit ?? 0)}.`;
  return (
    <Card title={report.account} note={report.provider}>
      <ul>
        <Item
          health={status?.health ?? "off"}
          name={<b>{status?.health === "bad" ? status.text : round ? "The cloud answers" : "No failure"}</b>}
        >
          <a href="#/nodes?sort=-instance">Servers of Nodes</a>: {servers || "none"}. Last query:{" "}
          {round ? <Age since={round} /> : "none"}
          {round > 0 && " ago"}. {report.rate_limit && left}
        </Item>
      </ul>
    </Card>
  );
}
