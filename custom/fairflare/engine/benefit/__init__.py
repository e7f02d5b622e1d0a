# SPDX-License-Identifier: Apache-2.0
"""What joining gives each site: the federation's model against one that the site has trained alone."""
