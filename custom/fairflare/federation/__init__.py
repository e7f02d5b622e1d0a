# SPDX-License-Identifier: Apache-2.0
"""One federation: round loop, site, update gate, messages, participation, state, audit log."""
