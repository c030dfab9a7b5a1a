// Written by `make console-types` from services/console/core. Do not edit.

export type NodeState = "stuck" | "joining" | "ready" | "foreign";
export type InstanceState = "exists" | "off" | "gone" | "unknown";
export type RequestState = "pending" | "denied" | "failed" | "approved" | "issued";
export type BalancerState = "ready" | "waiting" | "blocked" | "deleting";
export type Health = "ok" | "busy" | "warning" | "bad" | "off";

export interface ServiceStatus {
  service: string;
  health: Health;
  text: string;
  lag?: number;
  lag_since?: number;
  errors?: Record<string, number>;
  leader?: string;
  trouble?: string;
  details?: string;
}

export interface Verdict {
  health: Health;
  title: string;
  text: string;
}

export interface Edge {
  source: string;
  target: string;
  is_query?: boolean;
  is_off?: boolean;
  rate?: number;
  lag?: number;
  lag_since?: number;
  is_late?: boolean;
  errors?: number;
}

export interface ConsumerStats {
  name: string;
  pending: number;
  unacknowledged: number;
  redelivered: number;
  waiting: number;
  delivered: number;
  acknowledged_sequence: number;
}

export interface StreamStats {
  messages: number;
  bytes: number;
  max_bytes: number;
  dead_letters: number;
  first_sequence: number;
  consumers: ConsumerStats[];
}

export interface ClusterNetworksObserved {
  stream_id: string;
  pod_cidrs?: string[];
  service_cidrs?: string[];
  node_cidr_mask_size_ipv4?: number | null;
  node_cidr_mask_size_ipv6?: number | null;
  observed_at: string;
}

export interface QuarantinedBlock {
  block: string;
  node: string;
  since: string;
  until: string;
}

export interface Quarantine {
  read_at: string;
  count: number;
  blocks: QuarantinedBlock[];
}

export interface DeadLetter {
  service: string;
  kind: string;
  name: string;
  subject: string;
  sequence: number;
  reason: string;
  payload: string;
  at: string;
}

export interface AccountReport {
  account: string;
  provider: string;
  failure?: string;
  instances?: Record<string, number>;
  requests_left?: number | null;
  rate_limit?: number | null;
}

export interface AccountRow {
  report: AccountReport;
  reported_at: number;
  round_at: number;
}

export interface BalancerRow {
  name: string;
  state: BalancerState;
  addresses?: string[];
  reason?: string;
}

export interface Overview {
  services: ServiceStatus[];
  states: Record<string, number>;
  requests: Record<string, number>;
  verdict: Verdict;
  places: ServiceStatus[];
  edges: Edge[];
  problems: string[];
  stream: StreamStats | null;
  networks: ClusterNetworksObserved | null;
  quarantine: Quarantine | null;
  dead_letters: DeadLetter[];
  accounts: AccountRow[];
  balancers: BalancerRow[];
  balancer_count: number;
}

export interface NodeRow {
  name: string;
  state: NodeState;
  created: number;
  step?: string;
  what?: string;
  why?: string;
  platform?: string;
  zone?: string;
  region?: string;
  type?: string;
  role?: string;
  addresses?: string[];
  cidrs?: string[];
  certificate?: RequestState;
  instance?: InstanceState;
  instance_why?: string;
  route?: string;
  rules?: string[];
  decided_by?: string;
  outcome?: string;
  took?: number;
}

export interface RequestRow {
  name: string;
  node: string;
  created: number;
  state: RequestState;
  outcome?: string;
  reason?: string;
  decided_at?: number;
  fault?: string;
}

export interface HistoryStep {
  at: number;
  observed?: number;
  enriched?: number;
  decided?: number;
  joined?: number;
  p50?: number;
  p99?: number;
  stuck?: number;
  unreachable?: number;
  dead?: number;
}

export interface Frame {
  version: number;
  now: number;
  is_complete: boolean;
  overview: Overview;
  nodes: NodeRow[];
  removed_nodes: string[];
  requests: RequestRow[];
  removed_requests: string[];
  history: HistoryStep[];
}

export interface Finding {
  fault: string;
  what: string;
  cause: string;
  fix: string;
}

export interface Decided {
  service: string;
  kind: string;
  name: string;
  uid?: string;
  outcome: string;
  reason: string;
  decided_at: string;
  next_check_at?: string | null;
  changes?: string[];
  rules?: string[];
}

export interface RecordedNodeEvent {
  node: string;
  uid: string;
  component: string;
  type: "Normal" | "Warning";
  reason: string;
  message: string;
  at: string;
}

export interface Change {
  kind: "added" | "removed";
  field: string;
  value: string;
}

export interface PlatformMetadata {
  platform?: string;
  hostname?: string;
  region?: string;
  zone?: string;
  instance_type?: string;
  instance_id?: string;
  provider_id?: string;
  spot?: boolean;
  internal_dns?: string;
  external_dns?: string;
  tags?: Record<string, string>;
}

export interface NodeDetail {
  row: NodeRow;
  hops: Record<string, number>;
  is_initialized: boolean;
  findings: Finding[];
  decisions: Decided[];
  recorded: RecordedNodeEvent[];
  recorded_since: number;
  requests: RequestRow[];
  changes: Change[] | null;
  machine: PlatformMetadata | null;
  machine_problem: string;
}
