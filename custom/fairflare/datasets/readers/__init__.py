# SPDX-License-Identifier: Apache-2.0
"""Published files and tables as they lie on disk, one format or data set per file."""
