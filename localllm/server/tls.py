"""Certificates of the daemon: whether its files can be used; it knows nothing of connections."""

import ssl
from pathlib import Path
from typing import NoReturn

from localllm.errors import SettingError


def check_certificate(certificate: Path | None, key: Path | None) -> bool:
    """Whether to speak TLS: both files are given and fit together. Raises: SettingError that names the file."""
    if certificate is None and key is None:
        return False
    if certificate is None or key is None:
        missing = "the certificate (--tls-cert)" if certificate is None else "its key (--tls-key)"
        raise SettingError(f"TLS needs two files, and {missing} is missing")
    for path in (certificate, key):
        _check_readable(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        raise SettingError(_complaint(certificate, key, error)) from error
    return True


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise SettingError(f"TLS: {path} cannot be read: {error.strerror}") from error


def _no_password() -> NoReturn:
    raise SettingError("TLS: the key is encrypted, and nobody is there to give its password", hint="decrypt it first")


def _complaint(certificate: Path, key: Path, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"TLS: the key {key} does not belong to the certificate {certificate}"
    return f"TLS: {certificate} and {key} are not a certificate and its key in PEM format"
