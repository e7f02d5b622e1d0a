# SPDX-License-Identifier: Apache-2.0
"""The benefit of joining for each site: the federation's model against one that the site has trained alone."""
