#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# provisioned.sh with two of the three hospitals behind a relay, which listens on the port after the server's.
set -euo pipefail
KIND=relay
PROJECT=project_relay.yml
DEFAULT_PORT=8202
RELAYS=region
. "$(dirname "${BASH_SOURCE[0]}")/provisioned.sh"
