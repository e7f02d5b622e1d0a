# SPDX-License-Identifier: Apache-2.0
"""What is drawn rather than read: anatomy, bleeds, cameras, digits and poor image quality."""
