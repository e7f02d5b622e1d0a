#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A provisioned federation: what every hospital would do on its own machine, done on this one. provisioned.sh --help
set -euo pipefail
if [ "${BASH_SOURCE[0]}" = "$0" ]; then  # else relay.sh has said what differs
    KIND=provisioned
    PROJECT=project.yml
    DEFAULT_PORT=8102
    RELAYS=""
fi
SITES="hospital-a hospital-b hospital-c"
TRIAL="--task support2:dirichlet --sites 3 --set clients=hospital-a,hospital-b,hospital-c"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

set_paths() {
    KITS="$FOLDER/sites"
    ADMIN="$KITS/admin@hub.org"
    LEAD="$KITS/lead@clinic-a.org"
}

# provisioned/ keeps the root key and stays with the hub; the kits are what the hub hands to each participant.
prepare_kits() {
    flare provision -p "$FOLDER/project.yml" -w "$FOLDER/provisioned" --force >/dev/null
    cp -R "$FOLDER/provisioned/fairflare/prod_00" "$KITS"
}

start_kits() {
    local name
    for name in localhost $RELAYS $SITES; do
        (cd "$KITS/$name" && ./startup/start.sh >start.log 2>&1 </dev/null)
    done
}

main "$@"
