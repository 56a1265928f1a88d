"""What caused an error; without `requests`, which `router check` never imports."""

from collections.abc import Iterator


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what caused it, one after the other."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        # urllib3 may give an error as an argument of another one, and nowhere else
        wrapped = next((value for value in cause.args if isinstance(value, BaseException)), None)
        cause = cause.__cause__ or cause.__context__ or wrapped
