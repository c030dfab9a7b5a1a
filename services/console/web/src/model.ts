// What the server sends: services/console/core/console_state.py has the same names.

export type NodeState = "stuck" | "joining" | "ready" | "foreign";
export type RequestState = "pending" | "denied" | "failed" | "approved" | "issued";
export type Health = "ok" | "busy" | "warning" | "bad" | "off";

export interface NodeRow {
  name: string;
  state: NodeState;
  created: number;
  step?: string;
  what?: string;
  fault?: string;
  why?: string;
  platform?: string;
  zone?: string;
  region?: string;
  type?: string;
  role?: string;
  addresses?: string[];
  cidrs?: string[];
  certificate?: RequestState;
  instance?: "exists" | "off" | "gone" | "unknown";
  instance_why?: string;
  route?: string;
  rules?: string[];
  decided_by?: string;
  outcome?: string;
  decided_at?: number;
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
  has_facts?: boolean;
}

export interface ServiceStatus {
  service: string;
  health: Health;
  text: string;
  waiting?: number;
  oldest?: number;
  errors?: number;
  leader?: string;
  processes?: number;
}

export interface DeadLetter {
  service: string;
  kind: string;
  name: string;
  reason: string;
  at: number;
}

export interface Account {
  report: {
    account: string;
    provider: string;
    failure?: string;
    instances?: Record<string, number>;
    requests_left?: number;
    rate_limit?: number;
  };
  reported_at: number;
  round_at: number;
}

export interface Balancer {
  name: string;
  state: "ready" | "waiting" | "blocked" | "deleting";
  addresses?: string[];
  reason?: string;
}

export interface Overview {
  services: ServiceStatus[];
  states: Partial<Record<NodeState, number>>;
  requests: Partial<Record<RequestState, number>>;
  totals: Record<string, number>;
  problems: string[];
  messages: number;
  bytes: number;
  max_bytes: number;
  pod_networks: string[];
  service_networks: string[];
  mask_sizes: [number | null, number | null];
  dead_letters: DeadLetter[];
  accounts: Account[];
  balancers: Balancer[];
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

export interface Decision {
  service: string;
  outcome: string;
  reason: string;
  decided_at: string;
  next_check_at?: string;
  changes?: string[];
}

export interface Taint {
  key: string;
  value?: string;
  effect: string;
}

export interface KubeNode {
  metadata: { name: string; uid?: string; labels?: Record<string, string>; annotations?: Record<string, string> };
  spec?: { providerID?: string; podCIDRs?: string[]; taints?: Taint[] };
  status?: { addresses?: { type: string; address: string }[] };
}

export interface Machine {
  event: string;
  facts?: MachineFacts;
  last_known?: MachineFacts;
  fault?: { kind: string; step: string; endpoint?: string; message: string };
  attempt?: number;
  retry_at?: string;
}

export interface MachineFacts {
  platform: Record<string, unknown>;
  addresses?: { address: string; link: string }[];
  node_name?: string;
  queried_at: string;
  node_ip: string;
}

export interface NodeDetail {
  row: NodeRow;
  hops: Record<string, number>;
  findings: Finding[];
  decisions: Decision[];
  dead_letters: Record<string, string>;
  requests: RequestRow[];
  before: KubeNode | null;
  after: KubeNode | null;
  machine: Machine | null;
}
