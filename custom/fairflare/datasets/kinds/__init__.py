# SPDX-License-Identifier: Apache-2.0
"""What several data sets share: base classes and ways to deal examples out to sites."""
