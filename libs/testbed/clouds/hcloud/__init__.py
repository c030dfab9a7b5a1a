"""The part of the Hetzner Cloud API that reads servers and what outlives them, in memory.

Served: servers, networks, ssh_keys, firewalls, volumes and images by id and as lists, with pages, `name` and
`type`; several projects with tokens; the rate limit of a project with its headers; faults. The objects have
all fields of hcloud-go's schema. Not served: writes (403 token_readonly), `label_selector`, actions, every
other path (404 in the API's form).
"""
