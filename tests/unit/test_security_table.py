# SPDX-License-Identifier: Apache-2.0
"""docs/security.md says what leaves a site in every method, and says it of this version."""

from pathlib import Path

from fairflare import registry
from fairflare.describe import leaving_rows, leaving_table

DOC = Path(__file__).parents[2] / "docs" / "security.md"


def test_the_table_is_that_of_the_registry():
    text = DOC.read_text()
    shown = text.partition("<!-- leaving: begin -->\n")[2].partition("\n<!-- leaving: end -->")[0]
    assert shown == leaving_table(), "python -c 'from fairflare.describe import leaving_table; print(leaving_table())'"


def test_every_method_is_named_and_every_number_has_a_range():
    text, rows = DOC.read_text(), leaving_rows()
    for id in registry.methods():
        assert f"`{id}`" in text
    assert {"sharpness", "similarity/<layer>", "group_count/<group>", "minus_error"} <= {r["number"] for r in rows}
    assert all(" to " in r["range"] and r["meaning"] for r in rows)
