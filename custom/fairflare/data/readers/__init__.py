# SPDX-License-Identifier: Apache-2.0
"""Files and tables as they lie on disk, one format or data set per file."""
