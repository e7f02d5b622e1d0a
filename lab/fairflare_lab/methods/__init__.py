# SPDX-License-Identifier: Apache-2.0
"""Methods beside those of the house: a file each; a file here that declares a method is found by being here."""
