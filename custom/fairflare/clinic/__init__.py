# SPDX-License-Identifier: Apache-2.0
"""What a hospital brings: site file, datalists, preflight, networks, metrics, and tasks on its own data."""
