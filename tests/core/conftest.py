"""The arrays that the arithmetic is tested on."""

from __future__ import annotations

import pytest
from namespaces import FRAMEWORK, Namespace, make_namespace


@pytest.fixture(scope="session", params=["numpy", FRAMEWORK])
def namespace(request: pytest.FixtureRequest) -> Namespace:
    return make_namespace(request.param)
