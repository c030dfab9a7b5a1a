"""`python -m services.bootstrap --namespace NS --prefix NAME --out DIR`: once, or with --keep for ever.

Init container of each NATS pod (without --keep), then its sidecar (the same arguments and --keep). NAME is
the chart's full name; POD_NAME, from the environment, the pod's. Both containers and nats-server run as one
user and mount one volume at the same path DIR: the configuration names its files by that path, and
nats-server is started with `-c DIR/nats.conf`. It stores in --store-dir, a volume of twice --store-bytes.
Made in DIR: nats.conf, tls.crt, tls.key, ca.crt, trusted.crt, system.nk.

Made in Kubernetes, where it is missing: a Secret NAME-nats-<user> with `seed.nk` for each service and for
`reader`, who only looks; a Secret NAME-nats-ca with `tls.crt` and `tls.key`; a ConfigMap NAME-nats-ca with
`ca.crt`. It asks for no Secret of a server: each pod's certificate stays in its DIR. What it may do in
Kubernetes is in rights.py; what else it can be told, such as --replicas, in --help.

A service is given --nats-url=tls://NAME-nats.NS.svc:4222, --nats-nkey-file and --nats-ca-file. With --keep,
/livez, /readyz and /metrics are served on 10464. With --files it needs no Kubernetes, as for compose.
"""

import sys

from services.bootstrap.run import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
