"""What editors and client libraries send, played against the fake engine: see `clients/README.md`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from serving import serving

from localspec.server.security import Access

sys.path.insert(0, str(Path(__file__).parent / "clients"))

import replay

KEY = "sesame"


@pytest.mark.parametrize(
    ("options", "key"),
    [({}, None), ({}, KEY), ({"thinks": True}, None), ({"fills": True}, None)],
    ids=["plain", "with a key", "a model that thinks", "a model that fills in"],
)
def test_every_client_is_served(
    capsys: pytest.CaptureFixture[str], options: dict[str, Any], key: str | None
) -> None:
    with serving(FakeEngine(**options), Access(key=key)) as url:
        code = replay.main([url, "--timeout", "30", *(["--api-key", key] if key else [])])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, [line for line in lines if line.startswith("FAIL")]
    assert int(lines[-1].split()[0]) > 80
