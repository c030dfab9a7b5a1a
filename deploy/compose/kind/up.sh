#!/bin/sh
# up.sh: creates a kind cluster with external cloud provider and simulated Talos machines, and installs the chart.
# Run it again to build, load and install the current version.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
name=talos-ccm
release=talos-cloud-controller-manager

docker build --tag talos-ccm-testbed:dev --target testbed "$root"
docker build --tag talos-ccm:dev --target runtime "$root"
if ! kind get clusters | grep -qx "$name"; then
  kind create cluster --config "$here/cluster.yaml"
fi
kind load docker-image --name "$name" talos-ccm:dev talos-ccm-testbed:dev

in_cluster() {
  kubectl --context "kind-$name" "$@"
}

# Services need DNS to connect to NATS before any Node is initialized. CoreDNS tolerates the taint on Talos, but not with kubeadm.
in_cluster --namespace kube-system patch deployment coredns --patch '{"spec": {"template": {"spec": {"tolerations": [
  {"key": "CriticalAddonsOnly", "operator": "Exists"},
  {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"},
  {"key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Exists", "effect": "NoSchedule"}]}}}}'
docker run --rm --network none talos-ccm-testbed:dev \
  python -m libs.testbed.compose.kind_secrets kube-system "$release-talos-secrets" | in_cluster apply --filename -
in_cluster apply --filename "$here/machines.yaml"
in_cluster wait --for condition=established --timeout 60s crd/serviceaccounts.talos.dev
helm upgrade --install "$release" "$root/deploy/k8s/chart" --kube-context "kind-$name" --namespace kube-system \
  --values "$here/values.yaml" --wait --timeout 5m
# Pods can be scheduled now that the Nodes are initialized.
in_cluster --namespace kube-system rollout status deployment/coredns --timeout 3m
in_cluster get nodes --output \
  custom-columns='NAME:.metadata.name,PROVIDER:.spec.providerID,ADDRESSES:.status.addresses[*].address,TAINTS:.spec.taints[*].key'
in_cluster get certificatesigningrequests
