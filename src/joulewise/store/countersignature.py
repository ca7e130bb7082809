"""Countersignatures: somebody else signs that a run's journal existed, as it is, at a time.

What it is: the statement that is signed (``Statement``), Ed25519 over it, and where signatures of a run are kept (a
stream of their own, ``countersigned/RUN``). Why it exists: a seal is a hash that whoever rewrites a journal computes
again; a signature needs a key, and the key is held by somebody who gains nothing from the saving. What it is not: a
witness of the joules. The signer has not seen the GPUs; it states that this seal and this digest of the readings were
shown to it at ``at_unix_s``. A forgery that was made before that time is signed like an honest run, and a signature by
a server of the forger's own proves nothing: therefore ``check`` takes the trusted keys from the verifier.

Needs the extra ``sign`` (the library ``cryptography``), except for reading.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from joulewise.core.errors import BadSpec, MissingPart, NotKept
from joulewise.core.event import Event, Turned
from joulewise.store.views import countersigned_stream

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from joulewise.store.store import Store

_CONTEXT: Final = b"joulewise countersignature 1\n"
"""Before what is signed: a signature made for another purpose is none of these."""
_WHAT: Final = "countersigned"
_PREFIX: Final = "ed25519:"
_MOST_BYTES: Final = 1 << 20  # of a file of keys


@dataclass(frozen=True, slots=True)
class Statement:
    """What a signer signs."""

    run: str
    events: int
    """Of the seal: how many events it covers …"""
    sha256: str
    """… and their hash."""
    readings_sha256: str
    """Digest of what is kept beside the journal (``store.evidence``)."""
    asker: str
    """Who asked, as the signer saw it: an address."""
    signer: str
    """The signer's name for itself."""
    at_unix_s: float
    """When, by the signer's clock."""

    @property
    def message(self) -> bytes:
        """The bytes that are signed."""
        return _CONTEXT + json.dumps(asdict(self), separators=(",", ":"), sort_keys=True, allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class Countersignature:
    """A statement, a key and its signature, as they are kept. Not checked."""

    statement: Statement
    key: str
    """The public key, ``ed25519:`` and base64."""
    signature: str

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Any) -> Countersignature:
        """BadSpec for anything but what ``to_json`` gives."""
        try:
            said = dict(fields["statement"])
            statement = Statement(
                run=_text(said.pop("run")),
                events=_whole(said.pop("events")),
                sha256=_text(said.pop("sha256")),
                readings_sha256=_text(said.pop("readings_sha256")),
                asker=_text(said.pop("asker")),
                signer=_text(said.pop("signer")),
                at_unix_s=float(said.pop("at_unix_s")),
            )
            if said:
                raise ValueError(f"{next(iter(said))!r} is no field of it")
            return cls(statement, _text(fields["key"]), _text(fields["signature"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadSpec(f"not a countersignature: {type(error).__name__}: {error}") from error


class SigningKey:
    """A private key of this signer."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def open(cls, path: Path) -> SigningKey:
        """The key in ``path``, which is made, for its owner alone (0600), at first use. BadSpec for a file that holds
        anything else or that others may read, NotKept where it cannot be read or made, MissingPart without the extra.
        """
        ed25519 = _library()
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            key = ed25519.Ed25519PrivateKey.generate()
            _make(path, base64.b64encode(key.private_bytes_raw()) + b"\n")
            return cls(key)
        except OSError as error:
            raise NotKept(_cannot(path, error)) from error
        try:
            if os.fstat(descriptor).st_mode & 0o077:
                raise BadSpec(f"others than its owner may read {path}; make a new key, or 'chmod 600' if nobody did")
            raw = os.read(descriptor, 1024)
        except OSError as error:
            raise NotKept(_cannot(path, error)) from error
        finally:
            os.close(descriptor)
        try:
            return cls(ed25519.Ed25519PrivateKey.from_private_bytes(base64.b64decode(raw.strip(), validate=True)))
        except (ValueError, binascii.Error):
            raise BadSpec(f"{path} holds no signing key; name a file that is not there and one is made") from None

    @property
    def public(self) -> str:
        """The public key as verifiers write it."""
        return _PREFIX + base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, statement: Statement) -> Countersignature:
        """The statement, signed."""
        return Countersignature(statement, self.public, base64.b64encode(self._key.sign(statement.message)).decode())


@dataclass(frozen=True, slots=True)
class Checked:
    """What the countersignatures of a run come to."""

    by: Countersignature | None
    """The earliest that holds, by a key that the verifier trusts; None where there is none."""
    name: str
    """What the verifier calls that key."""
    problems: tuple[str, ...]
    untrusted: tuple[str, ...]
    """Keys of signatures that the verifier does not know; nothing follows from them."""


def check(
    signed: Iterable[Countersignature], trusted: Mapping[str, str], *, run: str, seal: Mapping[str, Any], readings: str
) -> Checked:
    """Which of ``signed`` hold for this seal and these readings, by ``trusted`` (public key → name) alone. A problem is
    a signature by a trusted key that does not hold. MissingPart without the extra where there is something to check."""
    good: list[Countersignature] = []
    problems, untrusted = [], []
    for each in signed:
        said, name = each.statement, trusted.get(each.key)
        if name is None:
            untrusted.append(each.key)
        elif not _valid(each):
            problems.append(f"the countersignature by {name} does not fit what it is said to sign")
        elif said.run != run or (said.events, said.sha256) != (seal.get("events"), seal.get("sha256")):
            problems.append(
                f"{name} countersigned another journal: run {said.run}, {said.events} events, {said.sha256[:16]}…"
            )
        elif said.readings_sha256 != readings:
            problems.append(f"the readings are not those that {name} countersigned: they were changed since")
        else:
            good.append(each)
    by = min(good, key=lambda each: each.statement.at_unix_s, default=None)
    return Checked(by, trusted[by.key] if by is not None else "", tuple(problems), tuple(dict.fromkeys(untrusted)))


def keep(store: Store, signed: Countersignature) -> None:
    """Add a countersignature to those of its run. NotKept where it cannot be written."""
    journal = store.journal(countersigned_stream(signed.statement.run))
    journal.append(Turned(signed.statement.at_unix_s, signed.statement.run, _WHAT, signed.to_json()))
    if journal.trouble:
        raise NotKept(journal.trouble)


def kept(store: Store, run: str) -> list[Countersignature]:
    """The countersignatures of a run, none of them checked. BadSpec if one is damaged."""
    return of_events(event for _, event in store.journal(countersigned_stream(run)).read())


def of_events(events: Iterable[Event]) -> list[Countersignature]:
    """The countersignatures in a stream of them."""
    return [Countersignature.from_json(each.facts) for each in events if isinstance(each, Turned)]


def trusted_keys(named: Sequence[str]) -> dict[str, str]:
    """Public key → name, out of what a verifier brings: keys, or files with ``KEY NAME`` a line. BadSpec for others."""
    found: dict[str, str] = {}
    for each in named:
        lines = [each] if each.startswith(_PREFIX) else _lines(Path(each))
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            key, _, name = text.partition(" ")
            if not _is_key(key):
                raise BadSpec(f"line {number} of {each[:80]} is no public key; write '{_PREFIX}BASE64 NAME'")
            found[key] = name.strip() or key
    if named and not found:
        raise BadSpec(f"{named[0]} holds no key; write '{_PREFIX}BASE64 NAME', one a line")
    return found


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES)
        return data.decode("utf-8").splitlines()
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise BadSpec(f"--key {path} cannot be read: {why}; give a public key ({_PREFIX}…) or a file of them") from None
    except UnicodeDecodeError:
        raise BadSpec(f"--key {path} is no file of keys: not text") from None


def _is_key(text: str) -> bool:
    try:
        return text.startswith(_PREFIX) and len(base64.b64decode(text.removeprefix(_PREFIX), validate=True)) == 32
    except (ValueError, binascii.Error):
        return False


def _valid(signed: Countersignature) -> bool:
    ed25519 = _library()
    from cryptography.exceptions import InvalidSignature

    try:
        raw = base64.b64decode(signed.key.removeprefix(_PREFIX), validate=True)
        signature = base64.b64decode(signed.signature, validate=True)
        ed25519.Ed25519PublicKey.from_public_bytes(raw).verify(signature, signed.statement.message)
    except (ValueError, binascii.Error, InvalidSignature):
        return False
    return True


def _library() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingPart("countersignatures need the extra 'sign': pip install 'joulewise[sign]'") from error
    return ed25519


def _make(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise NotKept(_cannot(path, error)) from error


def _cannot(path: Path, error: OSError) -> str:
    return f"{path}: {(error.strerror or str(error)).lower()}; name another file for the key"


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value
