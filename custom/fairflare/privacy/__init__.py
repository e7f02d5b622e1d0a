# SPDX-License-Identifier: Apache-2.0
"""What may leave a site: minimum counts, and an allow-list for every number."""
