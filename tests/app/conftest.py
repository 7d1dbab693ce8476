"""The example study, opened once per worker."""

from collections.abc import Iterator

import pytest

from app.jobs.launch import EXAMPLE_BUNDLE
from storage.bundles.bundle_cache import cache_bundle
from storage.engine import Database, open_database


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """The shipped study, opened as the app opens it: without the checks of a foreign bundle, which `-m ci` makes."""
    bundle = cache_bundle(EXAMPLE_BUNDLE, cache=tmp_path_factory.mktemp("shipped"))
    db = open_database(bundle.url, read_only=True)
    yield db
    db.dispose()
