# SPDX-License-Identifier: Apache-2.0
"""The round: loop, site, update validation, messages, checkpoint, audit log; ``setup`` makes the objects of a run from
its configuration."""
