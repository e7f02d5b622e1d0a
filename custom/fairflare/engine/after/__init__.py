# SPDX-License-Identifier: Apache-2.0
"""What may be done with a run's model after its last round: recalibration, or thresholds, of each site or group."""
