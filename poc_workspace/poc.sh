#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A proof of concept on this machine: FLARE's server and four sites as processes, over mTLS. poc.sh --help
set -euo pipefail
KIND=poc
PROJECT=project_poc.yml
DEFAULT_PORT=8002
SITES="site-1 site-2 site-3 site-4"
TRIAL="--task support2"
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

set_paths() {
    KITS="$FOLDER/poc/fairflare_poc/prod_00"
    ADMIN="$KITS/admin@hub.org"
    LEAD="$KITS/lead@hub.org"
}

prepare_kits() { flare poc prepare -i "$FOLDER/project.yml" --force >/dev/null; }

start_kits() { flare poc start --no-wait >"$FOLDER/start.log" 2>&1 </dev/null; }

main "$@"
