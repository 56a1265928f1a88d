"""Say whom a client trusts, and with what it shows who it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from router_http.secret import SecretOptions

if TYPE_CHECKING:
    from typing_extensions import Self


class Tls(SecretOptions):
    """Whom a client trusts: the authorities of the system, or one's own; and the certificate that it shows if asked."""

    certificate: str | None = Field(default=None, min_length=1, description="PEM file with this client's certificate")
    key: str | None = Field(
        default=None, min_length=1, description="PEM file with the certificate's key, if it is not in the same file"
    )
    ca: str | None = Field(
        default=None, min_length=1, description="PEM file with the authorities to trust, in place of the usual ones"
    )
    insecure_skip_tls_verification: bool = Field(
        default=False, description="trust any server: whoever stands in between reads the secrets; for trials only"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.key and not self.certificate:
            raise ValueError("a key needs its certificate")
        return self

    def beside(self, folder: Path) -> Self:
        """Return the same with its files looked for in `folder`, the configuration's."""
        return self.model_copy(update={name: str(folder / file) for name, file in self.files.items()})

    @property
    def files(self) -> dict[str, str]:
        """Return the files that are named, by option."""
        named = {"certificate": self.certificate, "key": self.key, "ca": self.ca}
        return {name: file for name, file in named.items() if file}

    @property
    def missing(self) -> str | None:
        """Say which file is not there; None where all are."""
        absent = (f"{name}: there is no file {file}" for name, file in self.files.items() if not Path(file).is_file())
        return next(absent, None)

    @property
    def verify(self) -> bool | str:
        """Return what `requests` takes as `verify`."""
        return False if self.insecure_skip_tls_verification else self.ca or True

    @property
    def cert(self) -> str | tuple[str, str] | None:
        """Return what `requests` takes as `cert`."""
        return (self.certificate, self.key) if self.certificate and self.key else self.certificate
