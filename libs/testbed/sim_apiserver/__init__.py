"""The part of the Kubernetes API that we use, in memory; it passes the contract tests of the real server.

Served: nodes with status, leases, events, configmaps, certificatesigningrequests with approval and status
(and the signer kubernetes.io/kubelet-serving), access reviews, roles and bindings (enforced); namespaces,
pods with exec and log, deployments, daemonsets, statefulsets, services and the serviceaccounts of talos.dev,
as far as an installation needs them; servicecidrs; discovery, and nodes as a Table for kubectl.

Objects are JSON documents: fields without a rule are stored as they come, and the types of the fields that
this project writes are checked. Rejected as "not simulated" (422 with a cause): unknown query parameters,
move and copy of JSON Patch, strategic merge of lists other than taints, conditions and addresses.

Accepted without a look, where the real server validates: content of certificate requests, podCIDRs, Leases,
Events, ConfigMaps, ServiceCIDRs, workloads; what kubelets set (NodeRestriction); finalizers.

Missing (404): every other resource. Unlike the real server it records in managedFields only the labels,
annotations and taints of Nodes, serves no protobuf, has no controller except that signer and, if selected,
the one that removes the not-ready taint, sends bookmarks just before a watch ends, and lists each cause of
a rejection once.
"""
