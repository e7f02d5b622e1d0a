# SPDX-License-Identifier: Apache-2.0
"""How the server weighs and combines: one file per paper or family, pure functions of accepted replies and state."""
