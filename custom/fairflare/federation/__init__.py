# SPDX-License-Identifier: Apache-2.0
"""The round loop, its messages, the update gate, the state that survives a restart, the audit log and seeds."""
