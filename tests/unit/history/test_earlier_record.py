# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""A run record of an earlier release is read field by field, and written again as it was."""

from __future__ import annotations

import json
import pathlib

from rover_kf.api import codec
from rover_kf.api.records import RunRecord

EARLIER = pathlib.Path(__file__).with_name("earlier_record.json")
"""Each field has a value of its own, so that none can be taken for another."""


def test_a_record_of_an_earlier_release_loses_nothing():
    """Its names are those of the stored form, whatever the code calls them now."""
    text = EARLIER.read_text()
    found = codec.loads(RunRecord, text)
    assert json.loads(codec.dumps(found)) == json.loads(text)
    assert found.signature.image.startswith("text")
    assert found.windows[0].samples_per_second > 0
