"""The part of the Hetzner Cloud API that reads servers and manages load balancers and routes, in memory.

Read: servers, networks, ssh_keys, firewalls, volumes, images, load_balancers, certificates,
load_balancer_types and locations by id and as lists, with pages, `name`, `type` and `label_selector`.
Written: load balancers with all their actions, certificates, and routes of networks. One action of an
object runs at a time. Several projects with tokens; their rate limits with headers, their quotas, and a
journal of changes; faults. The objects have all fields of hcloud-go's schema. Not served: balancers with
prepared Primary IPs, and every other path (404 in the API's form).
"""
