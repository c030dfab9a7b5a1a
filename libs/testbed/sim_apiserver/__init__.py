"""The part of the Kubernetes API that we use, in memory; it passes the contract tests of the real server.

Served: nodes with status, leases, events, configmaps, certificatesigningrequests with approval (and the
signer kubernetes.io/kubelet-serving), access and token reviews, roles and bindings (enforced); namespaces,
pods with exec and log, deployments, daemonsets, statefulsets, services and the serviceaccounts of talos.dev,
as far as an installation needs them; servicecidrs; discovery, and nodes and requests as a Table for kubectl.

Objects are JSON documents, stored as they come. Enforced: unique names, preconditions and versions, an uid,
podCIDR and providerID that stay, decisions of certificate requests that stay. Accepted without a look, where
the real server validates: names, labels and taints, types of fields, content of objects, namespaces, what
kubelets set (NodeRestriction); finalizers.

Rejected as "not simulated" (422 with a cause): unknown query parameters, selectors other than equality, move
and copy of JSON Patch, strategic merge of lists other than taints, conditions and addresses. Missing (404):
every other resource. Users have certificates: a token counts only in a token review.

Unlike the real server, a list has one page, and objects have no managedFields. It serves no protobuf, has no
controller except that signer and, if selected, the one that removes the not-ready taint, sends no bookmarks,
and reports one cause of a rejection.
"""
