"""Files that can execute code when they are loaded are opened only where the user says so."""

from __future__ import annotations

from sita_adapters.errors import InputError


class UntrustedFileError(InputError):
    """A file can execute code, and nobody said that it is trusted."""


def refuse_untrusted(what: str, reason: str, safer: str) -> UntrustedFileError:
    """Return the error for such a file. `safer` is a command or call that makes one that cannot."""
    return UntrustedFileError(
        f"{what} was not opened: {reason}. Expected a file that holds numbers alone (safetensors, ONNX), or your word. "
        f"Try: {safer}; or --trust, if you know who made the file."
    )
