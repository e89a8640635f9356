"""Requests made from the endpoint's own description: none of them may break it."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from fake_engine import FakeEngine
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from localspec.server.app import create_app
from localspec.server.openapi import describe
from localspec.server.security import Access

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]

app = create_app(FakeEngine(context_length=512), Access(hosts=frozenset(["testserver"])))
schema = schemathesis.openapi.from_asgi("/openapi.json", app)


@schema.parametrize()
@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.filterwarnings("ignore")
def test_the_description_holds(case: Any) -> None:
    case.call_and_validate(checks=CHECKS)


def test_every_route_is_described() -> None:
    described = set(describe()["paths"])
    for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/models"):
        assert path in described
