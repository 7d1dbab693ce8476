"""The manifest of a bundle: `manifest.json`. The file format is described in `storage.bundles.read`."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from emtc_core.errors import StorageError
from emtc_core.install import get_upgrade_command

FORMAT: Final = "emtc-bundle"
VERSION: Final = 1
STUDY: Final = "study.db"
"""Name of the database in a bundle."""
ABOUT: Final = (
    "Runs of EMTC Lab. View them with: emtc open FILE. Import them into your database with: "
    "emtc open FILE --import. study.db is a normal SQLite database."
)
_MAX_TEXT_LENGTH: Final = 80


def get_short_text(value: object) -> str:
    """Return a value if it is a short printable text, otherwise an empty text."""
    return value if isinstance(value, str) and value.isprintable() and len(value) <= _MAX_TEXT_LENGTH else ""


def _is_true(value: object) -> bool:
    return value is True


ShortText = Annotated[str, BeforeValidator(get_short_text)]
Flag = Annotated[bool, BeforeValidator(_is_true)]


class _Part(BaseModel):
    """A part of the manifest. Unknown keys are ignored."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)


class ManifestMember(_Part):
    """Size [bytes] and checksum of a file in the bundle, uncompressed."""

    size: Annotated[int, Field(ge=1, strict=True)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class ManifestMembers(_Part):
    """The files in a bundle, in addition to the manifest."""

    model_config = ConfigDict(extra="forbid")

    study: ManifestMember = Field(alias=STUDY)


class ManifestContents(_Part):
    """What was copied of each run, see `contents.Contents`. It is only shown: the database is checked, not this."""

    model_config = ConfigDict(extra="allow")

    snapshots: Flag = False
    playbacks: Flag = False
    transitions: Flag = False
    trajectories: Flag = False
    whole: Annotated[list[Any], BeforeValidator(lambda value: value if isinstance(value, list) else [])] = []
    """Ids of the runs of which everything was copied."""
    sample_nodes: Annotated[int | None, BeforeValidator(lambda value: value if type(value) is int else None)] = None


class BundleManifest(_Part):
    """A manifest. Its texts, contents and runs are only shown to users; the database has the data."""

    format: Literal["emtc-bundle"]
    version: Literal[1]
    about: Any = ABOUT
    made_at: ShortText = ""
    made_by: ShortText = ""
    schema_version: ShortText = Field(default="", alias="schema")
    contents: ManifestContents = ManifestContents()
    runs: list[dict[str, Any]]
    sweeps: list[Any] = []
    members: ManifestMembers

    @property
    def size(self) -> int:
        """Size of the unpacked `study.db` [bytes]."""
        return self.members.study.size

    @property
    def sha256(self) -> str:
        """Checksum of the unpacked `study.db`."""
        return self.members.study.sha256


def parse_manifest(content: bytes, name: str) -> BundleManifest:
    """Parse a manifest and validate its format.

    Args:
        content: Bytes of the file `manifest.json`.
        name: Name of the bundle, for messages.

    Raises:
        StorageError: If it is not the manifest of a bundle, or its version is not `VERSION`.
    """
    try:
        values = json.loads(content)
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.get("format") != FORMAT or type(values.get("version")) is not int:
        raise StorageError(
            f"{name} is not a bundle of EMTC Lab: its manifest has another format.",
            reason="not_a_manifest",
            subject=name,
        )
    if (version := values["version"]) != VERSION:
        is_newer = version > VERSION
        raise StorageError(
            f"{name} is a bundle of version {version}, and this program reads version {VERSION}.",
            hint=f"Upgrade with: {get_upgrade_command()}"
            if is_newer
            else "Write it again with this version: emtc bundle RUN… --out FILE",
            reason="newer_version" if is_newer else "unknown_version",
            subject=version,
        )
    try:
        return BundleManifest.model_validate(values)
    except ValidationError as error:
        raise _explain(error.errors()[0], name) from error


def _explain(fault: Mapping[str, Any], name: str) -> StorageError:
    """Make the error for the first fault that pydantic has found."""
    field = str(fault["loc"][0])
    reason, what = {
        "members": ("no_size", f"no valid size and checksum of {STUDY}"),
        "runs": ("no_runs", "no list of runs"),
    }.get(field, ("bad_manifest", f"no valid entry {field!r}"))
    return StorageError(
        f"{name} is damaged: its manifest has {what}. Request the file again.", reason=reason, subject=name
    )
