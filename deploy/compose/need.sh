#!/bin/sh
# need.sh WHAT TOOL...: exits with 1 and prints what is missing, unless all tools exist and the container engine answers.
set -eu
what=$1
shift

complain() {
  echo "$what: $1" >&2
  exit 1
}

for tool in "$@"; do
  if [ "$tool" = compose ]; then
    docker compose version >/dev/null 2>&1 || complain "docker has no compose plugin (v2.24 or newer);
on a Debian machine 'sudo make compose-local' needs neither engine nor compose nor a registry of images"
  elif ! command -v "$tool" >/dev/null 2>&1; then
    complain "there is no '$tool' on the PATH"
  elif [ "$tool" = docker ] && ! answer=$(docker version --format '{{.Server.Version}}' 2>&1); then
    complain "no container engine answers: $(echo "$answer" | tail -n 1)
Start it, or say where it is (DOCKER_HOST); on a Debian machine 'sudo make compose-local' brings its own"
  fi
done
