# SPDX-License-Identifier: Apache-2.0
"""The tables and figures of the papers as plain data, and how runs become them."""
