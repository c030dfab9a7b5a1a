// What waits for a service, and what fails in it.
import * as format from "./format";
import type { ServiceStatus } from "../generated/state";
import { clock } from "./store";

const LATE_SECONDS = 15;
const SHORT_SECONDS = 1; // messages that wait no longer are on their way

interface Wait {
  text: string; // "" if nothing waits
  isLate: boolean;
}

export function findWait({ health, lag = 0, lag_since: since = 0 }: ServiceStatus): Wait {
  const seconds = since ? clock.value - since : 0;
  if (!lag || health === "off" || (since && seconds < SHORT_SECONDS)) return { text: "", isLate: false };
  const text = `${format.count(lag)} ${lag === 1 ? "waits" : "wait"}${since ? `, ${format.age(seconds)}` : ""}`;
  return { text, isLate: seconds > LATE_SECONDS };
}

/** The errors of the last five minutes, or those since the processes began; "" without any. */
export function describeErrors({ errors, total_errors: total }: ServiceStatus): string {
  if (errors) return `Errors in the last five minutes: ${list(errors)}`;
  return total ? `Errors since the start: ${list(total)}` : "";
}

function list(errors: Record<string, number>): string {
  const causes = Object.entries(errors);
  return causes.map(([cause, count]) => `${cause} ${format.count(count)}`).join(", ");
}
