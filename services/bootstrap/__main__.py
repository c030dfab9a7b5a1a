"""`python -m services.bootstrap --namespace NS --prefix NAME --out DIR`: runs once, or with --keep always.

It runs as the init container of each NATS pod (without --keep) and as its sidecar (with --keep). NAME is the
chart's full name; the environment variable POD_NAME has the pod's name. Both containers and nats-server run
as the same user and mount one volume at the same path DIR, because nats.conf refers to its files by that
path. nats-server runs with `-c DIR/nats.conf` and stores in --store-dir, a volume of twice --store-bytes.
Files in DIR: nats.conf, tls.crt, tls.key, ca.crt, trusted.crt, system.nk.

It creates missing objects in Kubernetes: a Secret NAME-nats-<user> with `seed.nk` for each service, for
`cloud-<account>` of each of --cloud-accounts, and for the read-only user `reader`; a Secret NAME-nats-ca with
`tls.crt` and `tls.key`; a ConfigMap NAME-nats-ca with `ca.crt`. Server certificates are in no Secret, but in
DIR. Its permissions are in resource_names.py, the other flags such as --replicas in --help.

A service gets --nats-url=tls://NAME-nats.NS.svc:4222, --nats-nkey-file and --nats-ca-file. With --keep it
serves /livez, /readyz and /metrics on port 10464. With --files it needs no Kubernetes, as for compose.
"""

import sys

from services.bootstrap.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
