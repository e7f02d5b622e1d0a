# SPDX-License-Identifier: Apache-2.0
"""Tasks on a user's own data; a file here that defines a concrete ``Task`` is found by being here."""
