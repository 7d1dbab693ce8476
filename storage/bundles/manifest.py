"""The manifest of a bundle: `manifest.json`. The file format is described in `storage.bundles.read`."""

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from emtc_core.errors import StorageError
from storage.bundles.contents import Contents
from storage.guards import shorten

FORMAT: Final = "emtc-bundle"
VERSION: Final = 2
MANIFEST: Final = "manifest.json"
STUDY: Final = "study.db"
"""Names of the two files in a bundle."""
ABOUT: Final = (
    "Runs of EMTC Lab. View them with: emtc open FILE. Import them into your database with: "
    "emtc open FILE --import. study.db is a normal SQLite database."
)

ShortText = Annotated[str, Field(max_length=80)]


class _Part(BaseModel):
    """A part of the manifest. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True)


class StudyFile(_Part):
    """Size [bytes] and checksum of `study.db`, uncompressed."""

    size: Annotated[int, Field(ge=1)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class BundledRun(_Part):
    """A run in the bundle, with the columns of `runs` that describe it."""

    id: str
    name: str
    env: str
    map: str
    algo: str
    seed: int
    status: str
    env_steps: int
    sweep_id: str | None


class BundleManifest(_Part):
    """A manifest. Apart from `study`, its values are only for people; the database contains the data."""

    format: Literal["emtc-bundle"] = FORMAT
    version: Literal[2] = VERSION
    about: str = ABOUT
    """How to open the file."""
    made_at: ShortText
    made_by: ShortText
    """Version of EMTC Lab that wrote the bundle."""
    contents: Contents
    runs: list[BundledRun]
    study: StudyFile


class _Format(_Part):
    """The keys that the manifest of every format version has."""

    format: Literal["emtc-bundle"]
    version: int


def parse_manifest(content: bytes, name: str) -> BundleManifest:
    """Parse a manifest.

    Args:
        content: Bytes of the file `manifest.json`.
        name: Name of the bundle, for messages.

    Raises:
        StorageError: If it is not the manifest of a bundle of this format version.
    """
    try:
        version = _Format.model_validate_json(content).version
    except ValidationError as error:
        raise StorageError(f"{name} is not a bundle of EMTC Lab: its manifest has another format.") from error
    if version != VERSION:
        raise StorageError(
            f"{name} has version {version} of the bundle format, and this program reads version {VERSION}. Write the "
            "bundle with the same version of EMTC Lab: emtc bundle RUN… --out FILE"
        )
    try:
        return BundleManifest.model_validate_json(content)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise StorageError(
            f"{name} is damaged: {shorten(key)} in its manifest is missing or invalid. Request the file again."
        ) from error
