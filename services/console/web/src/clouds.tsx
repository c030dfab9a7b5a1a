// Cloud accounts, and the load balancers of Services.
import * as format from "./format";
import type { Account, Health } from "./model";
import { Age, Card, Empty, Mark } from "./parts";
import { hasData, overview } from "./store";

const TONES: Record<string, Health> = { ready: "ok", waiting: "busy", blocked: "bad", deleting: "off" };
const TEXTS: Record<string, string> = { exists: "running", "shut-down": "off", "not-asked": "not asked yet" };

export function Clouds() {
  const { accounts, balancers } = overview.value;
  return (
    <div class="view">
      <h1>Clouds</h1>
      {!accounts.length && (
        <Empty title={hasData.value ? "No cloud account" : "Waiting for the console"}>An account reports here within half a minute of its start.</Empty>
      )}
      {accounts.map((each) => (
        <AccountCard key={each.report.account} account={each} />
      ))}
      {balancers.length > 0 && (
        <Card title="Load balancers" note={format.plural(balancers.length, "Service")}>
          <ul class="attention">
            {balancers.map(({ name, state, addresses = [], reason }) => (
              <li key={name}>
                <Mark tone={TONES[state]!} />
                <div>
                  <b>{name}</b> <span class="muted">{state}</span>
                  <p>{reason || addresses.join(", ") || "no address yet"}</p>
                </div>
              </li>
            ))}
          </ul>
        </Card>
      )}
    </div>
  );
}

function AccountCard({ account: { report, round_at: round } }: { account: Account }) {
  const status = overview.value.services.find((each) => each.service === `cloud-${report.account}`);
  const counts = Object.entries(report.instances ?? {}).filter(([, count]) => count > 0);
  return (
    <Card title={report.account} note={report.provider}>
      <ul class="attention">
        <li>
          <Mark tone={status?.health ?? "off"} />
          <div>
            <b>{status?.health === "bad" ? status.text : "The cloud answers"}</b>
            <p>
              <a href="#/nodes?sort=-instance">Servers of Nodes</a>: {counts.map(([state, count]) => `${count} ${TEXTS[state] ?? state}`).join(", ") || "none"}. Last query: {round ? <Age since={round} /> : "none"}
              {round > 0 && " ago"}.{report.rate_limit && ` Requests left: ${format.count(report.requests_left ?? 0)} of ${format.count(report.rate_limit)}.`}
            </p>
          </div>
        </li>
      </ul>
    </Card>
  );
}
