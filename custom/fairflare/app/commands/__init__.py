# SPDX-License-Identifier: Apache-2.0
"""The commands of the command line, by subject: thin, and importing what is heavy where it is used."""
