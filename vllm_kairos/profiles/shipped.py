"""Find and load the shipped profiles; docs/profiles.md says where each one is from."""

from pathlib import Path

from vllm_kairos.errors import ProfileError
from vllm_kairos.fitting.artifact import Profile, load_profile

_DATA = Path(__file__).parent / "data"


def shipped_names() -> tuple[str, ...]:
    """Return the names of all shipped profiles, sorted."""
    return tuple(sorted(path.stem for path in _DATA.glob("*.json")))


def shipped_profile_path(name: str) -> Path:
    """Return the file of a shipped profile. Raises ProfileError, naming the known ones, for any other name."""
    if name not in shipped_names():
        raise ProfileError(f"profile must be one of {', '.join(shipped_names())}, got {name!r}")
    return _DATA / f"{name}.json"


def load_shipped(name: str) -> Profile:
    """Load a shipped profile. Raises ProfileError, naming the known ones, for any other name."""
    return load_profile(shipped_profile_path(name))


def resolve_profile(name_or_path: str | Path) -> Path:
    """Return the path of a profile given as a file or as a shipped name; a file that exists goes first.

    Raises ProfileError, naming the known names, for a bare word that is neither.
    """
    path = Path(name_or_path)
    is_known = str(name_or_path) in shipped_names()  # some names have a dot, which looks like a suffix
    if path.exists() or (not is_known and (len(path.parts) != 1 or path.suffix)):
        return path  # the loader says what is wrong with it
    return shipped_profile_path(str(name_or_path))
